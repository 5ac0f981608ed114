"""What the Prefect server hears of a session: log lines, artifacts, events. All of it may fail; training goes on.

Calls of the server are made in a thread of their own, the newest progress instead of a queue: a server that is slow or
gone holds nothing up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from itertools import pairwise
from typing import Any, Self
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.events import emit_event

from core.events import Evaluated, Event, Rewarmed, Started, Trained
from core.outcome import Outcome
from core.status import Status
from core.telling import PlainProgress, progress_line
from core.words import caveat, rate, steps
from tasks.supervise import SessionRequest
from train.views import read_log, series

LOG_SECONDS = 30.0
ARTIFACT_SECONDS = 10.0
#: How long the end of a session waits for its last artifacts.
LAST_WORDS_SECONDS = 10.0
BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 50

log = logging.getLogger("layl")


class Reporter:
    """A listener of one session's events. A context: what is left to say is said at its end."""

    def __init__(self, wanted: SessionRequest, logger: Any, clock: Callable[[], float] = time.time):
        self._wanted = wanted
        self._clock = clock
        self._lines = PlainProgress(logger.info, clock, LOG_SECONDS)
        self._key = wanted.run.name.lower().replace("_", "-")
        self._progress: UUID | None = None
        self._due: dict[str, Callable[[], None]] = {}
        self._scores: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._shown_at = float("-inf")
        self._wake, self._closing = threading.Event(), False
        # the server is told by this flow run's context, which a thread does not inherit
        context = copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._work), name="prefect-report", daemon=True)

    @property
    def status(self) -> Status:
        return self._lines.status

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(LAST_WORDS_SECONDS)

    def __call__(self, event: Event) -> None:
        self._lines(event)
        now = self._clock()
        match event:
            case Started():
                self._notes = event.notes
            case Evaluated():
                self._scores.append(_score_row(event))
                self._later("table", self._write_table)
            case Rewarmed():
                self._tell("rewarm", {"step": event.step, "reason": event.reason})
            case Trained() if now - self._shown_at >= ARTIFACT_SECONDS:
                self._shown_at = now
                self._later("progress", self._write_progress)
            case _:
                pass

    def ended(self, outcome: Outcome) -> None:
        """The session's end: the last progress, its page, and an event."""
        self._later("progress", self._write_progress)
        self._later("page", lambda: self._write_page(outcome))
        self._tell(outcome.kind, {"step": outcome.to_step, "from_step": outcome.from_step, "reason": outcome.reason})

    def _later(self, name: str, act: Callable[[], None]) -> None:
        self._due[name] = act
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._due:
                name = next(iter(self._due))
                act = self._due.pop(name)
                try:
                    act()
                except Exception as error:  # a server that is gone must not end the training
                    log.warning("Prefect was not told of the %s: %s: %s", name, type(error).__name__, error)
            if self._closing:
                return

    def _tell(self, what: str, payload: dict[str, Any]) -> None:
        run = self._wanted.run.name
        resource = {"prefect.resource.id": f"layl.run.{run}", "prefect.resource.name": run}
        try:
            emit_event(f"layl.session.{what}", resource=resource, payload=payload)
        except Exception as error:  # as above
            log.warning("Prefect was not told of %s: %s: %s", what, type(error).__name__, error)

    def _write_progress(self) -> None:
        status = self.status
        percent = 100.0 * status.step / status.planned if status.planned else 0.0
        line = progress_line(status, self._clock())
        if self._progress is None:
            made = create_progress_artifact(percent, key=f"train-{self._key}", description=line)
            self._progress = made if isinstance(made, UUID) else UUID(str(made))
        else:
            update_progress_artifact(self._progress, progress=percent, description=line)

    def _write_table(self) -> None:
        create_table_artifact(
            self._scores,
            key=f"metrics-{self._key}",
            description=f"{self._wanted.run.name}: validations{self._caveat()}",
        )

    def _write_page(self, outcome: Outcome) -> None:
        create_markdown_artifact(
            session_page(self._wanted, outcome, self.status, self._notes, self._caveat()), key=f"session-{self._key}"
        )

    def _caveat(self) -> str:
        facts = self.status.facts
        return caveat(synthetic=bool(facts.get("synthetic")), seen=bool(facts.get("seen_in_training")))


def _score_row(event: Evaluated) -> dict[str, Any]:
    shown = {name: value for name, value in event.scores.items() if isinstance(value, int | float)}
    percents = {name: rate(value) for name, value in shown.items() if name.endswith(("cer", "wer", "skeleton"))}
    return {"step": event.step, "best": "best" if event.is_best else "", "error rate": rate(event.main), **percents}


def session_page(wanted: SessionRequest, outcome: Outcome, status: Status, notes: list[str], caveat: str) -> str:
    """How a session went, in markdown."""
    _, losses = series(read_log(wanted.run), "loss")
    lines = [
        f"# {wanted.run.name}: {outcome.kind} at step {steps(outcome.to_step, status.planned)}",
        outcome.reason,
        f"Steps {outcome.from_step:,} to {outcome.to_step:,} in session `{wanted.session}`.",
        "\n".join(f"- {note}" for note in notes),
        f"Best: {rate(status.best_score)}{caveat} at step {status.best_step:,}" if status.best_step else "",
        f"Loss: `{sparkline(losses)}`" if losses else "",
        f"Log: `{wanted.run.output}`, curves: `{wanted.run.plots}`",
        "" if outcome.kind == "finished" else "The next session goes on from there.",
    ]
    return "\n\n".join(line for line in lines if line)


def sparkline(values: list[float], width: int = SPARKS) -> str:
    """A row of ``width`` blocks at most, each the mean of its part of the values."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1))] for mean in means)
