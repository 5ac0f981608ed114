"""Putting a run aside: renamed into ``runs/archive/``, or removed; neither follows a link nor leaves ``runs/``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from core.errors import DataError
from core.run_dir import RunDir


def archive(run: RunDir) -> Path:
    """Rename the run's directory to ``runs/archive/<run>-<n>`` with the next free number and return that.

    The caller holds the run's lock. Raises FileNotFoundError when there is nothing to put aside.
    """
    run.archive.mkdir(parents=True, exist_ok=True)
    taken = [path.name.removeprefix(f"{run.name}-") for path in run.archive.glob(f"{run.name}-*")]
    number = 1 + max((int(n) for n in taken if n.isdecimal()), default=0)
    target = run.archive / f"{run.name}-{number}"
    os.rename(run.path, target)
    return target


def purge(run: RunDir) -> None:
    """Remove the run's directory. The caller holds the run's lock.

    Raises DataError when it is a link or lies outside ``runs/``.
    """
    runs = run.path.parent
    if run.path.is_symlink():
        where = os.readlink(run.path)
        raise DataError(f"{run.path} is a link to {where}; nothing was removed: remove the link and its target by hand")
    if run.path.resolve().parent != runs.resolve():
        raise DataError(f"{run.path} does not lie in {runs}; nothing was removed")
    shutil.rmtree(run.path)
