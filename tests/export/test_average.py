from __future__ import annotations

import pytest
import torch

from core.errors import CheckpointError
from export.average import State, mean_of


def states(count: int) -> list[State]:
    generator = torch.Generator().manual_seed(count)
    return [
        {
            "w": torch.randn(3, 2, generator=generator).double(),
            "batches": torch.tensor(10 * i),
            "half": torch.ones(2).bfloat16(),
        }
        for i in range(count)
    ]


def test_means_of_three_and_of_five_in_one_go_are_each_fresh_and_leave_the_inputs_alone() -> None:
    five = states(5)
    before = [{k: v.clone() for k, v in s.items()} for s in five]
    means = {n: mean_of(five[-n:]) for n in (3, 5)}
    for n, mean in means.items():
        torch.testing.assert_close(mean["w"], torch.stack([s["w"] for s in before[-n:]]).mean(0))
    assert all(torch.equal(s[k], b[k]) for s, b in zip(five, before, strict=True) for k in s)


def test_integers_come_from_the_newest_and_kinds_stay() -> None:
    mean = mean_of(states(4))
    assert mean["batches"].item() == 30 and mean["batches"].dtype == torch.int64
    assert mean["half"].dtype == torch.bfloat16


def test_sums_are_wide_enough_for_what_float32_would_lose() -> None:
    big = {"w": torch.tensor([1e8])}
    mean = mean_of([big, {"w": torch.tensor([1.0])}, {"w": torch.tensor([-1e8])}])
    torch.testing.assert_close(mean["w"], torch.tensor([1 / 3]))


def test_the_mean_of_one_is_a_copy() -> None:
    [one] = states(1)
    mean = mean_of([one])
    assert all(torch.equal(mean[k], one[k]) and mean[k].data_ptr() != one[k].data_ptr() for k in one)


def test_different_models_have_no_mean() -> None:
    with pytest.raises(CheckpointError, match="differ in half, w"):
        mean_of([{"w": torch.zeros(2), "half": torch.zeros(1)}, {"w": torch.zeros(3)}])
    with pytest.raises(CheckpointError, match="at least one"):
        mean_of([])
