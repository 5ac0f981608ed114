"""``prefect deployment run export/quran``: checkpoints to the model that ships."""

from __future__ import annotations

from prefect import flow

from core.project import read_run
from core.run_dir import find_root
from tasks.export import export_run
from tasks.version import version


@flow(name="export", flow_run_name="export-{run}", persist_result=False)
def export(run: str = "quran", unfinished: bool = False) -> None:
    """Choose the best weights, write the files that phones run, measure those very files, publish.

    run: the name of a file in configs/, without .yaml. unfinished: also a run that has not taken all its steps.
    """
    directory, _ = read_run(find_root(), run)
    export_run(directory, unfinished)
    if not unfinished:
        version(directory, "export")


if __name__ == "__main__":
    export()
