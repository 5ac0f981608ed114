"""What a run says about itself: a frozen dataclass an event, a JSON line each. The log is the truth, all else a view.

A torn line may stand anywhere in the file (a kill, then a new session): the writer begins on a new line,
readers skip what is torn and count it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.run_dir import Lines


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The run entered a phase: starting, preparing, training, validating, saving, stopping."""

    step: int
    phase: str


@dataclass(frozen=True, kw_only=True)
class Started:
    """A session begins at ``step``; whatever an earlier one said beyond it is retracted."""

    step: int
    planned: int
    epoch: int
    epochs: float
    steps_per_epoch: int
    session: str
    frontend: str
    device: str
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    stop_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A log line: means over the steps since the last one. Losses are per unit, ``lr`` is the last step's."""

    step: int
    planned: int
    epoch: int
    loss: float | None
    lr: float
    grad_norm: float | None
    units_seen: float
    elapsed_seconds: float
    units_per_second: float | None
    gpu_peak_bytes: int | None
    skipped: int
    eta_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A validation: ``main`` is the score that decides (lower is better), ``scores`` all of them."""

    step: int
    epoch: int
    main: float
    scores: dict[str, Any]
    is_best: bool
    elapsed_seconds: float
    units_seen: float
    valid_id: str


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint is on the disk."""

    step: int
    file: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SaveFailed:
    """A checkpoint could not be written; the old file is intact and training goes on."""

    step: int
    error: str


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A batch that made no update: why, and what it held."""

    step: int
    reason: str
    batch: str


@dataclass(frozen=True, kw_only=True)
class Warned:
    """Something that people should know of, and that ends nothing."""

    step: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Rewarmed:
    """The learning rate warms up again from ``step``."""

    step: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Paused:
    """The session ends before the run does: at a limit (paused), by a person (stopped), without saving (discarded)."""

    step: int
    planned: int
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The run has all its steps."""

    step: int
    planned: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """An error ended the session; the last checkpoint stays."""

    step: int
    error: str


Event = (
    Phase
    | Started
    | Trained
    | Evaluated
    | Saved
    | SaveFailed
    | Skipped
    | Warned
    | Rewarmed
    | Paused
    | Finished
    | Crashed
)
Emit = Callable[[Event], None]

EVENT_TYPES: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(Event)}
TERMINAL = (Paused, Finished, Crashed)


def to_line(event: Event, at: float) -> str:
    """One JSON line; a number that is not finite becomes null."""
    values = {"event": type(event).__name__, "at": round(at, 3), **dataclasses.asdict(event)}
    line = json.dumps(_finite(values), ensure_ascii=False) + "\n"
    # half a character (of a file name that is not UTF-8) becomes \udcff, which JSON reads back as it was
    return line.encode("utf-8", "backslashreplace").decode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def from_line(line: str) -> tuple[Event, float] | None:
    """The event of a line and its time (Unix seconds), or None when the line is torn or of another layl."""
    try:
        values = json.loads(line)
        kind = EVENT_TYPES[values.pop("event")]
        at = float(values.pop("at"))
        known = {f.name for f in dataclasses.fields(kind)}
        return kind(**{k: v for k, v in values.items() if k in known}), at
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class EventLog:
    """Appends events to a file. ``sync`` makes them survive a power cut: call it before the save that covers them."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._lines = Lines(path)

    def __call__(self, event: Event) -> None:
        self._lines.write(to_line(event, self._clock()))

    def sync(self) -> None:
        self._lines.sync()

    def close(self) -> None:
        self._lines.close()


def read_events(path: Path) -> tuple[list[tuple[Event, float]], int]:
    """All events of a log with their times, and how many lines were torn."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    events, torn = [], 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        parsed = from_line(line.decode("utf-8", errors="replace"))
        if parsed is None:
            torn += 1
        else:
            events.append(parsed)
    return events, torn


class Follower:
    """Reads what is appended to a log: each call of ``poll`` gives the whole new lines since the last."""

    def __init__(self, path: Path, *, from_end: bool = False):
        self._path = path
        self._file: tuple[int, int] | None = None
        self._position = 0
        if from_end and path.exists():
            found = path.stat()
            self._file, self._position = (found.st_dev, found.st_ino), found.st_size

    def poll(self) -> Iterator[tuple[Event, float]]:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._file != (found.st_dev, found.st_ino):
                    # the run was archived and begins anew
                    self._file, self._position = (found.st_dev, found.st_ino), 0
                self._position = min(self._position, found.st_size)
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._position += whole
        for line in data[:whole].split(b"\n"):
            parsed = from_line(line.decode("utf-8", errors="replace")) if line.strip() else None
            if parsed is not None:
                yield parsed
