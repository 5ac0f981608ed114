"""How long a run is, and the learning rate of each update: pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a cosine from ``peak`` to ``peak x floor``; times a second warm-up after a change.

    ``planned`` updates in all; ``warm_from`` is the step of the last change (0: none).
    """

    peak: float
    warmup: int
    floor: float
    planned: int
    warm_from: int = 0

    def lr(self, step: int) -> float:
        """The rate of the update after ``step`` updates."""
        if step < self.warmup:
            scheduled = self.peak * (step + 1) / self.warmup
        else:
            progress = min(1.0, (step - self.warmup) / max(1, self.planned - self.warmup))
            scheduled = self.peak * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2)
        return scheduled * self.rewarm_factor(step)

    def rewarm_factor(self, step: int) -> float:
        if self.warm_from <= 0 or self.warmup == 0:
            return 1.0
        return min(1.0, (step - self.warm_from + 1) / self.warmup)


def planned_steps(epochs: float, steps: int | None, steps_per_epoch: int) -> int:
    """Updates in all: as named, or as many as the epochs hold."""
    return steps if steps is not None else max(1, round(epochs * steps_per_epoch))
