"""What a recipe gives the engine. It never touches optimiser, clock, files or signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Draw:
    """One row's turn in a batch: everything random about it is a function of these fields and the row's id."""

    seed: int
    epoch: int
    repeat: int
    clean: bool
    #: once the clean start is over: the chance that this turn is augmented
    share: float = 1.0


@dataclass(frozen=True)
class Loss:
    """What a batch lost: ``sum`` (differentiable) over ``count`` units; ``shown`` is what people watch, detached."""

    sum: Tensor
    count: int
    shown: Tensor


@dataclass(frozen=True)
class Scores:
    """A validation: ``main`` decides (lower is better), ``details`` are JSON, ``heard`` what came out, row by row."""

    main: float
    details: dict[str, Any] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)


class Batch(Protocol):
    """What ``collate`` makes: ``units`` is how much it holds (seconds of audio, tokens)."""

    units: float

    def to(self, device: torch.device) -> Batch: ...

    def describe(self) -> str: ...


class Source(Protocol):
    """The rows to train on."""

    def batches(self, epoch: int, values: Mapping[str, Any]) -> Sequence[Sequence[tuple[int, int]]]:
        """An epoch's batches as (row, repeat) pairs: a pure function of the epoch and the plan fields."""
        ...

    def cost(self, items: Sequence[tuple[int, int]]) -> float:
        """What a batch costs beside others of this source: the heaviest is tried before training."""
        ...

    def row_name(self, row: int) -> str: ...


class Recipe(Protocol):
    """Five parts: source, encode, collate, loss, evaluate."""

    source: Source

    def encode(self, row: int, draw: Draw) -> Any:
        """One row, loaded and augmented; runs in a loader process."""
        ...

    def collate(self, examples: Sequence[Any]) -> Batch: ...

    def loss(self, model: nn.Module, batch: Any) -> Loss: ...

    def evaluate(self, model: nn.Module, stopped: Callable[[], bool]) -> Scores | None:
        """Scores on the validation rows, or None when ``stopped`` said so between two batches."""
        ...
