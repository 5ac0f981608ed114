"""Which process is meant: a pid alone is reused, so it always comes with the time that its process started."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Start times are told from the boot time, which moves when the clock is set: this much is the same process.
START_TOLERANCE_SECONDS = 2.0


@dataclass(frozen=True)
class Mark:
    """A process as ``PID:START_TIME`` (Unix seconds), the way it goes over a command line."""

    pid: int
    start_time: float

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_time:.2f}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Raises ValueError unless ``text`` is ``PID:START_TIME``."""
        pid, _, start = text.partition(":")
        return cls(int(pid), float(start))


def mark_of(pid: int | None = None) -> Mark:
    """The mark of a living process, this one unless named."""
    import psutil

    process = psutil.Process(pid)
    return Mark(process.pid, process.create_time())


def is_alive(mark: Mark) -> bool:
    """Whether that very process still runs; one that ended and was not yet collected by its parent does not."""
    import psutil

    try:
        process = psutil.Process(mark.pid)
        if abs(process.create_time() - mark.start_time) > START_TOLERANCE_SECONDS:
            return False
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def host_name() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """What distinguishes this boot of the machine from others; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def owner_facts(frontend: str, session: str, flow_run: str | None = None) -> dict[str, Any]:
    """What ``owner.json`` says of this process."""
    mark = mark_of(os.getpid())
    return {
        "pid": mark.pid,
        "start_time": mark.start_time,
        "host": host_name(),
        "boot_id": boot_id(),
        "frontend": frontend,
        "session": session,
        "flow_run": flow_run,
    }


def owner_is_alive(owner: dict[str, Any] | None) -> bool:
    """Whether the process that ``owner.json`` names still runs. One on another machine counts as running."""
    if not isinstance(owner, dict):
        return False
    try:
        mark = Mark(int(owner["pid"]), float(owner["start_time"]))
    except (KeyError, TypeError, ValueError):
        return False
    if owner.get("host") not in (None, host_name()):
        return True
    theirs, ours = owner.get("boot_id"), boot_id()
    if theirs and ours and theirs != ours:
        return False
    return is_alive(mark)
