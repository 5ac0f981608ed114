"""``layl reset``: puts a run aside, so that the next session begins anew."""

from __future__ import annotations

import typer

from cli.place import RUN, say_root


def reset(
    run: str = RUN,
    yes: bool = typer.Option(False, "--yes", help="Do it. Without this, only says what would happen."),
    purge: bool = typer.Option(False, "--purge", help="Delete the run's directory instead of archiving it."),
) -> None:
    """Put a run aside, so that training begins anew.

    Renames runs/RUN/ to runs/archive/RUN-1/ (or -2, ...), with every checkpoint in it; with --purge it
    is deleted for good. Manifests and exported models stay. While a session trains the run the exit code is 69.

    \b
      layl reset quran --yes
      layl reset quran --yes --purge
    """
    from core import archive
    from core.lock import hold
    from core.project import known_run
    from core.run_dir import find_root

    root = find_root()
    say_root(root)
    directory = known_run(root, run)
    if not yes:
        act = f"delete {directory.path} for good" if purge else f"move {directory.path} into {directory.archive}"
        typer.echo(f"nothing done; with --yes this would {act}", err=True)
        raise typer.Exit(2)
    with hold(directory):
        if not directory.path.exists():
            typer.echo(f"{run}: there is no {directory.path}; nothing to put aside")
        elif purge:
            archive.purge(directory)
            typer.echo(f"{run}: {directory.path} is deleted")
        else:
            target = archive.archive(directory)
            typer.echo(f"{run}: everything is in {target} now; `layl train {run}` begins anew")
