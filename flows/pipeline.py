"""``prefect deployment run pipeline/quran``: prepare -> a session of training -> when that finished it: export."""

from __future__ import annotations

from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State

from core.project import read_run
from core.run_dir import find_root
from flows.train import session
from tasks.export import export_run
from tasks.prepare import prepare_run
from tasks.version import version


@flow(name="pipeline", flow_run_name="pipeline-{run}", persist_result=False)
def pipeline(
    run: str = "quran",
    stop_at: str | int | None = None,
    stop_after: str | float | None = None,
    until_step: int | None = None,
    overrides: dict[str, Any] | None = None,
    on_cancel: Literal["save", "discard"] = "save",
    on_change: Literal["refuse", "archive"] = "refuse",
) -> State[Any]:
    """From sources to a shipped model, over as many nights as it takes; new data warms the learning rate up again.

    Parameters as of the flow train. When the session ends before the run is finished, the next one goes on there, and
    nothing is exported.
    """
    directory, config = read_run(find_root(), run)
    prepare_run(directory, config, False)
    version(directory, "prepare")
    ended = session(
        run,
        stop_at=stop_at,
        stop_after=stop_after,
        until_step=until_step,
        overrides=overrides,
        on_cancel=on_cancel,
        on_change=on_change,
    )
    if ended.name == "Completed":
        export_run(directory)
        version(directory, "export")
    return ended


if __name__ == "__main__":
    pipeline()
