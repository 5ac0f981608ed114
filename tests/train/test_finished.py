"""Whether a run has anything left to train, told without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from core.config import config_id
from core.manifest import META
from core.run_dir import RunDir, read_json, write_json
from tests.train.conftest import tiny_config
from train.finished import already_finished, write_train_metrics

CONFIG = tiny_config()
LAST = {
    "step": 12, "planned": 12, "data_id": "d", "valid_id": "v", "config_id": config_id(CONFIG), "finished": True,
    "epochs": CONFIG.train.epochs, "steps": CONFIG.train.steps, "session": "s", "digest": "x",
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path, "tiny")
    write_json(run.manifests / META, {"schema": 1, "data_id": {"train": "d", "valid": "v"}})
    write_json(run.last_facts, LAST)
    for name in ("last.pt", "best.pt", "step_0000012.pt"):
        (run.path / name).write_bytes(name.encode())
    return run


def test_a_finished_run_on_this_data_has_nothing_to_train_and_its_missing_output_is_made_again(run: RunDir) -> None:
    assert already_finished(run, CONFIG) == "tiny is finished: 12 steps on this data; nothing to train"
    assert read_json(run.train_metrics) == {
        "run": "tiny", "step": 12, "data_id": "d", "valid_id": "v", "config_id": config_id(CONFIG),
        "seen_in_training": [],
        "checkpoints": {name: hashlib.sha256(name.encode()).hexdigest() for name in ("best.pt", "step_0000012.pt")},
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"finished": False},
        {"data_id": "other"},
        {"valid_id": "other"},
        {"config_id": "other"},
        {"steps": 13},
        {"epochs": 3.0},
    ],
)
def test_anything_that_differs_is_left_to_a_session(run: RunDir, change: dict[str, Any]) -> None:
    write_json(run.last_facts, {**LAST, **change})
    assert already_finished(run, CONFIG) is None
    assert not run.train_metrics.exists()


def test_a_free_field_makes_no_session_needed(run: RunDir) -> None:
    assert already_finished(run, tiny_config(train={"log_every_steps": 7, "num_workers": 3})) is not None
    assert already_finished(run, tiny_config(train={"lr": 1e-4})) is None


@pytest.mark.parametrize("gone", ["last.pt", "last.json", "manifest"])
def test_what_is_gone_is_left_to_a_session(run: RunDir, gone: str) -> None:
    (run.manifests / META if gone == "manifest" else run.path / gone).unlink()
    assert already_finished(run, CONFIG) is None


def test_a_torn_fact_file_is_left_to_a_session(run: RunDir) -> None:
    run.last_facts.write_text("{", encoding="utf-8")
    assert already_finished(run, CONFIG) is None


def test_metrics_name_only_checkpoints_that_are_there(run: RunDir) -> None:
    run.best.unlink()
    write_train_metrics(run, LAST)
    assert list(read_json(run.train_metrics)["checkpoints"]) == ["step_0000012.pt"]


def test_an_output_that_speaks_of_other_weights_is_made_again_and_a_right_one_left_alone(run: RunDir) -> None:
    assert already_finished(run, CONFIG)
    right = run.train_metrics.read_bytes()
    written = run.train_metrics.stat().st_mtime_ns
    assert already_finished(run, CONFIG)
    assert run.train_metrics.stat().st_mtime_ns == written
    write_json(run.train_metrics, {"run": "tiny", "step": 5})
    assert already_finished(run, CONFIG)
    assert run.train_metrics.read_bytes() == right
