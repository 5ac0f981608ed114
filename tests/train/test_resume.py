"""Cut anywhere equals never cut: weights, moments, log lines and places, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import train.loop
from core.run_dir import RunDir
from tests.train.conftest import SmallRecipe, assert_equal, lines, state_of
from train.session import Session

STEPS = 12


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_cut_at_every_step_equals_one_never_cut(
    recipe: SmallRecipe, whole: RunDir, tmp_path: Path, workers: int
) -> None:
    run = recipe.make(tmp_path / "cut")
    for step in range(1, STEPS):
        outcome = recipe.session(run, until_step=step, workers=workers)
        assert (outcome.kind, outcome.to_step) == ("paused", step)
    assert recipe.session(run, until_step=None, workers=workers).kind == "finished"
    assert_equal(state_of(whole), state_of(run))
    assert lines(whole) == lines(run)


@pytest.mark.parametrize("cut", range(1, STEPS))
def test_a_run_cut_once_equals_one_never_cut(recipe: SmallRecipe, whole: RunDir, tmp_path: Path, cut: int) -> None:
    run = recipe.make(tmp_path / "cut")
    recipe.session(run, until_step=cut, workers=0)
    recipe.session(run, until_step=None, workers=0)
    assert_equal(state_of(whole), state_of(run))
    assert lines(whole) == lines(run)


def test_the_number_of_workers_may_change_between_sessions(recipe: SmallRecipe, whole: RunDir, tmp_path: Path) -> None:
    run = recipe.make(tmp_path / "cut")
    for step, workers in ((3, 2), (7, 0), (9, 1), (None, 2)):
        recipe.session(run, until_step=step, workers=workers)
    assert_equal(state_of(whole), state_of(run))


def test_bf16_is_as_exact(recipe: SmallRecipe, tmp_path: Path) -> None:
    whole, cut = recipe.make(tmp_path / "whole"), recipe.make(tmp_path / "cut")
    recipe.session(whole, until_step=None, workers=0, precision="bf16")
    for step in (5, 8, None):
        recipe.session(cut, until_step=step, workers=0, precision="bf16")
    assert_equal(state_of(whole), state_of(cut))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_validation_costs_that_validation_alone(
    recipe: SmallRecipe, whole: RunDir, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recipe.make(tmp_path / "cut")
    real = train.loop.evaluate

    def interrupted(recipe: Any, state: Any, stopped: Any) -> Any:
        if state.progress.step == 8:
            signal.raise_signal(number)
        return real(recipe, state, stopped)

    monkeypatch.setattr(train.loop, "evaluate", interrupted)
    session = Session(run, "s")
    with session.signals():
        outcome = recipe.session(run, until_step=None, session=session)
    assert (outcome.kind, outcome.to_step) == ("stopped", 8)
    monkeypatch.setattr(train.loop, "evaluate", real)
    assert recipe.session(run, until_step=None).kind == "finished"
    assert_equal(state_of(whole), state_of(run))
    assert lines(whole) == lines(run)


def test_the_runs_are_worth_comparing(recipe: SmallRecipe, whole: RunDir) -> None:
    """Several epochs, a loss that moves, and a last batch that is not the first's."""
    found = lines(whole)
    assert [line["step"] for line in found] == [2, 4, 6, 8, 10, 12]
    assert found[-1]["epoch"] >= 2
    assert len({line["loss"] for line in found}) == len(found)
