"""Saves on a real file system that is full, or read-only; it is mounted for the test alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MOUNT = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
#: 20 MB, as the public report that this is about has it.
SMALL = 'mount -t tmpfs -o size=20m none "$1" && shift && exec "$@"'


def may_mount() -> bool:
    """Whether this user may mount a file system in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    try:
        return subprocess.run([*MOUNT, "mount -t tmpfs none /mnt"], capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.process
def test_a_full_and_a_read_only_disk_lose_nothing(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("this user may not mount a file system")
    small = tmp_path / "small"
    small.mkdir()
    command = [*MOUNT, SMALL, "sh", str(small), sys.executable, "-m", "tests.train.small_disk", str(small)]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "all held" in done.stdout, done.stdout + done.stderr
