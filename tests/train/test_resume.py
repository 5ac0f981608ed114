"""Cut anywhere equals never cut: weights, moments, log lines and places, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.run_dir import RunDir
from tests.train.conftest import SmallRecipe, assert_equal, lines, state_of

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


def test_the_runs_are_worth_comparing(recipe: SmallRecipe, whole: RunDir) -> None:
    """Several epochs, a loss that moves, and a last batch that is not the first's."""
    found = lines(whole)
    assert [line["step"] for line in found] == [2, 4, 6, 8, 10, 12]
    assert found[-1]["epoch"] >= 2
    assert len({line["loss"] for line in found}) == len(found)
