"""A session from lock to result. torch comes only once the run is ours, so that its owner is known at once."""

from __future__ import annotations

import time
import traceback
from contextlib import closing

from core.control import read_request
from core.errors import LaylError
from core.events import Crashed, EventLog, read_events
from core.lock import hold
from core.outcome import Outcome
from core.process import owner_facts
from core.run_dir import RunDir, read_json, write_json
from core.saying import or_said, say
from core.speech.config import SpeechRun
from core.status import fold
from train.finished import write_train_metrics
from train.session import Session
from train.views import StatusFile

#: How long a newcomer waits for a session that was asked to stop and is saving.
SAVE_GRACE_SECONDS = 120.0


def run_session(
    run: RunDir, config: SpeechRun, session: Session, *, frontend: str, on_change: str, flow_run: str | None = None
) -> Outcome:
    """Train until the run is finished or the session ends. Raises BusyError when another session holds the run."""
    with hold(run, wait_seconds=SAVE_GRACE_SECONDS if _is_ending(run) else 0.0):
        try:
            outcome = _outcome(run, config, session, frontend=frontend, on_change=on_change, flow_run=flow_run)
            with or_said():
                _write_result(run, session, outcome)
            with or_said():
                run.stop_file.unlink(missing_ok=True)
            return outcome
        finally:
            with or_said():
                run.owner.unlink(missing_ok=True)


def _own(run: RunDir, session: Session, frontend: str, flow_run: str | None) -> None:
    """Write down whose the run is now, and remove what was meant for the sessions before."""
    run.path.mkdir(parents=True, exist_ok=True)
    write_json(run.owner, owner_facts(frontend, session.id, flow_run))
    run.result.unlink(missing_ok=True)
    if session.clear_requests():
        say(f"removed a stop file of before this session: {run.stop_file}")


def _is_ending(run: RunDir) -> bool:
    """Whether the session that holds the run, if any, was asked to stop."""
    owner, asked = read_json(run.owner), read_request(run)
    holder = owner.get("session") if isinstance(owner, dict) else None
    return run.stop_file.exists() or (asked is not None and asked.session in (None, holder))


def _outcome(
    run: RunDir, config: SpeechRun, session: Session, *, frontend: str, on_change: str, flow_run: str | None
) -> Outcome:
    step_before = _step_of(run)
    try:
        _own(run, session, frontend, flow_run)

        from train.sitting import train_session

        outcome = train_session(run, config, session, frontend=frontend, on_change=on_change)
        if outcome.kind == "finished":
            write_train_metrics(run, read_json(run.last_facts) or {})
        return outcome
    except Exception as error:
        return _broken(run, error, step_before)


def _step_of(run: RunDir) -> int:
    return int((read_json(run.last_facts) or {}).get("step", 0))


def _broken(run: RunDir, error: Exception, step_before: int) -> Outcome:
    """An error as an outcome: invalid when somebody has to change something first, else crashed."""
    kind = {65: "invalid", 69: "busy"}.get(error.exit_code, "crashed") if isinstance(error, LaylError) else "crashed"
    words = str(error) if isinstance(error, LaylError) else f"{type(error).__name__}: {error}"
    say(words if isinstance(error, LaylError) else "".join(traceback.format_exception(error)).rstrip())
    step = _step_of(run)
    if kind == "crashed":
        _tell(run, Crashed(step=step, error=words))
    return Outcome(kind, step_before, step, words)  # type: ignore[arg-type]


def _tell(run: RunDir, event: Crashed) -> None:
    """Write the end down; a disk that is full must not hide what broke."""
    with or_said(), closing(EventLog(run.events)) as log:
        log(event)
        StatusFile(run, fold(read_events(run.events)[0]), time.time)(event)


def _write_result(run: RunDir, session: Session, outcome: Outcome) -> None:
    result = {
        "session": session.id,
        "outcome": outcome.kind,
        "from_step": outcome.from_step,
        "to_step": outcome.to_step,
        "reason": outcome.reason,
        "resumable": outcome.resumable,
        "exit_code": outcome.exit_code,
        "ended_at": round(time.time(), 3),
    }
    write_json(run.result, result)
