"""The learning rate of every update, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.schedule import Schedule, planned_steps

TO_1000 = Schedule(peak=1e-3, warmup=100, floor=0.05, planned=1100)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 1e-5),
        (1, 2e-5),
        (49, 5e-4),
        (98, 9.9e-4),
        (99, 1e-3),
        (100, 1e-3),
        # p = 1/4, 1/2, 3/4: the cosine is sqrt(1/2), 0, -sqrt(1/2)
        (350, 1e-3 * (0.05 + 0.95 * (1 + math.sqrt(0.5)) / 2)),
        (600, 1e-3 * (0.05 + 0.95 / 2)),
        (850, 1e-3 * (0.05 + 0.95 * (1 - math.sqrt(0.5)) / 2)),
        (1100, 5e-5),
        (5000, 5e-5),
    ],
)
def test_the_rate_rises_in_a_line_and_falls_along_a_cosine(step: int, rate: float) -> None:
    assert TO_1000.lr(step) == pytest.approx(rate, rel=1e-12)


def test_without_warm_up_the_first_update_has_the_peak_and_a_change_slows_nothing() -> None:
    schedule = Schedule(peak=0.5, warmup=0, floor=0.0, planned=10, warm_from=4)
    assert schedule.lr(0) == 0.5
    assert [schedule.rewarm_factor(step) for step in range(10)] == [1.0] * 10
    assert schedule.lr(5) == pytest.approx(0.25, rel=1e-12)


def test_a_floor_of_one_is_a_constant_rate() -> None:
    schedule = Schedule(peak=0.5, warmup=2, floor=1.0, planned=10)
    assert [schedule.lr(step) for step in (1, 2, 9, 30)] == [0.5] * 4


@pytest.mark.parametrize(("step", "factor"), [(500, 0.01), (501, 0.02), (549, 0.5), (599, 1.0), (600, 1.0), (900, 1.0)])
def test_after_a_change_the_scheduled_rate_comes_back_over_the_warm_up(step: int, factor: float) -> None:
    warmed = Schedule(peak=1e-3, warmup=100, floor=0.05, planned=1100, warm_from=500)
    assert warmed.lr(step) == pytest.approx(TO_1000.lr(step) * factor, rel=1e-12)


def test_a_change_within_the_first_warm_up_scales_that_too() -> None:
    warmed = Schedule(peak=1e-3, warmup=100, floor=0.05, planned=1100, warm_from=50)
    assert warmed.lr(50) == pytest.approx(1e-3 * 51 / 100 / 100, rel=1e-12)


def test_a_plan_that_ends_within_its_warm_up_has_no_fall() -> None:
    schedule = Schedule(peak=1.0, warmup=10, floor=0.1, planned=5)
    assert [schedule.lr(step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5], rel=1e-12)
    assert schedule.lr(11) == pytest.approx(0.1, rel=1e-12)


@given(
    st.integers(0, 50), st.integers(1, 500), st.floats(0, 1), st.integers(0, 500), st.integers(0, 600)
)  # fmt: skip
def test_no_rate_is_above_the_peak_or_below_nothing(
    warmup: int, planned: int, floor: float, warm_from: int, step: int
) -> None:
    # a change lies before the steps that follow it
    rate = Schedule(1e-3, warmup, floor, planned, min(warm_from, step)).lr(step)
    assert 0 <= rate <= 1e-3 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("epochs", "steps", "held", "planned"), [(10, None, 7, 70), (1.5, None, 7, 10), (0.01, None, 7, 1), (10, 3, 7, 3)]
)
def test_named_steps_win_over_epochs(epochs: float, steps: int | None, held: int, planned: int) -> None:
    assert planned_steps(epochs, steps, held) == planned
