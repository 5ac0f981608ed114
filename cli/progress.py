"""What a person sees of a session: one line that changes on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import typer

from cli.words import caveat, duration, rate, steps, time_of_day
from core.events import Evaluated, Event, Rewarmed, SaveFailed, Skipped, Started, Trained, Warned
from core.status import Status, step_status

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


class Progress(Protocol):
    """A listener with the state it has heard of; ``say`` prints a line without disturbing it."""

    status: Status

    def __call__(self, event: Event) -> None: ...
    def say(self, sentence: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...


class PlainProgress:
    """A line every few seconds, for files, pipes and DVC."""

    def __init__(
        self,
        write: Callable[[str], None] = typer.echo,
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


class TerminalProgress:
    """One line that changes in place, with what is worth keeping above it."""

    def __init__(self, clock: Callable[[], float] = time.time):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        self.status = Status()
        self._clock = clock
        line = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._live = Progress(
            SpinnerColumn(), BarColumn(bar_width=20), line,
            console=Console(highlight=False), transient=True, refresh_per_second=4,
        )  # fmt: skip
        self._task = self._live.add_task("starting", total=None)

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self.status = step_status(self.status, event, now)
        for sentence in sentences(event, self.status.facts):
            self.say(sentence)
        text = progress_line(self.status, now)
        total = self.status.planned or None
        self._live.update(self._task, description=text, completed=self.status.step, total=total)

    def say(self, sentence: str) -> None:
        self._live.console.print(sentence, markup=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()


def progress_for(frontend: str) -> Progress:
    """The changing line for a person at a terminal, plain lines for everybody else."""
    return TerminalProgress() if frontend == "shell" and sys.stdout.isatty() else PlainProgress()
