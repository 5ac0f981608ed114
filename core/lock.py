"""Who may change a run: one process at a time, by a lock that the kernel frees when its holder dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.errors import BusyError
from core.process import owner_is_alive
from core.run_dir import RunDir, read_json


@contextmanager
def hold(run: RunDir, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the run's lock. Raises BusyError naming the owner if it is not free within ``wait_seconds``."""
    with hold_file(run.lock, lambda: busy_message(run.name, read_json(run.owner)), wait_seconds=wait_seconds):
        yield


@contextmanager
def hold_file(path: Path, busy: Callable[[], str], *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold any lock file. Raises BusyError with what ``busy`` says if it is not free within ``wait_seconds``."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_seconds, poll_interval=0.1)
    except Timeout:
        raise BusyError(busy()) from None
    try:
        yield
    finally:
        lock.release()


def busy_message(name: str, owner: dict[str, Any] | None) -> str:
    """Who holds the run, and what to do about it."""
    if owner is None or not owner_is_alive(owner):
        return f"run {name} is in use by another command (an export or a reset?); try again when it has ended"
    return f"run {name} is in use by {owner_line(owner)}; wait for it, or end it with `layl stop {name}`"


def owner_line(owner: dict[str, Any]) -> str:
    """``session 20250101-… (started from shell, pid 123 on host)``."""
    where = f"pid {owner.get('pid')} on {owner.get('host', 'this machine')}"
    return f"session {owner.get('session')} (started from {owner.get('frontend', 'shell')}, {where})"
