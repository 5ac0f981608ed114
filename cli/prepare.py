"""``layl prepare``: raw recordings to manifests."""

from __future__ import annotations

import typer

from cli.place import RUN, SET, open_run


def prepare(
    run: str = RUN,
    strict: bool = typer.Option(False, "--strict", help="Publish nothing when something leaks between splits."),
    overrides: list[str] = SET,
) -> None:
    """Check recordings and write manifests.

    Reads the sources named in configs/RUN.yaml, rejects what cannot be trained on and says why,
    holds readers out for validation and test, and writes data/manifests/RUN/. Doing it again
    with unchanged sources changes nothing and takes a moment.

    \b
      layl prepare quran
      layl prepare quran --strict
    """
    from prepare.pipeline import prepare as prepare_run

    directory, config = open_run(run, overrides)
    prepare_run(directory, config, strict=strict, report=typer.echo)
