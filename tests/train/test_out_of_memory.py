"""A batch that does not fit costs itself and nothing else."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core.events import Event, Skipped, Trained, Warned
from core.run_dir import RunDir
from tests.train.conftest import ToyBatch, ToyRecipe, assert_equal, flat, lines, state_of, toy_fit, toy_run
from train.loop import BAD_STEPS_IN_A_ROW, TrainingError
from train.recipe import Loss
from train.session import Session
from train.step import OUT_OF_MEMORY, is_out_of_memory

#: As torch says it of each kind of memory.
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
    MemoryError(),
]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return toy_run(tmp_path)


class _Fails(torch.autograd.Function):
    """Runs out of memory on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        # one of its own: an error that is kept keeps its frames
        raise type(ERRORS[0])(*ERRORS[0].args)


class Large(ToyRecipe):
    """Batches, numbered as the run consumes them, that do not fit: on the way forward or back."""

    def __init__(self, numbers: set[int], where: str, error: Exception = ERRORS[0]) -> None:
        super().__init__()
        self._numbers, self._where, self._error = numbers, where, error
        self.fit: Any = None
        self.held: list[Any] = []

    def loss(self, model: nn.Module, batch: ToyBatch) -> Loss:
        loss = super().loss(model, batch)
        if self.fit.state.place.consumed not in self._numbers:
            return loss
        if self._where == "backward":
            return Loss(sum=_Fails.apply(loss.sum), count=loss.count, shown=loss.shown)
        activations = torch.ones(1000)
        self.held.append(weakref.ref(activations))
        # one of its own: an error that is kept keeps its frames
        raise type(self._error)(*self._error.args)


def fit_of(run: RunDir, numbers: set[int], where: str, error: Exception = ERRORS[0], **others: Any) -> Any:
    recipe = Large(numbers, where, error)
    recipe.fit = toy_fit(run, recipe=recipe, **others)
    if where == "optimiser":
        step = recipe.fit.state.optimizer.step

        def full(*args: Any, **kwargs: Any) -> Any:
            if recipe.fit.state.place.consumed in numbers:
                raise error
            return step(*args, **kwargs)

        recipe.fit.state.optimizer.step = full
        recipe._numbers = set()
    return recipe.fit


@pytest.mark.parametrize("where", ["forward", "backward", "optimiser"])
def test_a_batch_that_does_not_fit_is_skipped_counted_and_changes_nothing(run: RunDir, where: str) -> None:
    events: list[Event] = []
    fit = fit_of(run, {3, 4}, where, emit=events.append)
    states: dict[int, Any] = {}
    real = fit._skipped

    def watched(batch: Any, problem: str) -> None:
        parts = (fit.state.model, fit.state.optimizer, fit.state.averages)
        states[fit.state.place.consumed] = [flat(part.state_dict()) for part in parts]
        assert all(p.grad is None for p in fit.state.model.parameters())
        real(batch, problem)

    fit._skipped = watched
    assert fit.run().to_step == 12
    # the plan keeps its length: two more batches were consumed for it
    assert (fit.state.progress.step, fit.state.place.consumed, fit.state.progress.skipped) == (12, 14, 2)
    skipped = [event for event in events if isinstance(event, Skipped)]
    assert [(event.step, event.reason) for event in skipped] == [(2, OUT_OF_MEMORY)] * 2
    for before, after in zip(states[3], states[4], strict=True):
        assert_equal(before, after)
    assert [event.step for event in events if isinstance(event, Trained)] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
def test_each_kind_of_memory_is_recognised_by_what_torch_says(run: RunDir, error: Exception) -> None:
    assert is_out_of_memory(error)
    fit = fit_of(run, {2}, "forward", error)
    assert fit.run().kind == "finished" and fit.state.progress.skipped == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), ValueError("out of memory"), OSError("out of memory")]
)
def test_another_error_is_not_taken_for_it(run: RunDir, error: Exception) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(type(error), match=str(error)):
        fit_of(run, {2}, "forward", error).run()


def test_what_the_failed_step_held_is_free_before_the_next_one(run: RunDir) -> None:
    fit = fit_of(run, {3}, "forward")
    real, free = fit._skipped, []

    def watched(batch: Any, problem: str) -> None:
        free.append([ref() for ref in fit.recipe.held])
        real(batch, problem)

    fit._skipped = watched
    fit.run()
    assert free == [[None]]


@pytest.mark.parametrize("where", ["forward", "optimiser"])
def test_with_a_gradient_scaler_a_skipped_batch_leaves_it_ready(run: RunDir, where: str) -> None:
    fit = fit_of(run, {3}, where)
    fit.state.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert fit.run().kind == "finished" and fit.state.progress.skipped == 1


def test_memory_that_stays_short_ends_the_session_with_what_to_do_and_the_last_good_checkpoint(run: RunDir) -> None:
    fit = fit_of(run, set(range(6, 99)), "forward")
    with pytest.raises(TrainingError, match=r"memory ran out; try a smaller train.max_batch_seconds"):
        fit.run()
    assert fit.state.progress.skipped == BAD_STEPS_IN_A_ROW and fit.checkpoints.saved_step == 5


def tried_first(run: RunDir, numbers: set[int], where: str, **others: Any) -> Any:
    """A fit whose device, as far as the loop can see, has memory of its own."""
    fit = fit_of(run, numbers, where, **others)
    fit.device = torch.device("mps")
    return fit


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_heaviest_batch_that_does_not_fit_is_said_once_and_training_goes_on(
    run: RunDir, whole_toy: RunDir, where: str
) -> None:
    events: list[Event] = []
    # batch 0 is none that a run consumes: it is the trial
    fit = tried_first(run, {0}, where, emit=events.append)
    assert fit.run().kind == "finished"
    (warned,) = [event for event in events if isinstance(event, Warned)]
    assert warned.step == 0 and "heaviest batches of this epoch (4 points)" in warned.message
    assert "smaller train.max_batch_seconds" in warned.message
    assert [ref() for ref in fit.recipe.held] == ([None] if where == "forward" else [])
    assert_equal(state_of(whole_toy), state_of(run))


def test_what_a_failed_trial_held_is_free_before_memory_is_given_back(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = tried_first(run, {0}, "backward")
    losses: list[Any] = []
    loss, free = fit.recipe.loss, fit.stepper._free

    def watched(model: nn.Module, batch: ToyBatch) -> Loss:
        found = loss(model, batch)
        losses.append(weakref.ref(found.sum))
        return found

    alive: list[bool] = []
    fit.recipe.loss = watched
    monkeypatch.setattr(fit.stepper, "_free", lambda: (alive.append(losses[0]() is not None), free()))
    assert not fit.stepper.fits(fit.loader.heaviest())
    assert alive == [False]


def test_a_run_whose_heaviest_batch_stopped_fitting_still_takes_its_steps(run: RunDir) -> None:
    """The epoch that runs keeps its plan: a refusal would come back with every smaller budget."""
    tried_first(run, set(), "forward", session=Session(run, "s", until_step=7)).run()
    assert tried_first(run, {7}, "forward").run().kind == "finished"


def test_the_trial_of_the_heaviest_batch_leaves_no_trace(run: RunDir, whole_toy: RunDir) -> None:
    for until in (5, None):
        fit = tried_first(run, set(), "forward", session=Session(run, "s", until_step=until))
        tried: list[Any] = []
        fits = fit.stepper.fits
        fit.stepper.fits = lambda batch, fits=fits, tried=tried: tried.append(batch) or fits(batch)
        before = torch.get_rng_state()
        fit._try_heaviest()
        assert torch.equal(torch.get_rng_state(), before)
        fit.run()
        assert [len(batch.x_NF) for batch in tried] == [4, 4]
    assert_equal(state_of(whole_toy), state_of(run))
    assert lines(whole_toy) == lines(run)


def test_a_cpu_has_nothing_to_try(run: RunDir) -> None:
    fit = fit_of(run, {0}, "forward")
    assert fit.run().kind == "finished"


def test_another_error_in_the_trial_is_raised_as_it_is(run: RunDir) -> None:
    fit = tried_first(run, {0}, "forward", error=RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        fit.run()
