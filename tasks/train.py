"""The train stage as a Prefect task: one attempt of a session; the next attempt goes on from its last checkpoint."""

from __future__ import annotations

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext

from core.outcome import Outcome
from core.run_dir import RunDir, read_json
from tasks.report import Reporter
from tasks.supervise import SessionRequest, supervise

RETRY_DELAYS_SECONDS = [30.0, 120.0, 600.0]
#: A look at the run directory now and then is enough for a log that has a line every 30 s.
POLL_SECONDS = 0.5


class SessionFailed(RuntimeError):
    """A session that crashed, or a configuration or data that cannot be used; the reason is the trainer's own."""

    def __init__(self, outcome: Outcome):
        super().__init__(f"{outcome.kind} at step {outcome.to_step:,}: {outcome.reason}")
        self.outcome = outcome


# results are never kept: a cached pause would be given again the next night instead of training
@task(name="train", task_run_name="train-{wanted.run.name}", cache_policy=NO_CACHE, persist_result=False)
def train_session(wanted: SessionRequest) -> Outcome:
    """One attempt. Raises SessionFailed when it crashed or could not begin."""
    context, logger = TaskRunContext.get(), get_run_logger()
    if context is not None and context.task_run.run_count > 1:
        step = (read_json(wanted.run.last_facts) or {}).get("step", 0)
        logger.info("attempt %d continues at step %s", context.task_run.run_count, f"{step:,}")
    with Reporter(wanted, logger) as reporter:
        outcome = supervise(wanted, [reporter], say=logger.info, poll_seconds=POLL_SECONDS, own_signals=False)
        reporter.ended(outcome)
    if outcome.kind in ("crashed", "invalid"):
        raise SessionFailed(outcome)
    return outcome


def retried(wanted: SessionRequest) -> Any:
    """``train_session`` with retries: of a crash that got further than the attempt before, and of any first one."""

    def worth_another_try(_: Any, task_run: Any, __: Any) -> bool:
        return is_worth_another_try(wanted.run, wanted.session, task_run.run_count)

    return train_session.with_options(
        retries=len(RETRY_DELAYS_SECONDS),
        retry_delay_seconds=RETRY_DELAYS_SECONDS,
        retry_condition_fn=worth_another_try,
    )


def is_worth_another_try(run: RunDir, session: str, attempts: int) -> bool:
    """Whether the attempt that just ended crashed, and either got further or was the first. From ``result.json``."""
    result = read_json(run.result)
    if not isinstance(result, dict) or result.get("session") != session or result.get("outcome") != "crashed":
        return False
    return attempts <= 1 or result.get("to_step", 0) > result.get("from_step", 0)
