"""What a run looks like now: a pure fold over its events, which forgets what was said beyond the step of the newest.

A session goes on from a checkpoint, and a discarded or crashed one ends at its checkpoint: events of an earlier step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from core.events import (
    Crashed,
    Evaluated,
    Event,
    Finished,
    Paused,
    Phase,
    Rewarmed,
    Saved,
    Skipped,
    Started,
    Trained,
    Warned,
)

ACTIVE_PHASES = ("starting", "preparing", "training", "validating", "saving", "stopping")


@dataclass(frozen=True, kw_only=True)
class Status:
    """A run's state as numbers and words; times in Unix seconds, rates as fractions, unknown as None."""

    phase: str = "starting"
    message: str = ""
    step: int = 0
    planned: int = 0
    epoch: int = 0
    epochs: float = 0
    steps_per_epoch: int = 0
    session: str = ""
    device: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    session_started_at: float | None = None
    updated_at: float | None = None
    stop_at: float | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    units_per_second: float | None = None
    units_seen: float = 0.0
    elapsed_seconds: float = 0.0
    eta_seconds: float | None = None
    gpu_peak_bytes: int | None = None
    skipped: int = 0
    best_score: float | None = None
    best_step: int | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    stop_reason: str = ""
    error: str = ""
    ended: bool = False
    #: what was known at the last two saves: a session goes on from one of them
    saves: tuple[Status, ...] = ()


def step_status(status: Status, event: Event, at: float) -> Status:
    """The status after one more event."""
    if event.step < status.step:
        status = _back_to(status, event.step)
    status = replace(status, updated_at=at)
    match event:
        case Started():
            return _started(status, event, at)
        case Phase():
            return replace(status, phase=event.phase, step=event.step, ended=False)
        case Trained():
            return replace(
                status,
                phase="training",
                ended=False,
                **{name: getattr(event, name) for name in ("step", "planned", "epoch", "loss", "lr", "grad_norm")},
                units_per_second=event.units_per_second,
                units_seen=event.units_seen,
                elapsed_seconds=event.elapsed_seconds,
                eta_seconds=event.eta_seconds,
                gpu_peak_bytes=_higher(status.gpu_peak_bytes, event.gpu_peak_bytes),
                skipped=event.skipped,
            )
        case Evaluated():
            best = {"best_score": event.main, "best_step": event.step} if event.is_best else {}
            return replace(
                status, step=event.step, scores=event.scores, elapsed_seconds=event.elapsed_seconds,
                units_seen=event.units_seen, **best,
            )  # fmt: skip
        case Saved():
            saved = replace(status, step=event.step, saves=())
            return replace(saved, saves=(*status.saves[-1:], saved))
        case Skipped():
            return replace(status, step=event.step, skipped=status.skipped + 1, message=event.reason)
        case Warned():
            return replace(status, step=event.step, message=event.message)
        case Rewarmed():
            return replace(status, step=event.step, message=f"learning rate warms up again: {event.reason}")
        case Paused():
            reason = event.reason
            return replace(status, phase=_ended_phase(event.kind), step=event.step, stop_reason=reason, ended=True)
        case Finished():
            return replace(
                status, phase="finished", step=event.step, planned=event.planned, eta_seconds=0.0, ended=True,
                stop_reason=event.reason,
            )  # fmt: skip
        case Crashed():
            return replace(status, phase="crashed", step=event.step, error=event.error, ended=True)
        case _:
            return replace(status, step=event.step, message=f"saving failed: {event.error}")


#: What is measured while training, and forgotten when its steps are.
MEASURED = (
    "step", "epoch", "loss", "lr", "grad_norm", "units_seen", "elapsed_seconds", "skipped", "best_score", "best_step",
    "scores",
)  # fmt: skip


def _back_to(status: Status, step: int) -> Status:
    saves = tuple(saved for saved in status.saves if saved.step <= step)
    known = saves[-1] if saves else Status()
    return replace(status, saves=saves, **{name: getattr(known, name) for name in MEASURED})


def _started(status: Status, event: Started, at: float) -> Status:
    return replace(
        status,
        phase="training",
        message="; ".join(event.notes),
        **{name: getattr(event, name) for name in ("step", "planned", "epoch", "epochs", "steps_per_epoch", "session")},
        device=event.device,
        facts=event.facts,
        session_started_at=at,
        stop_at=event.stop_at,
        eta_seconds=None,
        units_per_second=None,
        gpu_peak_bytes=None,
        stop_reason="",
        error="",
        ended=False,
    )


def _higher(first: int | None, second: int | None) -> int | None:
    return max((v for v in (first, second) if v is not None), default=None)


def _ended_phase(kind: str) -> str:
    return kind if kind in ("paused", "stopped") else "stopped"


def fold(events: Iterable[tuple[Event, float]]) -> Status:
    """The status after all of ``events`` (pairs of event and Unix seconds)."""
    status = Status()
    for event, at in events:
        status = step_status(status, event, at)
    return status


def rounded(value: float | None, digits: int) -> float | None:
    """``value`` with so many decimals; None for what is unknown or not finite."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _rates(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rates(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rates(inner) for inner in value]
    return rounded(value, 5) if isinstance(value, float) else value


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def status_json(name: str, status: Status) -> dict[str, Any]:
    """``status.json``: the keys that people and tools rely on, rounded as in log.csv."""
    return {
        "name": name,
        "phase": status.phase,
        "message": status.message,
        "device": status.device,
        **{key: status.facts.get(key) for key in STATIC_FACTS},
        "total_steps": status.planned,
        "epochs": status.epochs,
        "steps_per_epoch": status.steps_per_epoch,
        "session": status.session,
        "session_started_at": status.session_started_at,
        "updated_at": status.updated_at,
        "stop_at": status.stop_at,
        "step": status.step,
        "epoch": status.epoch,
        "loss": rounded(status.loss, 4),
        "lr": None if status.lr is None or not math.isfinite(status.lr) else float(f"{status.lr:.4g}"),
        "grad_norm": rounded(status.grad_norm, 3),
        "audio_h_per_h": rounded(status.units_per_second, 0),
        "hours_seen": rounded(status.units_seen / 3600, 2),
        "elapsed_min": rounded(status.elapsed_seconds / 60, 1),
        "eta_h": rounded(_scaled(status.eta_seconds, 3600), 2),
        "gpu_peak_gb": rounded(_scaled(status.gpu_peak_bytes, 2**30), 2),
        "skipped_batches": status.skipped,
        "best_score": rounded(status.best_score, 5),
        "best_cer": rounded(status.best_score, 5),
        "best_step": status.best_step,
        "valid": _rates(status.scores),
        "stop_requested": None,
        "stop_reason": status.stop_reason,
        "error": status.error,
    }


#: What a run's beginning says once and for all.
STATIC_FACTS = (
    "params_m", "train_clips", "valid_clips", "train_hours", "valid_hours", "hours_by_reciter", "model", "train",
    "data_id", "seen_in_training",
)  # fmt: skip
