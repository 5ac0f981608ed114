"""What is in a checkpoint, and that nothing of it is restored by half."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import nn

from core.errors import CheckpointError
from tests.train.conftest import CPU
from train.device import Precision
from train.state import Averages, Identity, Place, Progress, TrainState


def made(seed: int = 0) -> TrainState:
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    state = TrainState(
        model, torch.optim.AdamW(model.parameters(), lr=0.1 + seed), Precision("fp32", CPU).scaler,  # type: ignore[arg-type]
        Place(epoch=seed + 2, batch=3, consumed=8, values={"train.seed": 1}),
        Progress(step=7, best_score=0.5, warm_from=2), Averages(CPU), Identity(data_id=f"d{seed}", symbols=["a"]),
    )  # fmt: skip
    model(torch.ones(1, 3)).sum().backward()
    state.optimizer.step()
    state.averages.add(torch.tensor(6.0), 3, torch.tensor(0.5 + seed))
    return state


def test_every_part_comes_back() -> None:
    saved, other = made(1), made(2)
    other.load_state_dict(saved.state_dict())
    assert str(other.state_dict()) == str(saved.state_dict())
    assert other.averages.take() == (2.0, 1.5)


@pytest.mark.parametrize("part", [f.name for f in fields(TrainState)])
def test_a_part_that_is_missing_or_does_not_fit_is_an_error_that_names_it(part: str) -> None:
    value = made().state_dict()
    with pytest.raises(CheckpointError, match=f"the checkpoint has no '{part}'"):
        made().load_state_dict({k: v for k, v in value.items() if k != part})
    if part != "scaler":  # a scaler that is off takes anything
        with pytest.raises(CheckpointError):
            made().load_state_dict({**value, part: {"surprise": 1}})


def test_a_field_of_a_newer_layl_is_an_error_and_one_of_an_older_its_default() -> None:
    place = Place(epoch=4)
    place.load_state_dict({"batch": 2})
    assert place == Place(epoch=4, batch=2)
    with pytest.raises(CheckpointError, match=r"Place of a newer layl: unknown \['lane'\]; update layl"):
        place.load_state_dict({"lane": 1})


def test_averages_are_means_over_steps_and_begin_anew() -> None:
    averages = Averages(CPU)
    assert averages.take() == (None, None)
    averages.add(torch.tensor(10.0), 5, torch.tensor(1.0))
    averages.add(torch.tensor(4.0), 1, torch.tensor(2.0))
    assert averages.take() == (3.0, 1.5)
    assert averages.take() == (None, None)
