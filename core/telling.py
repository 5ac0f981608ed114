"""What is told of a session in words: sentences that stay, and a line of where it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from core.events import Evaluated, Event, Rewarmed, SaveFailed, Skipped, Started, Trained, Warned
from core.status import Status, step_status
from core.words import caveat, duration, rate, steps, time_of_day

PLAIN_EVERY_SECONDS = 10.0


def progress_line(status: Status, now: float) -> str:
    """Where a session is: step, loss, learning rate, speed, time to go, best score, and when it pauses."""
    parts = [status.phase] if status.phase != "training" else []
    if status.planned:
        parts.append(f"step {steps(status.step, status.planned)}")
    if status.epochs:
        parts.append(f"epoch {status.epoch}/{status.epochs:g}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.lr is not None:
        parts.append(f"lr {status.lr:.1e}")
    if status.units_per_second is not None:
        parts.append(f"{status.units_per_second:,.0f} h/h")
    if status.eta_seconds is not None:
        parts.append(f"{duration(status.eta_seconds)} to go")
    if status.best_score is not None:
        parts.append(f"best {rate(status.best_score)}")
    if status.stop_at is not None and not status.ended:
        parts.append(f"pauses at {time_of_day(status.stop_at)} in {duration(status.stop_at - now)}")
    return "  ".join(parts)


def sentences(event: Event, facts: Mapping[str, Any] | None = None) -> list[str]:
    """What of an event is worth a line that stays. ``facts`` are the session's: scores never without their caveat."""
    match event:
        case Started():
            return event.notes
        case Evaluated():
            best = ", the best so far" if event.is_best else ""
            known = facts or {}
            kind = caveat(synthetic=bool(known.get("synthetic")), seen=bool(known.get("seen_in_training")))
            return [f"step {event.step:,}: error rate {rate(event.main)} on the validation clips{kind}{best}"]
        case Rewarmed():
            return [f"step {event.step:,}: the learning rate warms up again: {event.reason}"]
        case Skipped():
            return [f"step {event.step:,}: a batch was skipped ({event.batch}): {event.reason}"]
        case Warned():
            return [f"step {event.step:,}: {event.message}"]
        case SaveFailed():
            return [f"step {event.step:,}: saving failed: {event.error}"]
        case _:
            return []


class PlainProgress:
    """A line every few seconds, for files, pipes and DVC."""

    def __init__(
        self,
        write: Callable[[str], None] = print,
        clock: Callable[[], float] = time.time,
        every_seconds: float = PLAIN_EVERY_SECONDS,
    ):
        self.status = Status()
        self._write = write
        self._clock = clock
        self._every = every_seconds
        self._written_at = float("-inf")

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self.status = step_status(self.status, event, now)
        for sentence in sentences(event, self.status.facts):
            self._write(sentence)
        if isinstance(event, Trained) and now - self._written_at >= self._every:
            self._written_at = now
            self._write(progress_line(self.status, now))

    def say(self, sentence: str) -> None:
        self._write(sentence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None
