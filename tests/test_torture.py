"""A run that is killed again and again equals one never touched: the short form of ``make torture``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.torture import Kill, plan, run_all


def test_the_plan_is_a_function_of_its_seed_and_has_every_kind_of_kill() -> None:
    assert plan(200, 1) == plan(200, 1) != plan(200, 2) and plan(200, 1)[:50] == plan(50, 1)
    kinds = Counter(kill.how for kill in plan(200, 1))
    assert set(kinds) == {"KILL", "TERM", "TERM twice", "STOP"} and kinds["KILL"] > 80
    assert {kill.aim for kill in plan(200, 1)} == {"time", "save", "validation"}
    assert all(isinstance(kill, Kill) and 0 <= kill.after <= 15 for kill in plan(200, 1))


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_a_run_killed_ten_times_is_the_run_that_nobody_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report = run_all(tmp_path, kills=10, seed=3, latest=8.0, say=lambda _: None)
    assert not report.problems, str(report)
    assert report.kills == 10 and len(report.where) > 1, str(report)
