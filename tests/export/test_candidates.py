from __future__ import annotations

import json

import pytest
import torch

from core.config import build
from core.errors import CheckpointError
from core.run_dir import RunDir
from core.speech.config import SpeechRun
from export.candidates import candidates
from tests.export.conftest import FIELDS, save, tiny_model


def test_best_last_and_the_mean_of_the_last_compete(project, said) -> None:
    run, config = project
    save(run.step_file(40), tiny_model(40), 40)
    best, last, mean = candidates(run, config, said[1])
    assert [(c.name, c.steps) for c in (best, last, mean)] == [
        ("best", (10,)),
        ("last", (40,)),
        ("mean_last", (20, 30, 40)),
    ]
    expected = torch.stack([tiny_model(s).head.weight for s in (20, 30, 40)]).mean(0)
    torch.testing.assert_close(mean.model().head.weight, expected)
    torch.testing.assert_close(last.model().head.weight, tiny_model(40).head.weight)
    assert best.data_id == "d" * 64 and best.vocabulary.symbols[0] == "<blk>"


def test_equal_weights_compete_once(project, said) -> None:
    run, config = project
    for step in (10, 20):
        run.step_file(step).unlink()
    save(run.best, tiny_model(30), 30)
    assert [c.name for c in candidates(run, config, said[1])] == ["best"]
    assert said[0] == ["last: the same weights as best", "mean_last: the same weights as best"]


def test_a_damaged_checkpoint_is_said_and_left_out(project, said) -> None:
    run, config = project
    data = bytearray(run.step_file(30).read_bytes())
    data[len(data) // 2] ^= 1
    run.step_file(30).write_bytes(data)
    found = {c.name: c.steps for c in candidates(run, config, said[1])}
    assert found == {"best": (10,), "last": (20,), "mean_last": (10, 20)}
    assert "step_0000030.pt" in said[0][0] and "damaged" in said[0][0]


def test_a_run_without_checkpoints_says_what_makes_them(tmp_path, said) -> None:
    with pytest.raises(CheckpointError, match="layl train nothing"):
        candidates(RunDir(tmp_path, "nothing"), build(SpeechRun, FIELDS, "test"), said[1])
    assert "best: the run has no such checkpoint" in said[0]


def test_checkpoints_of_different_models_do_not_compete(project, said) -> None:
    run, config = project
    section = json.loads(tiny_model(10).config.model_dump_json())
    save(run.best, tiny_model(10), 10, model_config={**section, "kernel": 7})
    with pytest.raises(CheckpointError, match="different models"):
        candidates(run, config, said[1])
    save(run.best, tiny_model(10), 10, vocab=["<blk>", "a"])
    with pytest.raises(CheckpointError, match="different models"):
        candidates(run, config, said[1])


def test_dropout_may_change_in_a_run_and_makes_no_other_model(project, said) -> None:
    run, config = project
    section = json.loads(tiny_model(10).config.model_dump_json())
    save(run.best, tiny_model(10), 10, model_config={**section, "dropout": 0.3, "drop_path": 0.1})
    assert [c.name for c in candidates(run, config, said[1])] == ["best", "last", "mean_last"]
