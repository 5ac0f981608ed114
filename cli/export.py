"""``layl export``: checkpoints to the model that is shipped."""

from __future__ import annotations

import typer

from cli.place import FRONTEND, RUN, SET, Frontend, open_run
from core.errors import DataError


def export(
    run: str = RUN,
    unfinished: bool = typer.Option(
        False, "--unfinished", help="In a DVC stage too, export a run that has not taken all its steps yet."
    ),
    overrides: list[str] = SET,
    frontend: Frontend = FRONTEND,
) -> None:
    """Turn checkpoints into the model that phones run.

    Chooses the best weights, writes float and int8 ONNX files to models/RUN/, and measures those very
    files: metrics/RUN.json holds the scores. If a gate on the exported files fails, nothing is published,
    what was there before stays, and the exit code is 73. While a session trains the run, it is 69.

    A run with steps left is exported as it is, and its card says so; a DVC stage refuses it (73).

    \b
      layl export quran
      layl export quran --set export.average=3
    """
    from core.lock import hold

    directory, config = open_run(run, overrides)
    if not directory.manifests.is_dir():
        raise DataError(f"{directory.manifests} does not exist; run `layl prepare {run}` and `layl train {run}` first")
    from export.pipeline import export as export_run

    with hold(directory):
        as_it_is = unfinished or frontend is Frontend.shell
        export_run(directory, config, unfinished=as_it_is, report=typer.echo)
