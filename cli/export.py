"""``layl export``: checkpoints to the model that is shipped."""

from __future__ import annotations

import typer

from cli.place import RUN, SET, open_run


def export(
    run: str = RUN,
    unfinished: bool = typer.Option(False, "--unfinished", help="Export a run that has not taken all its steps yet."),
    overrides: list[str] = SET,
) -> None:
    """Turn checkpoints into the model that phones run.

    Chooses the best weights, writes float and int8 ONNX files to models/RUN/, and measures those very
    files: metrics/RUN.json holds the scores. If a gate on the exported files fails, nothing is published,
    what was there before stays, and the exit code is 73. While a session trains the run, it is 69.

    \b
      layl export quran
      layl export quran --unfinished
    """
    from core.lock import hold
    from export.pipeline import export as export_run

    directory, config = open_run(run, overrides)
    with hold(directory):
        export_run(directory, config, unfinished=unfinished, report=typer.echo)
