"""The GPU benchmark's parts on a CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu
from core.speech.config import ModelSection
from core.speech.features import FILTERS
from core.speech.model import SpeechModel

TINY = ModelSection.model_validate({"width": 16, "blocks": 1, "heads": 2, "kernel": 3, "stem_channels": 4})


def test_without_a_gpu_it_says_so_and_ends_well(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 0
    assert "no CUDA GPU" in capsys.readouterr().out


def test_twice_the_clips_are_twice_the_operations() -> None:
    model = SpeechModel(TINY, 5)

    def flops(clips: int) -> int:
        return gpu.step_flops(model, torch.zeros(clips, 40, FILTERS), torch.full((clips,), 40))

    assert flops(1) > 0
    assert flops(4) == pytest.approx(4 * flops(1), rel=0.01)


@pytest.mark.slow
@pytest.mark.process
def test_all_of_it_runs_small_on_a_cpu(capsys) -> None:
    assert gpu.main(["--device", "cpu", "--small"]) == 0
    assert "against never cut: equal" in capsys.readouterr().out


@pytest.mark.gpu
def test_resume_is_exact_on_a_gpu(tmp_path) -> None:
    overrides = (*gpu.SMALL, "train.device=cuda")
    gpu.scratch_project(tmp_path / "project", overrides)
    assert gpu.resume_is_exact(tmp_path / "project", overrides, 12, (3, 8))
