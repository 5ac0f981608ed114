"""How long a session takes to come and to go: restore and first step, and a signal until everything is saved.

``python -m benchmarks.sessions`` trains a few steps of the sample with a small and a large model. Nothing else should
run beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from benchmarks.gpu import SMALL, scratch_project
from core.events import Trained, read_events
from core.project import read_run
from core.run_dir import RunDir, read_json
from tasks.supervise import trainer_environment
from train.session import Session
from train.start import run_session

NAME = "quran"


def restored(root: Path, overrides: tuple[str, ...], until_step: int) -> float:
    """Seconds from the session's start to the end of its first step, in a process that has imported all."""
    run, config = read_run(root, NAME, overrides)
    began = time.time()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        run_session(
            run, config, Session(run, f"s{until_step}", until_step=until_step), frontend="shell", on_change="refuse"
        )
    first = next(at for event, at in read_events(run.events)[0] if isinstance(event, Trained) and at > began)
    return first - began


def saved_step(run: RunDir) -> int:
    return int((read_json(run.last_facts) or {}).get("step") or 0)


def stopped(root: Path, overrides: tuple[str, ...]) -> float:
    """Seconds from SIGTERM to ``layl train`` until it has ended with everything saved."""
    run = RunDir(root, NAME)
    run.status.unlink(missing_ok=True)
    before = saved_step(run)
    command = [sys.executable, "-P", "-m", "cli", "train", NAME]
    for override in overrides:
        command += ["--set", override]
    child = subprocess.Popen(
        command, cwd=root, env=trainer_environment(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while int((read_json(run.status) or {}).get("step") or 0) < before + 2:
            if child.poll() is not None:
                raise RuntimeError(f"the session ended by itself with {child.returncode}; see {run.output}")
            time.sleep(0.02)
        began = time.perf_counter()
        child.terminate()
        code = child.wait()
    finally:
        child.kill()
    if code != 75 or saved_step(run) < before + 2:
        raise RuntimeError(f"the session ended with {code} and did not save; see {run.output}")
    return time.perf_counter() - began


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.sessions")
    parser.add_argument("--presets", nargs="+", default=["demo", "33m"])
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args(argv)
    for preset in args.presets:
        overrides = (
            *SMALL, f"model.preset={preset}", "train.log_every_steps=1", "train.steps=1000000",
            "train.eval_every_steps=1000000",
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="layl-sessions-") as folder:
            root = Path(folder) / "project"
            scratch_project(root, SMALL)
            restored(root, overrides, 3)
            back = [restored(root, overrides, 4 + n) for n in range(args.times)]
            gone = [stopped(root, overrides) for _ in range(args.times)]
        print(
            f"{preset}: restore and first step {statistics.median(back):.2f} s (at most {max(back):.2f}), "
            f"SIGTERM to saved exit {statistics.median(gone):.2f} s (at most {max(gone):.2f}); "
            f"medians of {args.times}",
            flush=True,
        )


if __name__ == "__main__":
    main()
