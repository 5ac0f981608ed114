"""One sitting: when it has to end. Signals only raise a flag; the loop asks between steps. No torch here."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from core.control import read_request
from core.errors import ConfigError
from core.process import Mark, is_alive
from core.run_dir import RunDir

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


@dataclass(frozen=True)
class Stop:
    """Why the session ends: ``paused`` at a limit, ``stopped`` by somebody, ``discarded`` without saving."""

    kind: str
    reason: str


def resolve_stop_at(text: str, zone: str | None, start: datetime) -> datetime:
    """The first time of day ``text`` (HH:MM or HH:MM:SS) after ``start`` (aware), in ``zone`` or start's own.

    A time that a clock change skips is the instant the clock would have shown it without the change; one that
    comes twice counts twice.
    Raises ConfigError.
    """
    found = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text.strip())
    if found is None:
        hint = (
            "; a whole number is what YAML 1.1 makes of an unquoted 23:30: write it in quotes"
            if text.strip().isdigit()
            else ""
        )
        raise ConfigError("stop-at", [f"{text!r} is no time of day; expected HH:MM or HH:MM:SS, such as 06:30{hint}"])
    hour, minute, second = (int(part or 0) for part in found.groups())
    if hour > 23 or minute > 59 or second > 59:
        raise ConfigError("stop-at", [f"{text!r} is no time of day; hours go to 23, minutes and seconds to 59"])
    try:
        place = ZoneInfo(zone) if zone else None
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError("stop-at", [f"no time zone {zone!r}; expected a name such as Europe/Zurich"]) from None
    for days in range(3):
        day = start.astimezone(place).date() + timedelta(days=days)
        clock = datetime(day.year, day.month, day.day, hour, minute, second)
        for instant in _instants(clock, place):
            if instant > start.timestamp():
                return datetime.fromtimestamp(instant, place).astimezone(place)
    raise AssertionError("a day has every time of day")


def _instants(clock: datetime, place: ZoneInfo | None) -> list[float]:
    """When a clock in ``place`` (None: here) shows ``clock``: once, twice, or never, and then the later reading."""
    folds = [clock.replace(tzinfo=place, fold=fold) for fold in (0, 1)]
    readings = sorted({folded.timestamp() for folded in folds})
    shown = [t for t in readings if datetime.fromtimestamp(t, place).replace(tzinfo=None, fold=0) == clock]
    return shown or readings[-1:]


def parse_duration(text: str) -> float:
    """Seconds of ``2h30m``, ``45m``, ``90s`` or plain hours (``2``, ``0.5``). Raises ConfigError."""
    plain = text.strip().lower()
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", plain)
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        seconds = float(plain) * 3600
    elif plain and found:
        hours, minutes, rest = (float(part or 0) for part in found.groups())
        seconds = hours * 3600 + minutes * 60 + rest
    else:
        raise ConfigError("stop-after", [f"{text!r} is no duration; expected 2h30m, 45m or hours such as 0.5"])
    if seconds <= 0:
        raise ConfigError("stop-after", [f"{text!r} is no time at all; expected more than zero"])
    return seconds


class Session:
    """Says between steps whether to stop, from signals, files, the clock and a step limit.

    ``clock`` gives Unix seconds and is read every step, so a laptop that slept past its deadline ends at once.
    """

    def __init__(
        self,
        run: RunDir,
        session: str,
        *,
        stop_at: float | None = None,
        until_step: int | None = None,
        clock: Callable[[], float] = time.time,
    ):
        self.run = run
        self.id = session
        self.stop_at = stop_at
        self.until_step = until_step
        self.clock = clock
        self._started = clock()
        self._flag: str | None = None
        self._signals = 0

    def request(self, reason: str) -> None:
        """Ask for a stop with save; safe in signal handlers and threads."""
        self._flag = self._flag or reason

    def stop_reason(self, step: int, reserve: float = 0.0) -> Stop | None:
        """Why the session has to end after ``step`` updates, or None. ``reserve``: seconds that ending itself takes."""
        action = self._asked()
        if action == "discard":
            return Stop("discarded", "asked to stop without saving")
        if action == "save":
            return Stop("stopped", "asked to stop")
        if self._flag:
            return Stop("stopped", self._flag)
        if self.stop_at is not None and (now := self.clock()) + reserve >= self.stop_at:
            end = f"{datetime.fromtimestamp(self.stop_at):%H:%M}, the session's end"
            return Stop("paused", f"it is {end}" if now >= self.stop_at else f"saving has to be done by {end}")
        if self.until_step is not None and step >= self.until_step:
            return Stop("paused", f"step {self.until_step:,} was the session's last")
        return None

    def too_late_for(self, seconds: float, what: str) -> Stop | None:
        """Why the session has to end when ``what``, which takes ``seconds``, would end after the deadline, or None."""
        if self.stop_at is None or self.clock() + seconds < self.stop_at:
            return None
        end = datetime.fromtimestamp(self.stop_at)
        return Stop("paused", f"{what} ({seconds:.0f} s) would not end before {end:%H:%M}, the session's end")

    def interrupted(self) -> bool:
        """Somebody asked to stop, now (the step limit does not interrupt a validation; the rest does)."""
        return self.stop_reason(-1) is not None

    def _asked(self) -> str | None:
        if self.run.stop_file.exists():
            return "save"
        if not self.run.control.exists():
            return None
        asked = read_request(self.run)
        return asked.action if asked is not None and asked.concerns(self.id, self._started) else None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Turn stop signals into a request while the body runs; the handlers of before come back afterwards."""
        before: dict[int, Any] = {}
        for name in STOP_SIGNALS:
            if hasattr(signal, name):
                number = getattr(signal, name)
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup, a job in the background: ignored on purpose
                before[number] = signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: set by something that is not Python, and not ours to bring back
                if handler is not None:
                    signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self._signals += 1
        if self._signals > 1:
            # at once, touching no file: last.pt is whole whatever was being written
            os._exit(128 + number)
        self.request(f"got {signal.Signals(number).name}")

    def clear_requests(self) -> bool:
        """Remove the stop file, and a request meant for another session; whether there was a stop file to remove."""
        stale = self.run.stop_file.exists()
        self.run.stop_file.unlink(missing_ok=True)
        asked = read_request(self.run)
        if asked is None or asked.session != self.id:
            self.run.control.unlink(missing_ok=True)
        return stale


def watch_parent(session: Session, watched: list[Mark], *, stdin: bool, grace_seconds: float) -> None:
    """Ask for a stop with save when stdin ends or a watched process is gone; ``grace_seconds`` later end this one."""

    def gone(reason: str) -> None:
        session.request(reason)
        timer = threading.Timer(grace_seconds, lambda: os._exit(70))
        timer.daemon = True
        timer.start()

    def read_to_end() -> None:
        # not sys.stdin: a thread that waits in it makes the interpreter abort at exit
        while os.read(0, 4096):
            pass
        gone("whoever started this session is gone")

    def poll() -> None:
        while all(is_alive(mark) for mark in watched):
            time.sleep(1.0)
        gone("whoever started this session is gone")

    if stdin:
        threading.Thread(target=read_to_end, name="stdin-watch", daemon=True).start()
    if watched:
        threading.Thread(target=poll, name="parent-watch", daemon=True).start()
