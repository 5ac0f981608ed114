"""When a child that will not end is ended: a pure function of times, so that every row of it can be tested.

Times are Unix seconds on the supervisor's clock; a laptop that slept finds them passed, as it should.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from core.control import Action

log = logging.getLogger("layl")

Verdict = Literal["wait", "terminate", "kill"]
PREFIX = "LAYL_WATCHDOG_"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds a child may live: after its terminal event, after being asked to save or to discard, after SIGTERM."""

    ended: float = 15.0
    save: float = 600.0
    discard: float = 120.0
    terminated: float = 5.0


def patience(environ: Mapping[str, str]) -> Patience:
    """The figures of ``LAYL_WATCHDOG_ENDED``, ``_SAVE``, ``_DISCARD`` and ``_TERMINATED``; a bad one is the default."""
    found = Patience()
    for field in fields(Patience):
        text = environ.get(PREFIX + field.name.upper())
        if text is None:
            continue
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if 0 < seconds < float("inf"):
            found = replace(found, **{field.name: seconds})
        else:
            log.warning("%s%s=%r is no number of seconds; %g holds", PREFIX, field.name.upper(), text, field.default)
    return found


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a supervisor knows of a living child.

    asked, asked_at: the request to stop that concerns it; saved_at: its last save; ended_at: its terminal event;
    terminated_at: when it was sent SIGTERM by a verdict. None for what has not happened.
    """

    asked: Action | None = None
    asked_at: float | None = None
    saved_at: float | None = None
    ended_at: float | None = None
    terminated_at: float | None = None


def verdict(seen: Seen, now: float, patience: Patience) -> Verdict:
    """Whether to wait for the child, to send it SIGTERM, or to kill it with its group."""
    if seen.terminated_at is not None:
        return "kill" if now - seen.terminated_at >= patience.terminated else "wait"
    limits = []
    if seen.ended_at is not None:
        limits.append(seen.ended_at + patience.ended)
    if seen.asked is not None and seen.asked_at is not None:
        saved = seen.saved_at is not None and seen.saved_at >= seen.asked_at
        if seen.asked == "discard":
            limits.append(seen.asked_at + patience.discard)
        elif saved and seen.saved_at is not None:
            # its steps are on the disk: what is left to do takes no longer than leaving without them
            limits.append(min(seen.saved_at + patience.discard, seen.asked_at + patience.save))
        else:
            limits.append(seen.asked_at + patience.save)
    return "terminate" if limits and now >= min(limits) else "wait"
