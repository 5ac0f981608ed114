"""What a model makes of manifest rows: the live one in batches, the exported file clip by clip.

N clips, T feature frames, U output frames, V symbols.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from core.manifest import SAMPLE_RATE_HZ, Row
from core.speech import audio
from core.speech.features import FrontEnd
from core.speech.model import SpeechModel
from core.speech.scoring import hear
from core.speech.text import Vocabulary
from export.client import Client, Recogniser

#: Padded audio that goes through the live model at once.
BATCH_SECONDS = 60.0


@dataclass(frozen=True)
class Clips:
    """Audio of like length on its way through a model; ``indices`` are the places of its clips in the manifest."""

    indices: tuple[int, ...]
    audio_NS: torch.Tensor
    samples_N: torch.Tensor


def batches(rows: Sequence[Row], root: Path, seconds: float = BATCH_SECONDS) -> Iterator[Clips]:
    """All rows, shortest first, at most ``seconds`` of padded audio at once (a longer clip rides alone)."""
    waiting: list[int] = []
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].samples, i)):
        if waiting and rows[index].duration * (len(waiting) + 1) > seconds:
            yield _clips(rows, root, waiting)
            waiting = []
        waiting.append(index)
    if waiting:
        yield _clips(rows, root, waiting)


def _clips(rows: Sequence[Row], root: Path, indices: list[int]) -> Clips:
    sounds = [torch.from_numpy(audio.load(rows[i], root)) for i in indices]
    padded = torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True)
    return Clips(tuple(indices), padded, torch.tensor([len(s) for s in sounds]))


def heard_live(model: SpeechModel, rows: Sequence[Row], root: Path, vocabulary: Vocabulary) -> list[str]:
    """What ``model`` hears on each row, in their order; on a GPU where there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, front_end = model.eval().to(device), FrontEnd().to(device)

    def outputs(clips: Clips) -> tuple[np.ndarray, np.ndarray]:
        features = front_end(clips.audio_NS.to(device), clips.samples_N.to(device))
        log_probs, frames = model(*features)
        return log_probs.cpu().numpy(), frames.cpu().numpy()

    with torch.inference_mode():
        heard = hear(outputs, batches(rows, root), vocabulary)
    model.to("cpu")
    return [heard[i] for i in range(len(rows))]


def heard_by_file(recogniser: Recogniser, rows: Sequence[Row], root: Path) -> list[str]:
    """What an exported file hears on each row, in their order: each clip alone, several at a time.

    Never in batches: a clip is heard as a phone hears it, and one thread a clip on all cores is as fast. Long clips
    go in pieces, as they do for a client.
    """

    def one(row: Row) -> str:
        return recogniser.transcribe(audio.load(row, root))

    with single_threaded(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(one, rows))


def real_time_factor(client: Client, rows: Sequence[Row], root: Path, *, seconds: float = 60.0) -> float | None:
    """Processor time over audio time on one thread, features included, over the first ``seconds`` of the rows.

    Processor time is what one core needs, however busy the machine is; None without audio.
    """
    chosen: list[np.ndarray] = []
    for row in rows:
        if sum(map(len, chosen)) > seconds * SAMPLE_RATE_HZ:
            break
        chosen.append(audio.load(row, root))
    total = sum(map(len, chosen)) / SAMPLE_RATE_HZ
    if not total:
        return None
    with single_threaded():
        client.transcribe(chosen[0])
        began = time.process_time()
        for samples in chosen:
            client.transcribe(samples)
        return (time.process_time() - began) / total


@contextmanager
def single_threaded() -> Iterator[None]:
    """torch on one thread: our own threads share the cores already, or one core is what is measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
