"""What an exported file must prove before it replaces the one that is published."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein

from core.errors import ExportRefused
from core.manifest import SAMPLE_RATE_HZ, Row
from core.speech import audio
from core.speech.features import FILTERS, SHIFT, FrontEnd
from core.speech.model import SpeechModel
from export.client import FLOAT_FILE, TOKENS_FILE, WHOLE_SECONDS, Recogniser, SherpaRecogniser
from export.probe import SYMBOLS, signal, write_probe

PARITY_FRAMES = (1, 7, 333, 400, 1237)
PARITY_RAGGED = (333, 1, 97, 400, 7)
PARITY_LENGTHS = (*((T,) for T in PARITY_FRAMES), PARITY_RAGGED)
PARITY_TOLERANCE = 1e-4
PARITY_LIMIT = 1e-3
#: How many times the model's own distance from float64 the file may be away from the model: two orders of summing.
OWN_ROUNDING = 5.0
#: int8 may lose this part of float32's error rate, or the configured points, whichever is more.
RELATIVE_LOSS = 0.02
MB_PER_M_PARAMETERS = 1.1
SIZED_PRESETS = ("16m", "33m")
SHERPA_CLIPS = 12
#: Two symbols closer than this (difference of log-probabilities) may change places when features differ in the
#: fourth decimal, as torch's and kaldi-native-fbank's do.
TIE = 0.01
#: Part of the symbols that ties may change at most. An untrained model has ties everywhere: with right features none
#: of its symbols differ all the same, with a wrong upper frequency more than 20 %.
MOST_TIES = 0.01
NO_SHERPA = "`pip install sherpa-onnx` brings the client that phones use"


@dataclass(frozen=True)
class Gate:
    """One proof: what it is about, whether it holds, and the figures."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.name}: {self.detail}"


def refuse_unless_passed(gates: Sequence[Gate]) -> None:
    """Raises ExportRefused naming every gate that failed."""
    failed = [str(gate) for gate in gates if not gate.passed]
    if failed:
        raise ExportRefused("\n".join(["not published; what was published before is untouched", *failed]))


def speech(rows: Sequence[Row], root: Path) -> np.ndarray:
    """Samples (float32, 16 kHz) of clips taken evenly from ``rows``, end to end, repeated until there is enough."""
    clips = [audio.load(row, root) for row in evenly(rows, SHERPA_CLIPS)]
    return np.resize(np.concatenate(clips), max(PARITY_FRAMES) * SHIFT)


def parity(model: SpeechModel, recogniser: Recogniser, sound: np.ndarray) -> Gate:
    """The float32 file says what the trained model says, alone at five lengths and in a ragged batch.

    ``sound`` is at least 1237 frames of speech (samples, float32, 16 kHz). Where a model is so steep that float32
    itself strays from float64 (digital silence can do that), the file may stray a few times as far.
    """
    samples = torch.from_numpy(sound[None])
    features_TF = FrontEnd()(samples, torch.tensor([samples.shape[1]]))[0][0]
    exact = copy.deepcopy(model).double()
    found = [_distances(model, exact, recogniser, lengths, features_TF) for lengths in PARITY_LENGTHS]
    worst, own = (max(distance) for distance in zip(*found, strict=True))
    allowed = min(max(PARITY_TOLERANCE, OWN_ROUNDING * own), PARITY_LIMIT)
    return Gate(
        "parity with the trained model",
        worst <= allowed,
        f"log-probabilities differ by at most {worst:.1e} (allowed {allowed:.1e}) at "
        f"{', '.join(map(str, PARITY_FRAMES))} frames and in a ragged batch",
    )


def _distances(
    model: SpeechModel,
    exact: SpeechModel,
    recogniser: Recogniser,
    lengths: tuple[int, ...],
    features_TF: torch.Tensor,
) -> tuple[float, float]:
    """Largest difference of log-probabilities between the file and the model, and between the model and ``exact``."""
    features = torch.zeros(len(lengths), max(lengths), FILTERS)
    for i, length in enumerate(lengths):
        # from the end, so that no two of a batch say the same
        features[i, :length] = features_TF[len(features_TF) - length :]
    frames = torch.tensor(lengths)
    with torch.no_grad():
        theirs, out = model(features, frames)
        truth, _ = exact(features.double(), frames)
    ours, lengths_out = recogniser.outputs(features.numpy(), frames.numpy())
    if ours.shape != tuple(theirs.shape) or lengths_out.tolist() != out.tolist():
        return float("inf"), 0.0
    return _largest_gap(ours, theirs.numpy(), out), _largest_gap(theirs.numpy(), truth.numpy(), out)


def _largest_gap(one_NUV: np.ndarray, other_NUV: np.ndarray, frames_N: torch.Tensor) -> float:
    gaps = [np.abs(a[:U] - b[:U]).max() for a, b, U in zip(one_NUV, other_NUV, frames_N.tolist(), strict=True)]
    # a NaN on either side would win no comparison
    return float(max(gaps)) if np.isfinite(gaps).all() else float("inf")


def int8_loss(float_cer: float, int8_cer: float, points: float) -> Gate:
    """8-bit weights cost at most ``points`` percentage points or 2 % of the error rate, whichever is more."""
    allowed = max(points / 100, RELATIVE_LOSS * float_cer)
    return Gate(
        "letter error rate of int8",
        int8_cer - float_cer <= allowed + 1e-9,
        f"{100 * int8_cer:.2f} % against {100 * float_cer:.2f} % in float32 (allowed {100 * allowed:.2f} points more)",
    )


def size(file: Path, parameters: float, preset: str) -> Gate:
    """At most 1.1 MB for each of ``parameters`` million weights; only said for a demo, whose float parts weigh more."""
    megabytes, allowed = file.stat().st_size / 1e6, MB_PER_M_PARAMETERS * parameters
    gated = preset in SIZED_PRESETS
    told = f"{megabytes:.1f} MB for {parameters:.1f} M parameters"
    return Gate(
        "size of int8",
        not gated or megabytes <= allowed,
        f"{told} (allowed {allowed:.1f} MB)" if gated else f"{told} (not gated for {preset})",
    )


def sherpa_features() -> Gate:
    """sherpa-onnx computes our features, as a model that spells them writes; whatever the trained model makes of them.

    Without this, a model that writes little would let any features pass.
    """
    name = "features of sherpa-onnx"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_probe(folder / FLOAT_FILE)
        (folder / TOKENS_FILE).write_text(SYMBOLS.tokens_text(), encoding="utf-8")
        try:
            theirs, ours = SherpaRecogniser(folder, FLOAT_FILE), Recogniser(folder, FLOAT_FILE)
        except ModuleNotFoundError as error:
            return Gate(name, False, f"{error}; {NO_SHERPA}")
        heard = _compared("a test signal", signal(), ours, theirs)
    passed = heard.symbols > 0 and not heard.unexplained and heard.differ <= MOST_TIES * heard.symbols
    return Gate(name, passed, f"{heard.differ} of {heard.symbols} loudest filters of a test signal differ")


def sherpa_agrees(folder: Path, file: str, rows: Sequence[Row], root: Path) -> Gate:
    """sherpa-onnx, with features of its own, hears the symbols our decoder hears on the same wav files, but for ties.

    Besides clips from all over ``rows`` (of long ones the first minute) both hear a test signal.
    """
    name = f"sherpa-onnx on {file}"
    try:
        theirs, ours = SherpaRecogniser(folder, file), Recogniser(folder, file)
    except ModuleNotFoundError as error:
        return Gate(name, False, f"{error}; {NO_SHERPA}")
    with tempfile.TemporaryDirectory() as place:
        wav = Path(place) / "clip.wav"
        sounds = ((row.name, _through_wav(wav, audio.load(row, root))) for row in evenly(rows, SHERPA_CLIPS))
        heard = [_compared(which, samples, ours, theirs) for which, samples in sounds]
        heard.append(_compared("the test signal", _through_wav(wav, signal()), ours, theirs))
    return _judged(name, heard)


def evenly(rows: Sequence[Row], most: int) -> list[Row]:
    """At most ``most`` rows from all over ``rows``, in order."""
    count = min(most, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


@dataclass(frozen=True)
class _Heard:
    """One sound in two clients: symbols, how many of them differ, and how many of those no tie explains."""

    which: str
    symbols: int
    differ: int
    unexplained: int


def _compared(
    which: str, samples: np.ndarray, ours: Recogniser, theirs: SherpaRecogniser, margin: float = TIE
) -> _Heard:
    mine, other = ours.symbols(samples), theirs.symbols(samples)
    differ = Levenshtein.distance(mine, other)
    # a frame that tips over can change two symbols: itself, and a repeat that it joins or parts
    explained = 2 * _ties(ours, samples, margin) if differ else 0
    return _Heard(which, max(len(mine), len(other)), differ, max(0, differ - explained))


def _judged(name: str, heard: Sequence[_Heard]) -> Gate:
    symbols, differ = sum(one.symbols for one in heard), sum(one.differ for one in heard)
    allowed = max(2, int(MOST_TIES * symbols))
    unlike = [one for one in heard if one.unexplained]
    clips = len(heard) - 1
    detail = [
        f"{differ:,} of {symbols:,} symbols differ on {clips} clip{'' if clips == 1 else 's'} and a test signal"
        + (f" (near-ties may change {allowed:,})" if differ else "")
    ]
    if not symbols:
        detail.append("the model writes nothing, so this proves nothing about its symbols")
    detail += [f"{one.which}: {one.differ} of {one.symbols} differ, more than ties explain" for one in unlike[:3]]
    return Gate(name, not unlike and differ <= allowed, "; ".join(detail))


def _through_wav(path: Path, samples: np.ndarray) -> np.ndarray:
    import soundfile

    whole = samples[: round(WHOLE_SECONDS * SAMPLE_RATE_HZ)]
    soundfile.write(path, whole, SAMPLE_RATE_HZ, subtype="PCM_16")
    read, _ = soundfile.read(path, dtype="float32")
    return read


def _ties(recogniser: Recogniser, samples: np.ndarray, margin: float) -> int:
    features = recogniser.features(samples)
    if not len(features):
        return 0
    log_probs, _ = recogniser.outputs(features[None], np.array([len(features)], dtype=np.int64))
    top = np.sort(log_probs[0], axis=-1)[:, -2:]
    return int((top[:, 1] - top[:, 0] < margin).sum())
