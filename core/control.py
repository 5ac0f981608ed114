"""A request to stop, on disk before any signal is sent: a signal cannot say whether to save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from core.run_dir import RunDir, read_json, write_json

Action = Literal["save", "discard"]
TRIES = 3
SECONDS_BETWEEN_TRIES = 0.5


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """``control.json``. Without a session it is meant for whichever one runs."""

    request: str
    session: str | None
    action: Action
    by: str
    at: float

    def concerns(self, session: str, since: float) -> bool:
        """Whether it asks this session, which began at ``since`` (Unix seconds), to stop."""
        return self.session == session or (self.session is None and self.at >= since)


def read_request(run: RunDir) -> StopRequest | None:
    """The request that lies in the run's directory, or None when there is none or it is torn."""
    values = read_json(run.control)
    if not isinstance(values, dict) or values.get("action") not in ("save", "discard"):
        return None
    session = values.get("session")
    try:
        return StopRequest(
            request=str(values.get("request", "")),
            session=None if session is None else str(session),
            action=values["action"],
            by=str(values.get("by", "")),
            at=float(values.get("at") or 0.0),
        )
    except (TypeError, ValueError):
        return None


def ask_to_stop(run: RunDir, asked: StopRequest, *, wait: Callable[[float], None] = time.sleep) -> StopRequest:
    """Write a request and return the one that now holds: a save never overrides the same session's discard.

    Raises OSError when it could not be written in three tries.
    """
    standing = read_request(run)
    if standing and standing.session == asked.session and standing.action == "discard" and asked.action == "save":
        return standing
    for _ in range(TRIES - 1):
        try:
            write_json(run.control, asdict(asked))
            return asked
        except OSError:
            wait(SECONDS_BETWEEN_TRIES)
    write_json(run.control, asdict(asked))
    return asked
