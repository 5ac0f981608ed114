"""What the end of a child means, from what it left behind. Pure: no files, no clock, no processes."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, cast

from core.control import Action
from core.events import Event, Finished, Paused
from core.outcome import EXIT_CODES, Kind, Outcome

TAIL_LINES = 40
TAIL_CHARACTERS = 4000


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is left of a child that ended.

    ``code`` is as of subprocess (-n: died by signal n), ``result`` this session's result.json, ``last_event`` its
    terminal event, ``asked`` the stop request that concerns it, ``saved_step`` the step of last.pt, ``words`` the
    end of its output.
    """

    code: int
    result: dict[str, Any] | None = None
    last_event: Event | None = None
    asked: Action | None = None
    from_step: int = 0
    saved_step: int = 0
    words: str = ""


def what_it_means(ending: Ending) -> Outcome:
    """The outcome: what the child wrote down, else what its exit code promises, else what its death looks like."""
    if ending.result is not None:
        return _written(ending.result, ending)
    by_code = _by_exit_code(ending)
    if by_code is not None:
        return by_code
    landed = _landed(ending)
    if landed is not None:
        return landed
    if ending.asked is not None and _signal_number(ending.code) is not None:
        kind: Kind = "discarded" if ending.asked == "discard" else "stopped"
        return _outcome(kind, ending, f"left at once when asked to stop; {_back_to(ending.saved_step)}")
    return _outcome("crashed", ending, _last_words(ending))


def _written(result: dict[str, Any], ending: Ending) -> Outcome:
    kind = result.get("outcome")
    if kind not in EXIT_CODES:
        return _outcome("crashed", ending, f"result.json speaks of an outcome {kind!r} that this layl does not know")
    return Outcome(
        cast(Kind, kind),
        _whole(result.get("from_step"), ending.from_step),
        _whole(result.get("to_step"), ending.saved_step),
        str(result.get("reason") or ""),
        bool(result.get("resumable", True)),
    )


def _by_exit_code(ending: Ending) -> Outcome | None:
    said = ending.words
    match ending.code:
        case 0:
            return _outcome("finished", ending, _event_reason(ending))
        case 75:
            return _outcome("stopped" if ending.asked else "paused", ending, _event_reason(ending))
        case 76:
            return _outcome("discarded", ending, _event_reason(ending))
        case 69:
            return _outcome("busy", ending, said or "another session has the run")
        case 65:
            return _outcome("invalid", ending, said or "the configuration or the data cannot be used", resumable=False)
        case _:
            return None


def _landed(ending: Ending) -> Outcome | None:
    """A save that reached the disk counts, even if the child died before it could report."""
    event = ending.last_event
    if event is None or ending.saved_step < event.step:
        return None
    if isinstance(event, Finished):
        return _outcome("finished", ending, event.reason)
    if isinstance(event, Paused) and event.kind in ("paused", "stopped"):
        return _outcome(cast(Kind, event.kind), ending, event.reason)
    return None


def _outcome(kind: Kind, ending: Ending, reason: str, *, resumable: bool = True) -> Outcome:
    return Outcome(kind, ending.from_step, ending.saved_step, reason, resumable)


def _event_reason(ending: Ending) -> str:
    return ending.last_event.reason if isinstance(ending.last_event, Paused | Finished) else ""


def _back_to(step: int) -> str:
    return f"the checkpoint of step {step:,} stays" if step else "there is no checkpoint yet"


def _last_words(ending: Ending) -> str:
    number = _signal_number(ending.code)
    how = f"exit code {ending.code}" if number is None else f"killed by {_signal_name(number)}"
    if number == 9:
        how += " (the system does that when memory runs out)"
    return f"{how}\n{ending.words}" if ending.words else f"{how}, without a word"


def _signal_number(code: int) -> int | None:
    """The signal a process died by: -n of subprocess, or 128 + n as shells and some handlers put it."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 192 else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def tail(text: str) -> str:
    """The last lines of an output, short enough to be a reason."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return "\n".join(lines[-TAIL_LINES:])[-TAIL_CHARACTERS:]
