"""What training is at a moment: a field of TrainState is in the checkpoint, nothing else is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.errors import CheckpointError


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Plain:
    """Plain numbers, texts and dicts that are saved field by field."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names = {f.name for f in fields(self)}  # type: ignore[arg-type]
        unknown = set(state) - names
        if unknown:
            raise CheckpointError(f"{type(self).__name__} of a newer layl: unknown {sorted(unknown)}; update layl")
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class Place(Plain):
    """Where in the data: batches *trained or skipped*, never drawn ahead. Two integers, and the epoch's plan fields."""

    epoch: int = 1
    batch: int = 0
    consumed: int = 0
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class Progress(Plain):
    """Plain numbers over all sessions."""

    step: int = 0
    planned: int = 0
    units_seen: float = 0.0
    train_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    validation_seconds: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    evaluated_step: int = -1
    warm_from: int = 0
    skipped: int = 0
    bad_rows: int = 0

    def forget_best(self) -> None:
        """The best score begins anew, with a validation as soon as one is due."""
        self.best_score = self.best_step = None
        self.evaluated_step = -1


@dataclass
class Identity(Plain):
    """Which data and configuration the state belongs to.

    ``kept_id`` is of the rows that were trained on: a higher speed leaves out more of those that are too short for
    their letters. ``origins`` are all that the run has ever trained on (hashes, sorted); ``seen`` names those of them
    that are held out now.
    """

    recipe: str = ""
    data_id: str = ""
    kept_id: str = ""
    valid_id: str = ""
    steps_per_epoch: int = 0
    epochs: float = 0.0
    steps: int | None = None
    classes: dict[str, dict[str, Any]] = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)
    session: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    origins: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    seen: list[str] = field(default_factory=list)


class Averages:
    """Sums since the last log line, kept on the device in float64 and read once a line."""

    def __init__(self, device: torch.device):
        # mps has no float64
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(3, dtype=kind, device=device)

    def add(self, shown: Tensor, count: int, norm: Tensor) -> None:
        """One step: its shown loss (sum over ``count`` units) and its gradient norm."""
        per_unit = shown.detach().to(self._sums.dtype) / max(1, count)
        one = torch.ones((), dtype=self._sums.dtype, device=self._sums.device)
        self._sums += torch.stack([per_unit, norm.detach().to(self._sums.dtype), one])

    def take(self) -> tuple[float | None, float | None]:
        """Mean loss and mean norm since the last line (None without a step); begins anew."""
        loss, norm, steps = self._sums.tolist()
        self._sums.zero_()
        return (loss / steps, norm / steps) if steps else (None, None)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.copy_(torch.tensor(state["sums"], dtype=self._sums.dtype))


@dataclass
class TrainState:
    """All of it. Each field has ``state_dict`` and ``load_state_dict``; adding one is all that saving it takes."""

    model: nn.Module
    optimizer: Optimizer
    scaler: Stateful
    place: Place
    progress: Progress
    averages: Averages
    identity: Identity

    def state_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name).state_dict() for f in fields(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore every part. Raises CheckpointError naming the part that is missing or does not fit."""
        for f in fields(self):
            if f.name not in state:
                raise CheckpointError(f"the checkpoint has no {f.name!r}")
            try:
                getattr(self, f.name).load_state_dict(state[f.name])
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(f"the checkpoint's {f.name!r} does not fit: {error}") from error
