"""``prefect deployment run prepare/quran``: sources to manifests."""

from __future__ import annotations

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from core.project import read_run
from core.run_dir import find_root
from tasks.prepare import prepare_run
from tasks.version import version


@flow(
    name="prepare",
    flow_run_name="prepare-{run}",
    task_runner=ThreadPoolTaskRunner(max_workers=4),  # type: ignore[arg-type]
    persist_result=False,
)
def prepare(run: str = "quran", strict: bool = False) -> None:
    """Check a run's recordings and write its manifests; unchanged sources take a moment.

    run: the name of a file in configs/, without .yaml. strict: publish nothing when something leaks between splits.
    """
    directory, config = read_run(find_root(), run)
    prepare_run(directory, config, strict)
    version(directory, "prepare")


if __name__ == "__main__":
    prepare()
