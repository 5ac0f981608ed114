"""``layl train``: one session of a run, watched from a shell or a DVC stage."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from cli.place import FRONTEND, RUN, SET, Frontend, open_run
from core.errors import DataError
from core.run_dir import RunDir, read_json
from core.words import steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.outcome import Outcome
    from core.process import Mark

SHELLS = frozenset(
    [
        "sh",
        "bash",
        "dash",
        "ash",
        "zsh",
        "fish",
        "ksh",
        "mksh",
        "csh",
        "tcsh",
        "busybox",
        "cmd",
        "powershell",
        "pwsh",
        "layl",
    ]
)


class OnChange(StrEnum):
    """What to do when the run's checkpoints do not fit its configuration any more."""

    refuse = "refuse"
    archive = "archive"


def train(
    run: str = RUN,
    stop_at: str | None = typer.Option(
        None, "--stop-at", metavar="HH:MM", envvar="LAYL_STOP_AT", help="Save and end at the next such time of day."
    ),
    stop_after: str | None = typer.Option(
        None,
        "--stop-after",
        metavar="TIME",
        envvar="LAYL_STOP_AFTER",
        help="Save and end after 2h30m, 45m or 0.5 hours.",
    ),
    until_step: int | None = typer.Option(
        None, "--until-step", min=0, envvar="LAYL_UNTIL_STEP", help="Save and end at this step of the run."
    ),
    overrides: list[str] = SET,
    on_change: OnChange = typer.Option(
        OnChange.refuse,
        "--on-change",
        envvar="LAYL_ON_CHANGE",
        help="If a checkpoint no longer fits the configuration: refuse, or archive the run and begin anew.",
    ),
    frontend: Frontend = FRONTEND,
) -> None:
    """Train a run; again goes on where it ended.

    One session. Ctrl+C, `layl stop RUN` or a limit ends the session: the step is finished and saved. Nothing is lost
    and nothing is trained twice. Of several limits the first to come counts. Exit codes: 0 the run is
    finished, 75 saved with steps left, 76 ended without saving, 69 another session trains it, 65 the
    configuration or data cannot be used, 70 it crashed.

    \b
      layl train quran
      layl train quran --stop-at 06:30
      layl train quran --stop-after 2h30m --set train.num_workers=2
    """
    from cli.progress import progress_for
    from tasks.supervise import SessionRequest, new_session_id, supervise
    from train.finished import already_finished

    directory, config = open_run(run, overrides)
    start = datetime.now().astimezone()
    stop_at_seconds = first_limit(stop_at, stop_after, start)
    if not directory.manifests.is_dir():
        # what the trainer would say seconds later
        raise DataError(f"{directory.manifests} does not exist; run `layl prepare {run}` first")
    sentence = already_finished(directory, config)
    if sentence is not None:
        typer.echo(sentence)
        return
    wanted = SessionRequest(
        run=directory,
        session=new_session_id(start),
        frontend=frontend.value,
        stop_at=stop_at_seconds,
        until_step=until_step,
        overrides=tuple(overrides),
        on_change=on_change.value,
        watch=_watched() if frontend is Frontend.dvc else None,
    )
    with progress_for(frontend.value) as progress:
        progress.say(f"run {run}: session {wanted.session}; Ctrl+C saves and ends it")
        outcome = supervise(wanted, [progress], say=progress.say)
    planned = progress.status.planned or _planned(directory)
    saved = outcome.kind in ("finished", "paused", "stopped", "discarded")
    typer.echo(closing(outcome, run, planned), err=not saved)
    if overrides and outcome.exit_code in (75, 76):
        typer.echo(
            f"this session's --set {' --set '.join(overrides)} were for once: give them again to go on with them"
        )
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def first_limit(stop_at: str | None, stop_after: str | None, start: datetime) -> float | None:
    """When the session ends at the latest, in Unix seconds. Raises ConfigError for times that are none."""
    from train.session import parse_duration, resolve_stop_at

    limits = []
    if stop_at:
        limits.append(resolve_stop_at(stop_at, None, start).timestamp())
    if stop_after:
        limits.append(start.timestamp() + parse_duration(stop_after))
    return min(limits, default=None)


def closing(outcome: Outcome, run: str, planned: int) -> str:
    """How the session ended and how to go on."""
    at = steps(outcome.to_step, planned).replace("/", " of ")
    again = f"`layl train {run}` (or `dvc repro`)"
    because = f" ({outcome.reason})" if outcome.reason else ""
    stands = f"saved at step {at}" if outcome.to_step else "nothing is saved yet"
    onwards = f"{again} goes on" if outcome.to_step else f"{again} begins again"
    match outcome.kind:
        case "finished":
            return f"finished at step {at}{because}; `layl export {run}` makes the model to ship"
        case "paused" | "stopped":
            return f"{stands}{because}; {onwards}"
        case "discarded":
            stays = f"the run is where its last checkpoint is, at step {at}" if outcome.to_step else stands
            return f"ended without saving{because}; {stays}; {onwards}"
        case "crashed":
            return f"{outcome.reason}\ncrashed; {stands}; {onwards}; all of its output: runs/{run}/output.log"
        case _:
            return outcome.reason


def ancestor_to_watch(ancestors: Iterable[tuple[str, Mark]]) -> Mark | None:
    """The nearest that is no shell: when DVC dies, the shell between it and us lives on. Nearest first."""
    for name, mark in ancestors:
        if name.casefold().removesuffix(".exe").lstrip("-") not in SHELLS:
            return mark
    return None


def _watched() -> Mark | None:
    import psutil

    from core.process import Mark

    ancestors = []
    for process in psutil.Process().parents():
        try:
            ancestors.append((process.name(), Mark(process.pid, process.create_time())))
        except psutil.Error:
            break
    return ancestor_to_watch(ancestors)


def _planned(run: RunDir) -> int:
    facts = read_json(run.last_facts)
    planned = facts.get("planned") if isinstance(facts, dict) else None
    return planned if isinstance(planned, int) else 0
