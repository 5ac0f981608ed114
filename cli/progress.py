"""What a person sees of a session: one line that changes on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, Self

import typer

from core.events import Event
from core.status import Status, step_status
from core.telling import PlainProgress, progress_line, sentences


class Progress(Protocol):
    """A listener with the state it has heard of; ``say`` prints a line without disturbing it."""

    status: Status

    def __call__(self, event: Event) -> None: ...
    def say(self, sentence: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...


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
    return TerminalProgress() if frontend == "shell" and sys.stdout.isatty() else PlainProgress(typer.echo)
