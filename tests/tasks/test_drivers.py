"""Who drives a session is known after both the driver and whoever would report it are gone."""

from __future__ import annotations

from typing import Any

import pytest

from core.process import mark_of, owner_facts
from core.run_dir import RunDir, read_json, write_json
from tasks.drivers import take_over


@pytest.fixture
def run(tmp_path) -> RunDir:
    run = RunDir(tmp_path, "r")
    run.path.mkdir(parents=True)
    return run


def driver(flow_run: str, **others: Any) -> dict[str, Any]:
    return {**owner_facts("prefect", "s", flow_run), **others}


def alive_elsewhere(flow_run: str) -> dict[str, Any]:
    parent = mark_of(1)
    return driver(flow_run, pid=parent.pid, start_time=parent.start_time)


def test_nobody_drove_before(run) -> None:
    assert take_over(run, "mine", "s") is None
    assert read_json(run.flow)["flow_run"] == "mine"


@pytest.mark.parametrize("gone", [{"start_time": 1.0}, {"boot_id": "another"}, {"pid": 2**22 + 1}])
def test_a_driver_whose_process_is_gone_is_named_once(run, gone) -> None:
    write_json(run.flow, driver("old", **gone))
    assert take_over(run, "mine", "s") == "old"
    assert take_over(run, "mine", "s") is None


def test_one_of_before_in_this_very_process_has_ended(run) -> None:
    assert take_over(run, "first", "s") is None
    assert take_over(run, "second", "s") == "first"


def test_a_driver_that_lives_stays(run) -> None:
    write_json(run.flow, alive_elsewhere("first"))
    assert take_over(run, "second", "t") is None
    assert read_json(run.flow)["flow_run"] == "first"


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"flow_run": 3}'])
def test_a_torn_record_is_nobody(run, torn) -> None:
    run.flow.write_text(torn)
    assert take_over(run, "mine", "s") is None
