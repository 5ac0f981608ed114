"""A session with a deadline overruns it by a step and a save at most: what would not end in time is not begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import train.loop
from core.events import Evaluated, Event, Phase
from core.run_dir import RunDir
from tests.train.conftest import ToyBatch, ToyRecipe, assert_equal, state_of, toy_fit, toy_run, toy_session
from train.loop import RESERVE
from train.recipe import Loss, Scores
from train.session import Session

STEP, VALIDATION = 1.0, 30.0


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return toy_run(tmp_path)


class Clock:
    """Both clocks of a session: seconds since it began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(train.loop, "perf_counter", lambda: self.now)


class Timed(ToyRecipe):
    """A step takes a second, a validation half a minute."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def loss(self, model: nn.Module, batch: ToyBatch) -> Loss:
        self.clock.now += STEP
        return super().loss(model, batch)

    def evaluate(self, model: nn.Module, stopped: Any) -> Scores | None:
        self.clock.now += VALIDATION
        return None if stopped() else super().evaluate(model, stopped)


def fit_of(run: RunDir, clock: Clock, stop_at: float | None, events: list[Event] | None = None) -> Any:
    session = Session(run, "s", stop_at=stop_at, clock=lambda: clock.now)
    return toy_fit(run, recipe=Timed(clock), session=session, emit=None if events is None else events.append)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_validation_that_would_end_after_the_deadline_is_left_to_the_next_session(run: RunDir, clock: Clock) -> None:
    events: list[Event] = []
    # the first validation ends at 34 s and is measured; the second would begin at 38 s and need 45
    outcome = fit_of(run, clock, 80.0, events).run()
    assert (outcome.kind, outcome.to_step, clock.now) == ("paused", 8, 4 + VALIDATION + 4)
    assert outcome.reason.startswith("a validation (45 s) would not end before")
    assert [event.step for event in events if isinstance(event, Evaluated)] == [4]
    # which begins with it, whatever the first measured
    assert fit_of(run, clock, None, events).run().kind == "finished"
    assert [event.step for event in events if isinstance(event, Evaluated)] == [4, 8, 12]


def test_a_validation_that_ends_in_time_is_taken(run: RunDir, clock: Clock) -> None:
    outcome = fit_of(run, clock, 4 + VALIDATION + 4 + RESERVE * VALIDATION + 0.5).run()
    assert outcome.to_step > 8 and clock.now > 70


def test_the_last_validation_may_be_left_to_the_next_session_too(run: RunDir, clock: Clock) -> None:
    toy_session(run, until_step=11)
    fit = fit_of(run, clock, 20.0)
    fit.state.progress.validation_seconds = VALIDATION
    outcome = fit.run()
    assert (outcome.kind, outcome.to_step, outcome.resumable) == ("paused", 12, True)
    assert fit_of(run, clock, None).run().kind == "finished"


def test_a_run_whose_validations_moved_to_other_sessions_is_the_same_run(
    run: RunDir, clock: Clock, tmp_path: Path
) -> None:
    other = toy_run(tmp_path / "other")
    assert fit_of(other, clock, None).run().kind == "finished"
    sessions = 0
    while fit_of(run, clock, clock.now + 60.0).run().kind != "finished":
        sessions += 1
        assert sessions < 20
    assert sessions > 1
    assert_equal(state_of(run), state_of(other))


def test_the_save_is_done_before_the_deadline(run: RunDir, clock: Clock) -> None:
    fit = fit_of(run, clock, 20.0)
    fit.recipe.evaluate = lambda *_: Scores(main=1.0, details={})
    fit.checkpoints.settle()
    real = fit.checkpoints.settle

    def slow() -> bool:
        landed = real()
        fit.checkpoints.save_seconds = 8.0
        return landed

    fit.checkpoints.settle = slow
    outcome = fit.run()
    assert outcome.to_step == 20 - RESERVE * 8 and outcome.reason.startswith("saving has to be done by")


def test_a_session_that_begins_after_its_deadline_takes_no_step(run: RunDir, clock: Clock) -> None:
    """A night that was to begin at 23:00 and began at 07:00, for 06:30."""
    toy_session(run, until_step=2)
    clock.now = 8 * 3600.0
    outcome = fit_of(run, clock, stop_at=7.5 * 3600).run()
    assert (outcome.kind, outcome.from_step, outcome.to_step) == ("paused", 2, 2)


def test_without_a_deadline_nothing_is_reserved(run: RunDir, clock: Clock) -> None:
    fit = fit_of(run, clock, None)
    fit.state.progress.validation_seconds = 1e9
    assert fit.run().kind == "finished"


def test_a_laptop_that_slept_past_the_deadline_saves_at_its_first_step(run: RunDir, clock: Clock) -> None:
    fit = fit_of(run, clock, 50.0)
    loss, slept = fit.recipe.loss, []

    def asleep(model: nn.Module, batch: ToyBatch) -> Loss:
        if fit.state.progress.step == 2:
            clock.now += 9 * 3600
            slept.append(1)
        return loss(model, batch)

    fit.recipe.loss = asleep
    outcome = fit.run()
    assert slept and (outcome.kind, outcome.to_step) == ("paused", 3)


def test_a_validation_is_announced_only_when_it_begins(run: RunDir, clock: Clock) -> None:
    events: list[Event] = []
    fit_of(run, clock, 80.0, events).run()
    assert [event.step for event in events if isinstance(event, Phase) and event.phase == "validating"] == [4]
