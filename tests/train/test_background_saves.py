"""last.pt is written while training goes on: of the state as it was, one at a time, and waited for where it counts."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core import checkpoint
from core.control import StopRequest, ask_to_stop
from core.errors import CheckpointError
from core.events import Event, Saved, SaveFailed
from core.run_dir import RunDir, read_json
from tests.train.conftest import ToyBatch, ToyRecipe, assert_equal, flat, state_of, toy_fit, toy_run, toy_session
from tests.train.test_checkpoints import of, state
from train.loop import TrainingError
from train.recipe import Loss, Scores

WRITE = checkpoint.write


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return toy_run(tmp_path)


class Disk:
    """A disk that takes last.pt only once it is told to; what it was given, and by how many at a time."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.begun = threading.Event()
        self.at_once = self.most_at_once = 0
        self.writers: list[str] = []
        self.fails: Exception | None = None

    def write(self, path: Path, value: dict[str, Any], **others: Any) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.writers.append(threading.current_thread().name)
        try:
            if path.name == "last.pt":
                self.begun.set()
                assert self.may_write.wait(10)
                if self.fails is not None:
                    raise self.fails
            return WRITE(path, value, **others)
        finally:
            self.at_once -= 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(checkpoint, "write", disk.write)
    yield disk
    disk.may_write.set()


def later(act: Callable[[], None], seconds: float = 0.1) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def test_what_is_written_is_the_state_as_it_was(run: RunDir, disk: Disk) -> None:
    checkpoints, now = of(run), state(3)
    before = copy.deepcopy(now.state_dict())
    checkpoints.begin_save(now)
    assert disk.begun.wait(10)
    with torch.no_grad():
        for parameter in now.model.parameters():
            parameter.add_(1.0)
    now.progress.step, now.place.batch = 4, 7
    now.place.values["train.seed"] = 9
    disk.may_write.set()
    assert checkpoints.settle()
    written = checkpoint.read(run.last)
    assert_equal(flat(before), flat({name: part for name, part in written.items() if name != "format"}))
    assert read_json(run.last_facts)["step"] == 3 and checkpoints.saved_step == 3


def test_training_does_not_wait_for_a_save_until_the_next_one(run: RunDir, disk: Disk) -> None:
    checkpoints = of(run)
    began = time.monotonic()
    checkpoints.begin_save(state(1))
    assert time.monotonic() - began < 5 and not run.last.exists() and checkpoints.saved_step is None
    checkpoints.poll()
    assert checkpoints.saved_step is None
    later(disk.may_write.set)
    checkpoints.begin_save(state(2))
    # the second waited for the first, which has its name
    assert checkpoints.saved_step == 1
    assert checkpoints.settle() and checkpoint.read(run.last)["progress"]["step"] == 2
    assert checkpoint.read(run.last_previous)["progress"]["step"] == 1
    assert disk.most_at_once == 1 and {name.startswith("save") for name in disk.writers} == {True}


def test_candidates_wait_for_the_save_in_flight(run: RunDir, disk: Disk) -> None:
    checkpoints = of(run)
    for save in (checkpoints.save_step, lambda one: checkpoints.save_best(one, Scores(main=0.5))):
        checkpoints.begin_save(state(1))
        later(disk.may_write.set)
        save(state(2))
        disk.may_write.clear()
    assert disk.most_at_once == 1


def test_a_save_that_ended_meanwhile_is_told_at_the_next_step(run: RunDir) -> None:
    events: list[Event] = []
    checkpoints = of(run, events)
    checkpoints.begin_save(state(1))
    deadline = time.monotonic() + 10
    while not events and time.monotonic() < deadline:
        checkpoints.poll()
    assert [event.step for event in events if isinstance(event, Saved)] == [1]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos"), MemoryError()]
)
def test_a_save_that_failed_in_flight_is_told_and_the_next_one_is_tried(
    run: RunDir, disk: Disk, error: Exception
) -> None:
    events: list[Event] = []
    checkpoints = of(run, events)
    disk.may_write.set()
    checkpoints.save(state(1))
    disk.fails = error
    checkpoints.begin_save(state(2))
    assert not checkpoints.settle() and not checkpoints.settle()
    assert checkpoints.saved_step == 1 and checkpoint.read(run.last)["progress"]["step"] == 1
    assert [event.step for event in events if isinstance(event, SaveFailed)] == [2]
    disk.fails = None
    assert checkpoints.save(state(3)) and checkpoints.saved_step == 3


def test_what_no_disk_is_to_blame_for_is_raised(run: RunDir, disk: Disk) -> None:
    disk.fails = TypeError("no plain value")
    disk.may_write.set()
    checkpoints = of(run)
    checkpoints.begin_save(state(1))
    with pytest.raises(TypeError, match="no plain value"):
        checkpoints.settle()


def test_nan_is_refused_before_anything_is_begun(run: RunDir, disk: Disk) -> None:
    broken = state(1)
    with torch.no_grad():
        next(broken.model.parameters()).fill_(float("nan"))
    with pytest.raises(CheckpointError, match="NaN"):
        of(run).begin_save(broken)
    assert not disk.writers


class Slow(ToyRecipe):
    """Lets the disk go on once a step was asked for."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._act = at, act
        self.fit: Any = None

    def loss(self, model: nn.Module, batch: ToyBatch) -> Loss:
        if self.fit.state.place.consumed == self._at:
            self._act()
        return super().loss(model, batch)


def slow_fit(run: RunDir, at: int, act: Callable[[], None], **others: Any) -> Any:
    recipe = Slow(at, act)
    recipe.fit = toy_fit(run, recipe=recipe, **others)
    return recipe.fit


def test_a_stop_waits_for_its_own_save(run: RunDir, disk: Disk) -> None:
    # the save of step 1 begins, and hangs until step 2 is taken
    fit = slow_fit(run, 2, disk.may_write.set)
    fit.session.until_step = 3
    assert fit.run().kind == "paused"
    assert checkpoint.read(run.last)["progress"]["step"] == 3 and not list(run.path.glob(".*layl-tmp"))


def test_a_discard_goes_back_to_the_save_that_was_in_flight(run: RunDir, disk: Disk) -> None:
    def discard() -> None:
        ask_to_stop(run, StopRequest(request="r", session="s", action="discard", by="test", at=time.time() + 1))
        later(disk.may_write.set)

    outcome = slow_fit(run, 3, discard, minutes=1e9)
    outcome.checkpoints.begin_save(outcome.state)
    ended = outcome.run()
    assert (ended.kind, ended.to_step) == ("discarded", 0)
    assert checkpoint.read(run.last)["progress"]["step"] == 0


def test_a_crash_leaves_the_save_in_flight_whole(run: RunDir, disk: Disk) -> None:
    def crash() -> None:
        later(disk.may_write.set)
        raise TrainingError("broken")

    with pytest.raises(TrainingError, match="broken"):
        slow_fit(run, 2, crash).run()
    assert checkpoint.read(run.last)["progress"]["step"] == 1


def test_no_save_is_in_flight_while_loader_processes_are_forked(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from train.loader import Loader

    fit = toy_fit(run)
    in_flight: list[bool] = []
    rest, evaluate = Loader._rest, fit.recipe.evaluate
    monkeypatch.setattr(
        Loader, "_rest", lambda *a: (in_flight.append(fit.checkpoints._flight is not None), rest(*a))[1]
    )
    fit.recipe.evaluate = lambda *a: (in_flight.append(fit.checkpoints._flight is not None), evaluate(*a))[1]
    fit.run()
    assert len(in_flight) >= 6 and not any(in_flight)


def test_saving_at_every_step_changes_no_weight(run: RunDir, tmp_path: Path) -> None:
    other = toy_run(tmp_path / "other")
    toy_session(run, until_step=None)
    assert toy_fit(other, minutes=1e9).run().kind == "finished"
    assert_equal(state_of(run), state_of(other))
