"""What happens to a training clip's features, from its random generator alone: another voice, masks.

N clips, T frames of 10 ms, F filters. Drawn for a clip where it is loaded, done to a whole batch on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.manifest import SAMPLE_RATE_HZ
from core.speech.config import AugmentSection, SpecAugmentSection
from core.speech.features import FILTERS, HIGH_HZ, LOW_HZ, mel


@dataclass(frozen=True)
class Change:
    """One clip's: frames (T,) and filters (F,) to hide, and which filter, with a fraction, each filter reads (F,)."""

    time_mask: np.ndarray
    filter_mask: np.ndarray
    source: np.ndarray


def drawn(frames: int, augment: AugmentSection, spec: SpecAugmentSection, random: np.random.Generator) -> Change:
    """A change for a clip of ``frames`` frames."""
    time, filters = masks(frames, spec, random)
    return Change(time, filters, source_filters(random.uniform(*augment.formants)))


def source_filters(factor: float) -> np.ndarray:
    """Which filter (F,), with a fraction, each filter of a voice reads whose formants lie ``factor`` times as high.

    Vocal tract length perturbation (Jaitly and Hinton, 2013) along the filter bank: unlike speed it moves neither
    pitch nor tempo. A filter that would read beyond either end reads the last one.
    """
    low, high = mel(LOW_HZ), mel(SAMPLE_RATE_HZ / 2 + HIGH_HZ)
    step = (high - low) / (FILTERS + 1)
    hz = 700 * np.expm1((low + step * np.arange(1, FILTERS + 1)) / 1127)
    return np.clip((mel(hz / factor) - low) / step - 1, 0, FILTERS - 1).astype(np.float32)


def masks(frames: int, config: SpecAugmentSection, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which frames (T,) and filters (F,) of a clip are hidden; time masks never hide more than their share of it."""
    time = np.zeros(frames, dtype=bool)
    left = int(frames * config.max_time_share)
    for _ in range(config.time_masks):
        width = min(int(random.integers(0, config.time_width + 1)), left)
        start = int(random.integers(0, frames - width + 1))
        time[start : start + width] = True
        left -= width
    filters = np.zeros(FILTERS, dtype=bool)
    for _ in range(config.freq_masks):
        width = int(random.integers(0, min(config.freq_width, FILTERS) + 1))
        start = int(random.integers(0, FILTERS - width + 1))
        filters[start : start + width] = True
    return time, filters


@dataclass(frozen=True)
class Changes:
    """A batch's: masks (True hides) (N, T) and (N, F), and sources (N, F), None where every filter reads itself."""

    time_mask_NT: Tensor
    filter_mask_NF: Tensor
    source_NF: Tensor | None

    @classmethod
    def of(cls, changes: Sequence[Change | None], frames: int) -> Changes | None:
        """Those of a batch whose longest clip has ``frames`` frames; None where no clip changes."""
        if not any(changes):
            return None
        N = len(changes)
        time_NT, filter_NF = torch.zeros(N, frames, dtype=torch.bool), torch.zeros(N, FILTERS, dtype=torch.bool)
        source_NF = torch.arange(FILTERS, dtype=torch.float32).repeat(N, 1)
        plain_F = source_NF[0].clone()
        for i, change in enumerate(changes):
            if change is not None:
                time_NT[i, : len(change.time_mask)] = torch.from_numpy(change.time_mask)
                filter_NF[i] = torch.from_numpy(change.filter_mask)
                source_NF[i] = torch.from_numpy(change.source)
        return cls(time_NT, filter_NF, source_NF if bool((source_NF != plain_F).any()) else None)

    def map(self, move: Callable[[Tensor], Tensor]) -> Changes:
        """The same with every tensor moved."""
        moved: dict[str, Any] = {name: None if value is None else move(value) for name, value in vars(self).items()}
        return Changes(**moved)

    def hidden(self) -> Tensor:
        """(N, T, F) bool: what the model must not see."""
        return self.time_mask_NT[:, :, None] | self.filter_mask_NF[:, None, :]

    def done(self, features_NTF: Tensor) -> Tensor:
        """The features (N, T, F) float32 of other voices."""
        if self.source_NF is None:
            return features_NTF
        with torch.autocast(features_NTF.device.type, enabled=False):
            return torch.bmm(features_NTF, _mix(self.source_NF))


def _mix(source_NF: Tensor) -> Tensor:
    """(N, F, F): how much of each filter every filter gets when it reads between two."""
    filters_F1 = torch.arange(source_NF.shape[1], dtype=torch.float32, device=source_NF.device)[:, None]
    return (1 - (filters_F1 - source_NF[:, None, :]).abs()).clamp_min(0)
