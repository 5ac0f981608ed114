"""Steps whose gradient is not finite: nothing changes, it is counted, and it ends if it does not end by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from core import checkpoint
from core.errors import CheckpointError
from core.events import Event, Skipped, Trained
from core.run_dir import RunDir
from tests.train.conftest import ToyBatch, ToyRecipe, assert_equal, flat, lines, state_of, toy_fit, toy_run, toy_session
from train.loop import BAD_STEPS_IN_A_ROW, TrainingError
from train.recipe import Loss
from train.session import Session
from train.step import Stepper


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return toy_run(tmp_path)


class Broken(ToyRecipe):
    """Batches (numbered as the run consumes them, from 1) whose gradient is not finite."""

    def __init__(self, numbers: set[int], value: float = float("nan")) -> None:
        super().__init__()
        self._numbers = numbers
        self._value = value
        self.fit: Any = None

    def loss(self, model: nn.Module, batch: ToyBatch) -> Loss:
        loss = super().loss(model, batch)
        if self.fit.state.place.consumed in self._numbers:
            return Loss(sum=loss.sum * self._value, count=loss.count, shown=loss.shown * self._value)
        return loss


def broken_fit(run: RunDir, numbers: set[int], value: float = float("nan"), **others: Any) -> Any:
    recipe = Broken(numbers, value)
    recipe.fit = toy_fit(run, recipe=recipe, **others)
    return recipe.fit


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(run: RunDir) -> None:
    events: list[Event] = []
    fit = broken_fit(run, {3, 4}, emit=events.append)
    seen: list[dict[str, Any]] = []
    step = Stepper.update

    def watched(self: Stepper, *others: Any) -> bool:
        state = fit.state
        before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in flat(state.state_dict()).items()}
        done = step(self, *others)
        if not done:
            after = flat(state.state_dict())
            same = [k for k in before if not k.endswith(".lr")]
            assert_equal({k: before[k] for k in same}, {k: after[k] for k in same})
            assert all(p.grad is None for p in state.model.parameters())
            seen.append(before)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "update", watched)
        assert fit.run().kind == "finished"
    assert len(seen) == 2
    assert fit.state.progress.skipped == 2
    skipped = [event for event in events if isinstance(event, Skipped)]
    assert [(event.step, event.reason, event.batch) for event in skipped] == [
        (2, "the gradient is not finite", "4 points"),
        (2, "the gradient is not finite", "4 points"),
    ]
    # no step is lost: the length is in updates
    assert fit.state.progress.step == 12
    assert fit.state.place.consumed == 14
    trained = [event for event in events if isinstance(event, Trained)]
    assert all(event.grad_norm is not None and np.isfinite(event.grad_norm) for event in trained)
    assert [event.skipped for event in trained] == [0, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_run_with_skipped_batches_cut_anywhere_equals_one_never_cut(
    tmp_path: Path, precision: str, value: float
) -> None:
    whole, cut = toy_run(tmp_path / "whole"), toy_run(tmp_path / "cut")
    bad = {1, 3, 4, 9}
    broken_fit(whole, bad, value, precision=precision).run()
    for step in (2, 3, 6, None):
        broken_fit(cut, bad, value, precision=precision, session=Session(cut, "s", until_step=step)).run()
    assert_equal(state_of(whole), state_of(cut))
    assert lines(whole) == lines(cut)


def test_ten_bad_batches_in_a_row_end_the_session_with_the_last_checkpoint_intact(run: RunDir) -> None:
    events: list[Event] = []
    fit = broken_fit(run, set(range(7, 99)), emit=events.append)
    with pytest.raises(TrainingError, match=r"10 batches in a row .* at step 6, .*; try a lower train.lr"):
        fit.run()
    assert sum(isinstance(event, Skipped) for event in events) == BAD_STEPS_IN_A_ROW
    saved = checkpoint.read(run.last)
    assert saved["progress"]["step"] == 6
    assert saved["progress"]["skipped"] == 0
    # with the cause gone the run goes on as if nothing had been
    whole = toy_run(run.root / "whole")
    toy_fit(whole).run()
    toy_fit(run).run()
    assert_equal(state_of(whole), state_of(run))


def test_nine_bad_batches_in_a_row_are_survived(run: RunDir) -> None:
    fit = broken_fit(run, {*range(3, 12), *range(13, 22)})
    assert fit.run().kind == "finished"
    assert fit.state.progress.skipped == 18


def test_weights_that_are_not_numbers_are_never_saved_as_anything(run: RunDir) -> None:
    toy_session(run, until_step=3)
    before = {path.name: path.read_bytes() for path in run.path.glob("*.pt")}
    fit = toy_fit(run, minutes=1e9)
    loss = fit.recipe.loss

    def poisoned(model: nn.Sequential, batch: ToyBatch) -> Loss:
        found = loss(model, batch)
        fit.state.optimizer.param_groups[0]["lr"] = float("inf")
        return found

    fit.recipe.loss = poisoned
    with pytest.raises(CheckpointError, match=r"hold NaN or infinity at step 4: not saved"):
        fit.run()
    assert {path.name: path.read_bytes() for path in run.path.glob("*.pt")} == before


def test_an_epoch_that_ends_with_a_skipped_batch_still_leaves_a_candidate(run: RunDir) -> None:
    """The tenth batch, the last of epoch 2, is bad: nine updates, a step without validation."""
    broken_fit(run, {10}, emit=lambda event: None).run()
    assert run.step_file(9).is_file()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_scaler_changes_nothing_of_this_but_its_own_scale(run: RunDir, value: float) -> None:
    """What fp16 needs: scaling by powers of two is exact, so the weights must be those of a run without one."""
    plain = broken_fit(toy_run(run.root / "plain"), {3, 7}, value)
    plain.run()
    scaled = broken_fit(run, {3, 7}, value)
    scaled.state.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scaled.run().kind == "finished" and scaled.state.progress.skipped == 2
    assert scaled.state.scaler.get_scale() == 2.0
    assert_equal(flat(plain.state.model.state_dict()), flat(scaled.state.model.state_dict()))
    assert checkpoint.read(run.last)["scaler"]["scale"] == 2.0
