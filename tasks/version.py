"""DVC's handshake: what a flow made is written into dvc.lock, so that ``dvc repro`` finds it up to date."""

from __future__ import annotations

import os
import subprocess
import sys

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from core.run_dir import RunDir

#: A commit hashes what it versions; a `dvc repro` elsewhere holds the lock for as long as a stage begins or ends.
COMMIT_SECONDS = 600.0


@task(name="version", task_run_name="version-{stage}-{run.name}", cache_policy=NO_CACHE, persist_result=False)
def version(run: RunDir, stage: str) -> str:
    """Commit a stage of a run to DVC. A project without DVC, or a run that dvc.yaml does not list, is skipped."""
    said = commit(run, stage)
    get_run_logger().info(said)
    return said


def commit(run: RunDir, stage: str) -> str:
    """``dvc commit`` of one stage, waiting for DVC's locks; returns a sentence for people. Raises nothing."""
    if not (run.root / ".dvc").is_dir():
        return "no DVC here: nothing is versioned"
    # without --force it would ask
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "commit", "--force", "--quiet", f"{stage}@{run.name}"]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=run.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{stage}@{run.name} is not versioned: {error}"
    if done.returncode == 0:
        return f"{stage}@{run.name} is versioned in dvc.lock"
    words = (done.stderr or done.stdout).strip().splitlines()
    return f"{stage}@{run.name} is not versioned: {words[-1] if words else f'dvc ended with {done.returncode}'}"
