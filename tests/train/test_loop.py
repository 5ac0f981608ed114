"""What one session does with its steps: skip, log, validate, save, stop, in this order."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import train.loop
from core import checkpoint
from core.control import StopRequest, ask_to_stop
from core.errors import CheckpointError, DataError
from core.events import Evaluated, Event, Finished, Paused, Saved, SaveFailed, Skipped, Trained
from core.run_dir import RunDir
from tests.train.conftest import (
    SmallRecipe,
    ToyBatch,
    ToyRecipe,
    assert_equal,
    lines,
    state_of,
    toy_fit,
    toy_run,
    toy_session,
)
from train.loader import Loader
from train.loop import TrainingError
from train.recipe import Draw, Loss, Scores
from train.session import Session
from train.step import Stepper


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return toy_run(tmp_path)


def names(events: list[Event]) -> list[str]:
    """Event names with their steps, saves of any file and phases left out."""
    kept = [e for e in events if isinstance(e, Trained | Evaluated | Saved | Paused | Finished | Skipped)]
    return [f"{type(event).__name__}@{event.step}" for event in kept]


def test_a_step_logs_then_validates_then_saves(run: RunDir) -> None:
    events: list[Event] = []
    assert toy_fit(run, emit=events.append, minutes=1e9).run().kind == "finished"
    # saves are told when they have ended, which may be a step later
    assert [name for name in names(events) if not name.startswith("Saved")] == [
        "Trained@2", "Trained@4", "Evaluated@4", "Trained@6", "Trained@8", "Evaluated@8", "Trained@10",
        "Trained@12", "Evaluated@12", "Finished@12",
    ]  # fmt: skip
    # at validations and at the ends of epochs, which have five batches; the last step saves once
    assert [event.step for event in events if isinstance(event, Saved)] == [4, 5, 8, 10, 12]
    told = names(events)
    for step in (4, 8, 12):
        assert told.index(f"Evaluated@{step}") < told.index(f"Saved@{step}")


def test_candidates_are_written_at_validations_and_ends_of_epochs_and_the_newest_kept(run: RunDir) -> None:
    toy_fit(run, minutes=1e9).run()
    assert [path.name for path in run.step_files()] == [f"step_{step:07d}.pt" for step in (4, 5, 8, 10, 12)]


def test_only_the_newest_candidates_are_kept(run: RunDir) -> None:
    toy_fit(run, keep=2).run()
    assert [path.name for path in run.step_files()] == ["step_0000010.pt", "step_0000012.pt"]


def test_a_checkpoint_is_saved_when_its_time_has_come_and_not_before(run: RunDir) -> None:
    events: list[Event] = []
    fit = toy_fit(run, emit=events.append, minutes=10)
    now = [0.0]
    fit.checkpoints._clock = lambda: now[0]
    fit.checkpoints._saved_at = 0.0
    loss = fit.recipe.loss

    def slow(model: nn.Module, batch: ToyBatch) -> Loss:
        now[0] += 350
        return loss(model, batch)

    fit.recipe.loss = slow
    fit.run()
    saved = [event.step for event in events if isinstance(event, Saved)]
    assert saved == [2, 4, 5, 7, 8, 10, 12]


def test_a_finished_run_takes_no_more_steps(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_session(run, until_step=None)
    before = state_of(run)
    events: list[Event] = []
    monkeypatch.setattr(Stepper, "update", lambda *_: pytest.fail("a step"))
    outcome = toy_fit(run, emit=events.append).run()
    assert (outcome.kind, outcome.from_step, outcome.to_step, outcome.resumable) == ("finished", 12, 12, False)
    assert names(events) == ["Saved@12", "Finished@12"]
    assert_equal(before, state_of(run))


def test_a_session_that_is_already_at_its_limit_takes_no_step(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_session(run, until_step=5)
    monkeypatch.setattr(Stepper, "update", lambda *_: pytest.fail("a step"))
    outcome = toy_session(run, until_step=5)
    assert (outcome.kind, outcome.exit_code, outcome.to_step) == ("paused", 75, 5)
    assert toy_session(run, until_step=3).to_step == 5


class Interrupting(ToyRecipe):
    """Somebody asks to stop while the validation at ``step`` runs."""

    def __init__(self, step: int, ask: Callable[[], None]) -> None:
        super().__init__()
        self._step = step
        self._ask = ask
        self.fit: Any = None

    def evaluate(self, model: nn.Module, stopped: Callable[[], bool]) -> Scores | None:
        if self.fit.state.progress.step == self._step:
            self._ask()
        return super().evaluate(model, stopped)


@pytest.mark.parametrize("step", [4, 8, 12])
def test_a_validation_that_a_stop_cut_short_is_made_up_for(run: RunDir, whole_toy: RunDir, step: int) -> None:
    session = Session(run, "s")
    recipe = Interrupting(step, lambda: session.request("got SIGTERM"))
    recipe.fit = toy_fit(run, recipe=recipe, session=session)
    outcome = recipe.fit.run()
    assert (outcome.kind, outcome.to_step, outcome.reason) == ("stopped", step, "got SIGTERM")
    events: list[Event] = []
    assert toy_fit(run, emit=events.append).run().kind == "finished"
    assert names(events)[:2] == [f"Evaluated@{step}", f"Saved@{step}"]
    assert_equal(state_of(whole_toy), state_of(run))
    assert lines(whole_toy) == lines(run)
    assert [path.name for path in run.step_files()] == [path.name for path in whole_toy.step_files()]


def test_an_epoch_s_last_validation_made_up_for_still_counts_to_that_epoch(run: RunDir) -> None:
    fit = toy_fit(run, session=Session(run, "s", until_step=10))
    fit.run()
    assert (fit.state.place.epoch, fit.state.place.batch) == (3, 0)
    assert toy_fit(run).loader.epoch == 2


def test_a_request_that_is_gone_again_still_ends_the_session_whole(run: RunDir) -> None:
    recipe = Interrupting(4, run.stop_file.touch)
    recipe.fit = toy_fit(run, recipe=recipe)
    evaluate = recipe.evaluate

    def taken_back(model: nn.Module, stopped: Callable[[], bool]) -> Scores | None:
        scores = evaluate(model, stopped)
        run.stop_file.unlink()
        return scores

    recipe.evaluate = taken_back  # type: ignore[method-assign]
    assert recipe.fit.run().kind == "stopped"
    assert checkpoint.read(run.last)["progress"]["step"] == 4


def test_a_step_limit_does_not_cut_the_validation_of_its_step_short(run: RunDir) -> None:
    events: list[Event] = []
    toy_fit(run, emit=events.append, session=Session(run, "s", until_step=4)).run()
    assert names(events)[-3:] == ["Saved@4", "Saved@4", "Paused@4"]
    assert "Evaluated@4" in names(events)


def test_a_deadline_within_the_last_validation_finishes_in_the_next_session(run: RunDir) -> None:
    now = [0.0]
    session = Session(run, "s", stop_at=100.0, clock=lambda: now[0])
    recipe = Interrupting(12, lambda: now.__setitem__(0, 101.0))
    recipe.fit = toy_fit(run, recipe=recipe, session=session)
    assert recipe.fit.run().kind == "paused"
    assert checkpoint.read(run.last)["progress"]["step"] == 12
    assert toy_session(run, until_step=None).kind == "finished"


def ask(run: RunDir, action: str) -> None:
    ask_to_stop(run, StopRequest(request="q", session="s", action=action, by="test", at=0.0))  # type: ignore[arg-type]


def files(run: RunDir) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in run.path.iterdir()
        if path.suffix in (".pt", ".csv") or path.name == "last.json"
    }


@pytest.mark.parametrize("when", ["between steps", "in a validation", "before the first step"])
def test_a_discard_writes_nothing_new_and_says_where_the_run_stands(run: RunDir, when: str) -> None:
    toy_session(run, until_step=3)
    before = files(run)
    events: list[Event] = []
    if when == "in a validation":
        recipe = Interrupting(4, lambda: ask(run, "discard"))
        recipe.fit = toy_fit(run, recipe=recipe, emit=events.append, minutes=1e9)
        outcome = recipe.fit.run()
    else:
        fit = toy_fit(run, emit=events.append, minutes=1e9)
        if when == "before the first step":
            ask(run, "discard")
        else:
            loss = fit.recipe.loss
            fit.recipe.loss = lambda model, batch: (ask(run, "discard"), loss(model, batch))[1]
        outcome = fit.run()
    assert (outcome.kind, outcome.exit_code, outcome.from_step, outcome.to_step) == ("discarded", 76, 3, 3)
    assert files(run) == before
    assert [event for event in events if isinstance(event, Paused)] == [
        Paused(step=3, planned=12, kind="discarded", reason="asked to stop without saving")
    ]


def test_a_discard_goes_back_to_the_last_periodic_save(run: RunDir, whole_toy: RunDir) -> None:
    fit = toy_fit(run, minutes=1e9)
    loss = fit.recipe.loss

    def asked(model: nn.Module, batch: ToyBatch) -> Loss:
        if fit.state.progress.step == 6:
            ask(run, "discard")
        return loss(model, batch)

    fit.recipe.loss = asked
    assert fit.run().to_step == 5
    run.control.unlink()
    assert toy_session(run, until_step=None).from_step == 5
    assert_equal(state_of(whole_toy), state_of(run))


def test_no_step_draws_from_a_generator_that_was_not_seeded_for_it(
    recipe: SmallRecipe, whole: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = np.random.default_rng()

    def poisoned(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            torch.manual_seed(int(poison.integers(2**40)))
            np.random.seed(int(poison.integers(2**31)))
            random.seed(int(poison.integers(2**31)))
            return call(*args, **kwargs)

        return called

    monkeypatch.setattr(Stepper, "update", poisoned(Stepper.update))
    monkeypatch.setattr(train.loop, "evaluate", poisoned(train.loop.evaluate))
    monkeypatch.setattr(Loader, "_count_bad", poisoned(Loader._count_bad))
    run = recipe.make(tmp_path)
    recipe.session(run, until_step=7)
    recipe.session(run, until_step=None)
    assert_equal(state_of(whole), state_of(run))


class FullDisk:
    """A disk that takes nothing while ``full``: every new file in the run's directory fails."""

    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch):
        self.full = False
        self.refused = 0
        real = Path.open

        def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if self.full and run.path in path.parents and any(letter in mode for letter in "xwa"):
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return real(path, mode, *args, **kwargs)

        monkeypatch.setattr(Path, "open", opened)


def test_a_full_disk_leaves_the_old_file_and_training_goes_on(
    run: RunDir, whole_toy: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(run, monkeypatch)
    events: list[Event] = []
    fit = toy_fit(run, emit=events.append)
    loss = fit.recipe.loss
    kept: list[bytes] = []

    def filling(model: nn.Module, batch: ToyBatch) -> Loss:
        if fit.state.progress.step in (3, 9):
            # no save is on its way when the disk fills up, or has room again
            fit.checkpoints.settle()
        if fit.state.progress.step == 3:
            disk.full = True
            kept.append(run.last.read_bytes())
        if fit.state.progress.step == 9:
            kept.append(run.last.read_bytes())
            disk.full = False
        return loss(model, batch)

    fit.recipe.loss = filling
    assert fit.run().kind == "finished"
    assert kept[0] == kept[1]
    failed = [event for event in events if isinstance(event, SaveFailed)]
    assert {event.step for event in failed} == set(range(4, 10))
    assert all("No space left on device" in event.error and str(run.path) in event.error for event in failed)
    assert not list(run.path.glob(".*"))
    # best.pt could not be written at 4 and 8: what is best is what is on the disk
    final = checkpoint.read(run.last)["progress"]
    assert final["best_step"] == checkpoint.read(run.best)["step"] == 12
    assert torch.equal(
        checkpoint.read(run.last)["model"]["0.weight"], checkpoint.read(whole_toy.last)["model"]["0.weight"]
    )


def test_a_stop_that_cannot_save_is_a_crash_that_says_so(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_session(run, until_step=3)
    before = files(run)
    disk = FullDisk(run, monkeypatch)
    fit = toy_fit(run, session=Session(run, "s", until_step=6), minutes=1e9)
    disk.full = True
    with pytest.raises(TrainingError, match="could not save at step 6; the checkpoint of before stays"):
        fit.run()
    assert files(run) == before


def test_a_finished_run_that_cannot_be_saved_is_no_finished_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_session(run, until_step=11)
    disk = FullDisk(run, monkeypatch)
    events: list[Event] = []
    fit = toy_fit(run, emit=events.append)
    disk.full = True
    with pytest.raises(CheckpointError, match="could not be saved at step 12"):
        fit.run()
    assert not any(isinstance(event, Finished) for event in events)


def test_speed_and_time_to_go_count_the_steps_of_this_session_alone(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_session(run, until_step=3)
    # every look at the clock takes a second, and a step looks once more when it ends
    seconds = iter(range(10_000))
    monkeypatch.setattr(train.loop, "perf_counter", lambda: float(next(seconds)))
    events: list[Event] = []
    toy_fit(run, emit=events.append, session=Session(run, "s", until_step=6)).run()
    trained = [event for event in events if isinstance(event, Trained)]
    # step 4 has four points; 5, an epoch's last, has one, and 6 four
    assert [(event.step, event.units_per_second, event.eta_seconds) for event in trained] == [
        (4, 4.0, 8.0),
        (6, 2.5, 6.0),
    ]


class Scored(ToyRecipe):
    """Validations with scores that are given."""

    def __init__(self, scores: Iterator[float]) -> None:
        super().__init__()
        self._scores = scores

    def evaluate(self, model: nn.Module, stopped: Callable[[], bool]) -> Scores | None:
        return Scores(main=next(self._scores), details={"cer": 0.5})


def test_best_is_the_strictly_lower_score_and_never_one_that_is_no_number(run: RunDir) -> None:
    events: list[Event] = []
    fit = toy_fit(run, recipe=Scored(iter([float("nan"), 0.5, 0.5])), emit=events.append)
    fit.run()
    assert [event.is_best for event in events if isinstance(event, Evaluated)] == [False, True, False]
    best = checkpoint.read(run.best)
    assert (best["step"], best["valid_score"], best["valid_cer"]) == (8, 0.5, 0.5)


class Unreadable(ToyRecipe):
    def __init__(self, rows: set[int]) -> None:
        super().__init__()
        self._rows = rows

    def encode(self, row: int, draw: Draw) -> tuple[np.ndarray, float]:
        if row in self._rows:
            raise DataError("it is gone")
        return super().encode(row, draw)


def test_a_row_that_cannot_be_read_is_left_out_and_said_once(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    fit = toy_fit(run, recipe=Unreadable({3, 7}), max_bad_rows=2)
    assert fit.run().kind == "finished"
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == ["left out: point 3: it is gone", "left out: point 7: it is gone"]
    # each epoch again
    assert fit.state.progress.bad_rows >= 4


def test_more_unreadable_rows_than_allowed_end_the_session_naming_one(run: RunDir) -> None:
    fit = toy_fit(run, recipe=Unreadable({3, 7, 9}), max_bad_rows=2)
    with pytest.raises(
        DataError, match=r"3 rows could not be read, more than train.max_bad_rows \(2\); the last: point \d: it is gone"
    ):
        fit.run()


def test_a_batch_of_which_nothing_could_be_read_is_passed_over(run: RunDir) -> None:
    rows = {row for row, _ in ToyRecipe().source.batches(1, {"train.seed": 1})[1]}
    fit = toy_fit(run, recipe=Unreadable(rows), max_bad_rows=4, session=Session(run, "s", until_step=2))
    fit.run()
    assert (fit.state.place.consumed, fit.state.place.batch) == (3, 3)
