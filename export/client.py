"""What ships, run as a client runs it: samples in, text out, from the files of ``models/<run>/`` alone.

N clips, T feature frames (10 ms), U output frames (40 ms), V symbols. Two engines read the same files: our own
loop over onnxruntime, and sherpa-onnx as phones have it, unmodified.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from core.errors import CheckpointError
from core.manifest import SAMPLE_RATE_HZ
from core.speech.features import SHIFT, FrontEnd, frames
from core.speech.model import out_frames
from core.speech.scoring import greedy_decode
from core.speech.text import SPACE_TOKEN, Vocabulary
from export.onnx_file import SUBSAMPLING

FLOAT_FILE = "model.onnx"
INT8_FILE = "model.int8.onnx"
TOKENS_FILE = "tokens.txt"
FACTS_FILE = "model.json"

#: Longer audio is heard in pieces: attention over ten minutes at once would take gigabytes.
WHOLE_SECONDS = 60.0
#: A piece ends at the quietest place between these two.
PIECE_SECONDS = (15.0, 30.0)
#: What a piece hears of its neighbours on either side, and does not write.
CONTEXT_SECONDS = 2.0
#: Length over which quiet is looked for.
PAUSE_SECONDS = 0.3


class Client(Protocol):
    """Anything that turns samples into text."""

    def transcribe(self, samples: np.ndarray) -> str:
        """Text of float32 samples (S) in [-1, 1] at 16 kHz; "" where there is nothing to hear."""
        ...


class Recogniser:
    """The exported file in onnxruntime. May be called from several threads at once."""

    def __init__(self, folder: Path, file: str = INT8_FILE, *, threads: int = 1) -> None:
        """Raises CheckpointError when ``folder`` holds no model, or tokens of another one."""
        import onnxruntime

        _refuse_missing(folder, file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
        self.vocabulary = Vocabulary.from_tokens_text((folder / TOKENS_FILE).read_text(encoding="utf-8"))
        width = self.session.get_outputs()[0].shape[2]
        if width != len(self.vocabulary):
            raise CheckpointError(
                f"{folder / file} writes {width} symbols, {TOKENS_FILE} has {len(self.vocabulary)}; "
                "expected the tokens.txt that was published with this file"
            )
        self._front_end = FrontEnd()

    def outputs(self, features_NTF: np.ndarray, frames_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities (N, U, V) and output frames (N) of features (N, T, 80), T at least 1."""
        log_probs, lengths = self.session.run(None, {"x": features_NTF, "x_lens": frames_N})
        return np.asarray(log_probs), np.asarray(lengths)

    def features(self, samples: np.ndarray) -> np.ndarray:
        """Features (T, 80) of float32 samples (S) in [-1, 1] at 16 kHz; T is 0 under 5 ms."""
        audio = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
        features, count = self._front_end(audio[None], torch.tensor([len(audio)]))
        return features[0, : int(count[0])].numpy()

    def ids(self, samples: np.ndarray) -> list[int]:
        """The symbols heard, blanks and repeats gone."""
        features = self.features(samples)
        if not len(features):
            return []
        heard = [self._piece(features, *piece) for piece in pieces(features)]
        log_probs = np.concatenate(heard)
        return greedy_decode(log_probs[None], np.array([len(log_probs)]))[0]

    def symbols(self, samples: np.ndarray) -> list[str]:
        """The symbols heard, the space as " "."""
        return [self.vocabulary.symbols[i] for i in self.ids(samples)]

    def transcribe(self, samples: np.ndarray) -> str:
        """Text of float32 samples (S) in [-1, 1] at 16 kHz, of any length."""
        return " ".join(self.vocabulary.decode(self.ids(samples)).split())

    def _piece(self, features: np.ndarray, start: int, end: int) -> np.ndarray:
        context = _frames(CONTEXT_SECONDS)
        first = max(0, start - context)
        seen = features[first : end + context]
        log_probs, _ = self.outputs(seen[None], np.array([len(seen)], dtype=np.int64))
        skipped = (start - first) // SUBSAMPLING
        return log_probs[0, skipped : skipped + out_frames(end - start)]


class SherpaRecogniser:
    """The same files in sherpa-onnx's own recogniser, which computes its own features."""

    def __init__(self, folder: Path, file: str = INT8_FILE, *, threads: int = 1) -> None:
        """Raises CheckpointError when ``folder`` holds no model, ModuleNotFoundError without sherpa-onnx."""
        import sherpa_onnx

        _refuse_missing(folder, file)
        self._engine = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
            model=str(folder / file), tokens=str(folder / TOKENS_FILE), num_threads=threads
        )
        self._front_end = FrontEnd()

    def transcribe(self, samples: np.ndarray) -> str:
        """Text of float32 samples (S) in [-1, 1] at 16 kHz; long audio is cut at pauses, which part words."""
        if frames(len(samples)) < 1:
            # the engine throws on a clip without frames
            return ""
        samples = np.ascontiguousarray(samples, dtype=np.float32)
        if len(samples) <= WHOLE_SECONDS * SAMPLE_RATE_HZ:
            return self._text(samples)
        features, _ = self._front_end(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
        cuts = [start * SHIFT for start, _ in pieces(features[0].numpy())] + [len(samples)]
        texts = [self._text(samples[a:b]) for a, b in pairwise(cuts)]
        return " ".join(" ".join(texts).split())

    def symbols(self, samples: np.ndarray) -> list[str]:
        """The symbols heard in at most a minute, the space as " "; before sherpa-onnx makes text of them."""
        if frames(len(samples)) < 1:
            return []
        heard = self._hear(np.ascontiguousarray(samples, dtype=np.float32)).tokens
        return [" " if symbol == SPACE_TOKEN else symbol for symbol in heard]

    def _text(self, samples: np.ndarray) -> str:
        return " ".join(self._hear(samples).text.split())

    def _hear(self, samples: np.ndarray) -> Any:
        stream = self._engine.create_stream()
        stream.accept_waveform(SAMPLE_RATE_HZ, samples)
        self._engine.decode_stream(stream)
        return stream.result


def _refuse_missing(folder: Path, file: str) -> None:
    for needed in (folder / file, folder / TOKENS_FILE):
        if not needed.is_file():
            raise CheckpointError(f"{needed} is missing; `layl export {folder.name}` makes it")


def pieces(features_TF: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first frame, end) of each piece, all but the last a whole number of output frames, cut where it is quietest."""
    total = len(features_TF)
    if total <= _frames(WHOLE_SECONDS):
        yield 0, total
        return
    shortest, longest = map(_frames, PIECE_SECONDS)
    width = _frames(PAUSE_SECONDS)
    loudness = np.convolve(features_TF.mean(axis=1), np.ones(width) / width, mode="same")
    start = 0
    while total - start > longest:
        window = loudness[start + shortest : start + longest : SUBSAMPLING]
        end = start + shortest + SUBSAMPLING * int(window.argmin())
        yield start, end
        start = end
    yield start, total


def _frames(seconds: float) -> int:
    """Feature frames in ``seconds``, a whole number of output frames."""
    return round(seconds * SAMPLE_RATE_HZ / SHIFT) // SUBSAMPLING * SUBSAMPLING
