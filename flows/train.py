"""``prefect deployment run train/quran``: one session of a run, its outcome as a state of the flow run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as this
from prefect.states import Completed

from core.outcome import Outcome
from core.project import read_run
from core.run_dir import RunDir, find_root, read_json
from tasks.drivers import take_over
from tasks.limits import Limits, as_overrides, limits
from tasks.server import mark_crashed
from tasks.supervise import SessionRequest, new_session_id
from tasks.train import retried
from tasks.version import version
from train.finished import already_finished

#: The names under which people find an outcome again; they differ from "Completed", so that automations can tell them.
STATE_NAMES = {
    "finished": "Completed",
    "paused": "PausedAtDeadline",
    "stopped": "StoppedByUser",
    "discarded": "Discarded",
    "busy": "SkippedBusy",
}


def run_name() -> str:
    """``train-quran 23:00 -> 06:30``."""
    given = this.parameters
    start = this.scheduled_start_time
    began = f" {start.astimezone():%H:%M}" if start else ""
    until = f" -> {given['stop_at']}" if given.get("stop_at") else ""
    return f"train-{given.get('run', '')}{began}{until}"


@flow(name="train", flow_run_name=run_name, persist_result=False)
def train(
    run: str = "quran",
    stop_at: str | int | None = None,
    stop_after: str | float | None = None,
    until_step: int | None = None,
    overrides: dict[str, Any] | None = None,
    on_cancel: Literal["save", "discard"] = "save",
    on_change: Literal["refuse", "archive"] = "refuse",
) -> State[Any]:
    """Train a run until it is finished or the session ends; the next flow run goes on there.

    run: the name of a file in configs/, without .yaml. stop_at: save and end at the next such time of day ("06:30").
    stop_after: save and end after "2h30m" or hours. until_step: save and end at this step of the run.
    overrides: fields of the configuration for this session, such as {"train.num_workers": 2}. on_cancel: whether a
    cancelled session saves first. on_change: what to do when a checkpoint no longer fits the configuration.
    """
    return session(
        run,
        stop_at=stop_at,
        stop_after=stop_after,
        until_step=until_step,
        overrides=overrides,
        on_cancel=on_cancel,
        on_change=on_change,
    )


def session(
    run: str,
    *,
    stop_at: str | int | None,
    stop_after: str | float | None,
    until_step: int | None,
    overrides: dict[str, Any] | None,
    on_cancel: Literal["save", "discard"],
    on_change: Literal["refuse", "archive"],
) -> State[Any]:
    """One session within the flow that runs: unless it is late, with retries, and what it came to as a state."""
    named = as_overrides(overrides)
    directory, config = read_run(find_root(), run, named)
    end = _limits(stop_at, stop_after, config.train.min_session_minutes, config.train.max_late_hours)
    if end.late:
        return Completed(name="SkippedLate", message=f"no session: {end.late}")
    wanted = SessionRequest(
        run=directory,
        session=new_session_id(datetime.now().astimezone()),
        frontend="prefect",
        flow_run=str(this.id),
        stop_at=end.stop_at,
        until_step=until_step,
        overrides=named,
        on_change=on_change,
        on_cancel=on_cancel,
    )
    if gone := take_over(directory, str(this.id), wanted.session):
        mark_crashed(gone, f"its process is gone; {_stands(directory)}", get_run_logger())
    sentence = already_finished(directory, config)
    outcome = Outcome("finished", 0, 0, sentence) if sentence else retried(wanted)(wanted)
    if outcome.kind == "finished":
        version(directory, "train")
    return state_of(outcome, directory)


def _limits(stop_at: Any, stop_after: Any, min_session_minutes: float, max_late_hours: float) -> Limits:
    now = datetime.now(UTC)
    context = FlowRunContext.get()
    by_schedule = bool(context and context.flow_run and context.flow_run.auto_scheduled)
    return limits(
        this.scheduled_start_time or now,
        now,
        stop_at=None if stop_at is None else str(stop_at),
        stop_after=None if stop_after is None else str(stop_after),
        # a short session that a person asks for is meant
        min_session_seconds=60 * min_session_minutes if by_schedule else 0.0,
        max_late_seconds=3600 * max_late_hours,
    )


def state_of(outcome: Outcome, run: RunDir) -> State[Any]:
    """The final state of a flow run whose session came to ``outcome``."""
    match outcome.kind:
        case "paused" | "stopped":
            said = f"{_stands(run)} ({outcome.reason}); the next session continues"
        case "discarded":
            said = f"ended without saving; {_stands(run)}"
        case _:
            said = outcome.reason or _stands(run)
    return Completed(name=STATE_NAMES[outcome.kind], message=said)


def _stands(run: RunDir) -> str:
    facts = read_json(run.last_facts) or {}
    if not facts.get("step"):
        return "nothing is saved yet"
    return f"saved at step {facts['step']:,} of {facts.get('planned', 0):,}"


if __name__ == "__main__":
    train()
