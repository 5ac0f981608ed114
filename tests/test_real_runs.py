"""The real path, end to end and in small: speech to manifests, training, the exported file, a transcript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from core.manifest import read_prepared
from core.run_dir import RunDir
from core.speech.audio import load, to_int16

CHECKOUT = Path(__file__).resolve().parent.parent
#: Three training voices and the three that are held out, on a handful of short suras; about 90 s of training.
SAMPLE = """
extends: quran.yaml
data:
  sources: [{kind: sample, voices: 6, suras: [1, 99, 102, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114]}]
  split: {unseen_verse_share: 0}
train: {epochs: 1, steps: 420, max_batch_seconds: 40, warmup_steps: 100, eval_every_steps: 210}
augment: {start_after_steps: 420}
"""
#: Five people's digits for about two minutes, to be tested on a sixth.
DIGITS = """
extends: digits.yaml
data:
  sources: [{kind: digits, test_speaker: jackson, utterances: 500}]
train: {epochs: 1, steps: 560, max_batch_seconds: 40, warmup_steps: 100, eval_every_steps: 280}
augment: {start_after_steps: 280}
"""


def layl(root: Path, *words: str) -> str:
    """Run a command as a user does; its output."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONIOENCODING": "utf-8"}
    # the trainer is alone here: let it have the cores
    environment.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-P", "-m", "cli", *words]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def project(root: Path, config: str) -> RunDir:
    """A project with the shipped configurations and one that extends them, prepared, trained and exported."""
    shutil.copytree(CHECKOUT / "configs", root / "configs")
    (root / "dvc.yaml").touch()
    (root / "configs" / "small.yaml").write_text(config)
    for stage in ("prepare", "train", "export"):
        layl(root, stage, "small")
    return RunDir(root, "small")


@pytest.mark.process
def test_the_sample_becomes_a_recogniser_that_hears_voices_it_never_met(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    run = project(tmp_path, SAMPLE)
    metrics = json.loads(run.metrics.read_text())
    test = metrics["test"]
    print(f"letter error on {test['clips']} clips of unheard synthetic voices: {test['cer']:.1%}")
    assert test["cer"] < 0.60
    assert metrics["synthetic"] is True

    row = read_prepared(run.manifests).splits["test"].rows[0]
    clip = tmp_path / "clip.wav"
    with wave.open(str(clip), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(to_int16(load(row, tmp_path)).astype(np.int16).tobytes())
    own = json.loads(layl(tmp_path, "transcribe", "--run", "small", "--json", str(clip)))
    theirs = json.loads(layl(tmp_path, "transcribe", "--run", "small", "--client", "sherpa", "--json", str(clip)))
    assert own and own == theirs


@pytest.mark.process
@pytest.mark.skipif(not os.environ.get("LAYL_FSDD"), reason="LAYL_FSDD names no Free Spoken Digit Dataset")
def test_digits_of_a_person_never_heard_are_understood(tmp_path: Path) -> None:
    run = project(tmp_path, DIGITS)
    test = json.loads(run.metrics.read_text())["test"]
    print(f"words right on {test['clips']} utterances of an unheard speaker: {1 - test['wer']:.1%}")
    assert 1 - test["wer"] >= 0.40
