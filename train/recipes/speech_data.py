"""Clips to batches: which clips an epoch holds, how one is loaded and augmented, how many become one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.manifest import Manifest, Row
from core.speech import audio
from core.speech.config import SpeechRun
from core.speech.features import frames
from core.speech.text import Vocabulary, frames_needed
from train.batching import cost_seconds, epoch_batches, random_for, row_weights
from train.recipe import Draw
from train.recipes.augment import augmented
from train.recipes.spectrum import Change, Changes, drawn


@dataclass(frozen=True)
class Example:
    """One clip ready for a batch: samples (S,) float32, ids, and what is to happen to its features."""

    row: int
    samples: np.ndarray
    ids: tuple[int, ...]
    seconds: float
    change: Change | None = None


@dataclass(frozen=True)
class SpeechBatch:
    """N clips: audio_NS padded with zeros, samples_N, targets_NL padded with 0, lengths_N, changes to features."""

    indices: tuple[int, ...]
    audio_NS: Tensor
    samples_N: Tensor
    targets_NL: Tensor
    lengths_N: Tensor
    changes: Changes | None
    units: float

    def to(self, device: torch.device) -> SpeechBatch:
        return self if device.type == "cpu" else self._map(lambda value: value.to(device, non_blocking=True))

    def pin_memory(self) -> SpeechBatch:
        return self._map(lambda value: value.pin_memory())

    def _map(self, move: Callable[[Tensor], Tensor]) -> SpeechBatch:
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            moved[name] = move(value) if isinstance(value, Tensor) else value
        moved["changes"] = None if self.changes is None else self.changes.map(move)
        return SpeechBatch(**moved)

    def describe(self) -> str:
        return f"{len(self.indices)} clips, {self.units:.1f} s"


def collate(examples: Sequence[Example]) -> SpeechBatch:
    """Pad clips of different lengths to one batch."""
    samples = [len(e.samples) for e in examples]
    audio_NS = torch.zeros(len(examples), max(samples))
    longest = max(len(e.ids) for e in examples)
    targets_NL = torch.zeros(len(examples), longest, dtype=torch.int64)
    for i, example in enumerate(examples):
        audio_NS[i, : samples[i]] = torch.from_numpy(example.samples)
        targets_NL[i, : len(example.ids)] = torch.tensor(example.ids, dtype=torch.int64)
    return SpeechBatch(
        indices=tuple(e.row for e in examples),
        audio_NS=audio_NS,
        samples_N=torch.tensor(samples, dtype=torch.int64),
        targets_NL=targets_NL,
        lengths_N=torch.tensor([len(e.ids) for e in examples], dtype=torch.int64),
        changes=Changes.of([e.change for e in examples], max(frames(n) for n in samples)),
        units=sum(e.seconds for e in examples),
    )


class Clips:
    """The rows of a manifest as something to load: the recipe's source, encode and collate."""

    def __init__(self, rows: Sequence[Row], root: Path, vocabulary: Vocabulary, config: SpeechRun):
        self.rows = rows
        self._root = root
        self._config = config
        self._ids = [tuple(vocabulary.encode(row.text)) for row in rows]
        # by content: an epoch is the same whatever order the manifest has
        by_content = sorted(range(len(rows)), key=lambda i: (rows[i].id, rows[i].riwaya or ""))
        self._order = np.array(by_content, dtype=np.int64)
        self._durations = np.array([row.duration for row in rows], dtype=np.float64)
        self._ordinary = np.array([row.group == "ordinary" for row in rows], dtype=bool)
        self._warsh = np.array([row.riwaya == "warsh" for row in rows], dtype=bool)

    def weights(self, values: Mapping[str, Any]) -> tuple[np.ndarray, str]:
        return row_weights(
            self._durations / 3600,
            self._ordinary,
            self._warsh,
            ordinary_share=values["data.ordinary_share"],
            warsh_weight=values["data.warsh_weight"],
            repeat_cap=values["data.repeat_cap"],
        )

    def batches(self, epoch: int, values: Mapping[str, Any]) -> list[tuple[tuple[int, int], ...]]:
        """An epoch's batches, from the plan fields it began with."""
        if not len(self._durations):
            return []
        order = self._order
        batches = epoch_batches(
            self._durations[order],
            self.weights(values)[0][order],
            seed=values["train.seed"],
            epoch=epoch,
            max_seconds=values["train.max_batch_seconds"],
            max_clips=values["train.max_batch_clips"],
        )
        return [tuple((int(order[place]), turn) for place, turn in batch) for batch in batches]

    def cost(self, items: Sequence[tuple[int, int]]) -> float:
        """Padded seconds, long clips counting for more."""
        return float(cost_seconds(max(self._durations[row] for row, _ in items), len(items)))

    def row_name(self, row: int) -> str:
        return self.rows[row].name

    def plain(self, row: int) -> Example:
        """A clip as it is."""
        samples = audio.load(self.rows[row], self._root)
        return Example(row, samples, self._ids[row], self.rows[row].duration)

    def encode(self, row: int, draw: Draw) -> Example:
        """A clip as this turn of it sounds."""
        example = self.plain(row)
        if draw.clean:
            return example
        random = random_for(draw.seed, draw.epoch, self.rows[row].id, draw.repeat)
        if random.random() >= draw.share:
            return example
        samples = augmented(example.samples, self._config.augment, random)
        change = drawn(frames(len(samples)), self._config.augment, self._config.spec_augment, random)
        return Example(row, samples, example.ids, example.seconds, change)


def fitting(manifest: Manifest, vocabulary: Vocabulary, fastest: float) -> tuple[list[Row], int]:
    """The rows whose frames can hold their letters even at the fastest speed, and how many were left out."""
    kept = [row for row in manifest.rows if _fits(row, vocabulary, fastest)]
    return kept, len(manifest.rows) - len(kept)


def _fits(row: Row, vocabulary: Vocabulary, fastest: float) -> bool:
    from core.speech.model import out_frames

    return out_frames(frames(int(row.samples / fastest))) >= max(1, frames_needed(vocabulary.encode(row.text)))
