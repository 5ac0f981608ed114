"""The export stage as a Prefect task: ``layl export`` in a process of its own, for a flow's process holds no torch."""

from __future__ import annotations

import os
import subprocess
import sys

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from core.run_dir import RunDir
from tasks.supervise import trainer_environment


class ExportFailed(RuntimeError):
    """``layl export`` did not end with 0; its last line says why."""


@task(name="export", task_run_name="export-{run.name}", cache_policy=NO_CACHE, persist_result=False)
def export_run(run: RunDir, unfinished: bool = False) -> None:
    """Publish the model of a run. Raises ExportFailed; what was published before then stays."""
    logger = get_run_logger()
    command = [sys.executable, "-P", "-m", "cli", "export", run.name, "--frontend", "dvc"]
    command += ["--unfinished"] if unfinished else []
    line = ""
    with subprocess.Popen(
        command, cwd=run.root, env=trainer_environment(os.environ), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as child:  # fmt: skip
        assert child.stdout is not None
        for printed in child.stdout:
            line = printed.rstrip() or line
            logger.info(printed.rstrip())
    if child.returncode:
        raise ExportFailed(f"layl export {run.name} ended with {child.returncode}: {line}")
