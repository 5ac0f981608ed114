"""``python -m tests.train.small_disk FOLDER``: what saves do on a real file system of 20 MB mounted at FOLDER.

Run by ``test_small_disk`` in a mount namespace of its own; every assertion that fails ends it with a traceback.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from core import checkpoint
from core.events import Finished, Saved, read_events
from core.run_dir import TEMPORARY, RunDir
from tests.train.conftest import assert_equal, sit, speech_run, state_of
from train.loop import Fit
from train.views import read_log

MB = 1_000_000


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def state(megabytes: int, value: float) -> dict[str, Any]:
    return {"model": torch.full((megabytes * MB // 4,), value)}


def a_save_that_does_not_fit_leaves_both_generations(folder: Path) -> None:
    last, previous = folder / "last.pt", folder / "last.prev.pt"
    for value in (1.0, 2.0):
        checkpoint.write(last, state(6, value), previous=previous)
    before = contents(folder)
    # two of 6 MB lie there and the third needs 9
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        checkpoint.write(last, state(9, 3.0), previous=previous)
    assert contents(folder) == before
    assert float(checkpoint.read(last)["model"][0]) == 2.0
    # what fits is written again
    checkpoint.write(last, state(6, 4.0), previous=previous)
    assert [float(checkpoint.read(path)["model"][0]) for path in (last, previous)] == [4.0, 2.0]
    for path in folder.iterdir():
        path.unlink()


def training_goes_on_while_the_disk_is_full(folder: Path) -> None:
    whole, run = speech_run(folder.parent / "whole"), speech_run(folder)
    assert sit(whole).kind == "finished"
    filler = folder / "filler"
    kept: list[int] = []

    def disk(step: int) -> None:
        if step == 3:
            fill(filler)
        elif step == 9:
            filler.unlink()
        elif 3 < step < 9:
            kept.append(checkpoint.read(run.last)["progress"]["step"])

    # what a trainer prints lies on the same disk
    with printed_to(run.output), before_each_step(disk):
        ended = sit(run)
    assert ended.kind == "finished", ended
    assert kept == [3] * 5
    events, torn = read_events(run.events)
    assert torn <= 1 and isinstance(events[-1][0], Finished)
    saved = [event.step for event, _ in events if isinstance(event, Saved)]
    assert not set(saved) & {5, 6, 7} and saved[-1] == 12
    logged = [int(row["step"]) for row in read_log(run)]
    assert logged == sorted(logged) and logged[-1] == 12
    assert not list(run.path.glob(f"*{TEMPORARY}"))
    # a best whose file could not be written is none; all else is equal
    one, other = ({k: v for k, v in state_of(r).items() if ".best_" not in k} for r in (whole, run))
    assert_equal(one, other)


@contextmanager
def printed_to(path: Path) -> Iterator[None]:
    """Standard output and error go to ``path``, as a supervisor has it."""
    kept = [os.dup(number) for number in (1, 2)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, was in zip((1, 2), kept, strict=True):
            os.dup2(was, number)
            os.close(was)


@contextmanager
def before_each_step(act: Callable[[int], None]) -> Iterator[None]:
    """Do something before each update, with no save in flight: ``act`` gets the step that the run is at."""
    real = Fit._after_step

    def watched(fit: Fit) -> Any:
        ended = real(fit)
        if ended is None:
            fit.checkpoints.settle()
            act(fit.state.progress.step)
        return ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fit, "_after_step", watched)
        yield


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def a_stop_on_a_read_only_disk_says_what_was_kept_and_the_next_session_goes_on(folder: Path) -> None:
    whole, run = RunDir(folder.parent / "whole", "tiny"), speech_run(folder / "second")
    sit(run, until_step=5)
    with before_each_step(lambda step: shut(run.path) if step == 7 else None):
        outcome = sit(run, until_step=9)
    assert (outcome.kind, outcome.exit_code, outcome.to_step) == ("crashed", 70, 7)
    assert "could not save at step 9; the checkpoint of before stays" in outcome.reason
    subprocess.run(["umount", str(run.path)], check=True)
    assert sit(run).from_step == 7
    assert_equal(state_of(whole), state_of(run))


def shut(folder: Path) -> None:
    """Make ``folder`` read-only although files in it are open, as after an error of the disk: those go on, new ones
    are refused.
    """
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)


if __name__ == "__main__":
    small = Path(sys.argv[1])
    a_save_that_does_not_fit_leaves_both_generations(small)
    training_goes_on_while_the_disk_is_full(small)
    a_stop_on_a_read_only_disk_says_what_was_kept_and_the_next_session_goes_on(small)
    print("all held")
