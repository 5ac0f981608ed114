"""Nothing in the bookkeeping grows with the position: neither a step, nor what is held, nor the way back to it."""

from __future__ import annotations

import gc
import shutil
import statistics
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import train.loop
from core import checkpoint
from core.run_dir import RunDir, read_json
from tests.train.conftest import ToyBatch, ToyRecipe, sit, speech_run, tiny_config, toy_fit, toy_run
from train.session import Session
from train.step import Stepper

STEPS = 100_000
PART = 10_000


class Plain(ToyRecipe):
    """Batches that cost nothing to load, a thousand an epoch."""

    def __init__(self) -> None:
        self.source: Any = self

    def batches(self, epoch: int, values: Any) -> list[tuple[tuple[int, int], ...]]:
        return [((i, 0),) for i in range(1000)]

    def encode(self, row: int, draw: Any) -> Any:
        return row

    def collate(self, examples: Any) -> Any:
        return BATCH


BATCH = ToyBatch(torch.zeros(1, 8), torch.zeros(1), 1.0)


@pytest.mark.parametrize("traced", [False, True], ids=["time", "memory"])
def test_a_hundred_thousand_steps_cost_and_hold_no_more_at_their_end(
    tmp_path: Path, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, part = (STEPS, PART) if not traced else (STEPS // 5, PART // 5)
    now = [0.0]
    marks: list[tuple[float, int]] = []
    fit = toy_fit(
        toy_run(tmp_path), session=Session(RunDir(tmp_path, "toy"), "s", stop_at=1e12, clock=lambda: now[0]),
        planned=steps, minutes=1e9, recipe=Plain(),
    )  # fmt: skip
    fit.plan = train.loop.Plan(
        schedule=fit.plan.schedule, last_epoch=steps, clip_norm=1.0, log_every=50, eval_every=10 * part
    )

    def no_step(*_: Any) -> None:
        now[0] += 1.0
        if fit.state.progress.step % part == 0:
            gc.collect()
            marks.append((time.perf_counter(), tracemalloc.get_traced_memory()[0]))

    monkeypatch.setattr(Stepper, "take", no_step)
    # an end of an epoch writes candidates: that is the disk's time
    monkeypatch.setattr(fit.checkpoints, "save_step", lambda state: None)
    monkeypatch.setattr(fit.checkpoints, "save", lambda state: True)
    if traced:
        tracemalloc.start()
    try:
        assert fit.run().to_step == steps
    finally:
        tracemalloc.stop()
    seconds = [later[0] - earlier[0] for earlier, later in pairwise(marks)]
    held = [mark[1] for mark in marks]
    if traced:
        assert held[-1] - held[1] < 50_000, held
    else:
        assert statistics.median(seconds[-3:]) < 2 * statistics.median(seconds[:3]), seconds


@pytest.fixture(scope="module")
def at_step(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same run at step 10, and as if it had a million behind it."""
    found = {}
    for step in (10, 1_000_000):
        root = tmp_path_factory.mktemp(f"at{step}")
        run = speech_run(root)
        sit(run, LONG, until_step=10)
        if step != 10:
            value = {k: v for k, v in checkpoint.read(run.last).items() if k != "format"}
            value["progress"] |= {"step": step, "evaluated_step": step, "units_seen": 1e7}
            value["place"] |= {"epoch": 180_000, "consumed": step}
            checkpoint.write(run.last, value)
        found[step] = root
    return found


LONG = tiny_config(train={"steps": 2_000_000, "eval_every_steps": 7_777_777})


def test_the_way_back_and_the_first_step_take_as_long_at_a_million_steps_as_at_ten(
    at_step: dict[int, Path], tmp_path: Path
) -> None:
    taken: dict[int, list[float]] = {10: [], 1_000_000: []}
    for turn in range(7):
        for step, root in at_step.items():
            copy = tmp_path / f"{step}-{turn}"
            shutil.copytree(root, copy)
            run = RunDir(copy, "tiny")
            began = time.perf_counter()
            assert sit(run, LONG, until_step=step + 1).to_step == step + 1
            taken[step].append(time.perf_counter() - began)
            assert read_json(run.last_facts)["step"] == step + 1
    medians = {step: statistics.median(seconds) for step, seconds in taken.items()}
    assert medians[1_000_000] <= 1.5 * medians[10], medians
    assert medians[1_000_000] < 2.0
