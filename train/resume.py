"""What a change between two sessions means: a pure truth table over the saved identity and today's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.seen import names_of


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a session stands on: ids of the data, the length asked for, and the configuration by change class.

    ``trained`` are the origins the run has trained on (of the saved one), ``held_out`` those that scores are taken on
    with their names (of today's): core.seen makes both.
    """

    data_id: str
    valid_id: str
    steps_per_epoch: int
    epochs: float
    steps: int | None = None
    after_change: float = 0.2
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    symbols: tuple[str, ...] = ()
    trained: frozenset[int] = frozenset()
    held_out: Mapping[int, str] = field(default_factory=dict)
    allow_seen: bool = False


@dataclass(frozen=True, kw_only=True)
class Point:
    """How far the run is: updates done and planned, running epoch (from 1), batches of it done."""

    step: int
    planned: int
    epoch: int
    batch: int

    @property
    def finished(self) -> bool:
        return self.step >= self.planned


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows. ``refused`` is not empty when the checkpoint does not fit configuration or data any more.

    ``seen`` names what is held out now although the run has trained on it.
    """

    planned: int
    new_epoch: bool = False
    rewarm: str | None = None
    reset_best: bool = False
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


#: A planned length that moves by more than this part of itself warms the learning rate up again.
LENGTH_TOLERANCE = 0.05


def reconcile(saved: Basis, now: Basis, point: Point, changed_rows: str = "") -> Decision:
    """Decide how a run goes on. ``changed_rows`` is the sentence for people, such as ``+1,204 -3 ~17 clips``."""
    refused = differences(saved.classes.get("fixed", {}), now.classes.get("fixed", {}))
    if saved.symbols != now.symbols:
        refused += (_symbols_sentence(saved.symbols, now.symbols),)
    seen = tuple(sorted(name for origin, name in now.held_out.items() if origin in saved.trained)) if point.step else ()
    if seen and not now.allow_seen:
        refused += (
            f"{names_of(seen)}: trained on before and held out now, so that scores would flatter "
            "(train.allow_seen: true goes on, and every score says so)",
        )
    if refused:
        return Decision(planned=point.planned, refused=refused, seen=seen)

    notes: list[str] = []
    if seen:
        notes.append(f"held out now although trained on before: {names_of(seen)}; every score says seen_in_training")
    rewarm: list[str] = []
    new_data = saved.data_id != now.data_id
    new_epoch = new_data and point.batch > 0
    wanted = _planned(saved, now, point, new_data)
    planned = max(wanted, point.step)
    if new_data:
        what = "data changed" + (f": {changed_rows}" if changed_rows else "")
        if point.finished and planned == point.planned:
            notes.append(f"{what}; train.after_change is 0: the finished run takes no step on it")
        else:
            rewarm.append(what)
    if (not point.finished and _moved(point.planned, planned) and not new_data) or (
        point.finished and planned > point.planned and not new_data
    ):
        rewarm.append(f"length changed {point.planned:,} -> {planned:,} steps")
    if fields := differences(saved.classes.get("rewarm", {}), now.classes.get("rewarm", {})):
        rewarm.append("; ".join(fields))
    if plan := differences(saved.classes.get("plan", {}), now.classes.get("plan", {})):
        notes.append("from the next epoch: " + "; ".join(plan))
    if reset_best := saved.valid_id != now.valid_id:
        notes.append("validation data changed: the best score begins anew")
    if wanted < point.step or (wanted == point.step and not point.finished):
        notes.append(f"already beyond the new length of {wanted:,} steps: the run finishes here")
    return Decision(
        planned=planned,
        new_epoch=new_epoch,
        rewarm="; ".join(rewarm) if rewarm and planned > point.step else None,
        reset_best=reset_best,
        notes=tuple(notes),
        seen=seen,
    )


def _planned(saved: Basis, now: Basis, point: Point, new_data: bool) -> int:
    if new_data and point.finished:
        return point.planned + _reopened(now, point)
    # a run that named its steps does not mind how many an epoch has
    same_epochs = now.steps is not None or (saved.epochs, saved.steps_per_epoch) == (now.epochs, now.steps_per_epoch)
    if not new_data and saved.steps == now.steps and same_epochs:
        return point.planned
    if now.steps is not None:
        wanted = now.steps
    elif new_data:
        # a half-done epoch ends here and counts as done
        done = point.epoch - 1 + (1 if point.batch else 0)
        wanted = point.step + round((now.epochs - done) * now.steps_per_epoch)
    else:
        wanted = point.step - point.batch + round((now.epochs - point.epoch + 1) * now.steps_per_epoch)
    if new_data and wanted <= point.step and not _shortened(saved, now):
        # nothing would be left for the new data
        return point.step + _reopened(now, point)
    return wanted


def _shortened(saved: Basis, now: Basis) -> bool:
    if now.steps is not None:
        return saved.steps is not None and now.steps < saved.steps
    return saved.steps is None and now.epochs < saved.epochs


def _reopened(now: Basis, point: Point) -> int:
    if now.after_change == 0:
        return 0
    return max(now.steps_per_epoch, round(now.after_change * point.planned))


def _moved(before: int, after: int) -> bool:
    return abs(after - before) > LENGTH_TOLERANCE * max(1, before)


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """``field: old -> new`` for each field that differs; a field the checkpoint does not know counts as unchanged."""
    return tuple(
        f"{name}: {_word(saved[name])} -> {_word(now[name])}"
        for name in sorted(set(saved) & set(now))
        if saved[name] != now[name]
    )


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def _symbols_sentence(saved: tuple[str, ...], now: tuple[str, ...]) -> str:
    gone = " ".join(s for s in saved if s not in now) or "nothing"
    new = " ".join(s for s in now if s not in saved) or "nothing"
    return f"vocabulary: {len(saved)} -> {len(now)} symbols (gone: {gone}; new: {new})"
