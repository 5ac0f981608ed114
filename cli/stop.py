"""``layl stop``: asks a session to end, wherever it was started."""

from __future__ import annotations

import secrets
import time

import typer

from cli.place import RUN
from core.run_dir import read_json


def stop(
    run: str = RUN,
    discard: bool = typer.Option(False, "--discard", help="Save nothing new; go back to the last checkpoint."),
) -> None:
    """Ask the session that trains a run to save and end.

    It finishes the step it is in, saves, and ends; the next `layl train RUN` goes on with the very next
    step. If no session trains the run, nothing is done and the exit code is 1.

    \b
      layl stop quran
      layl stop quran --discard
    """
    from core.control import StopRequest, ask_to_stop
    from core.lock import owner_line
    from core.process import owner_is_alive
    from core.project import known_run
    from core.run_dir import find_root

    directory = known_run(find_root(), run)
    owner = read_json(directory.owner)
    if owner is None or not owner_is_alive(owner):
        typer.echo(f"{run}: no session is running, so there is none to stop; see `layl status {run}`", err=True)
        raise typer.Exit(1)
    request = StopRequest(
        request=secrets.token_hex(6),
        session=owner.get("session"),
        action="discard" if discard else "save",
        by="layl stop",
        at=time.time(),
    )
    try:
        standing = ask_to_stop(directory, request)
    except OSError as error:
        typer.echo(f"{run}: the request could not be written ({error}); training goes on", err=True)
        raise typer.Exit(1) from None
    if standing.action == "discard":
        then = "ends without saving"
    else:
        then = "saves and ends after its step"
    typer.echo(f"{run}: {owner_line(owner)} {then}; `layl status {run}` shows when")
    if standing is not request:
        typer.echo(f"{run}: it had been asked to discard before, and that stays", err=True)
