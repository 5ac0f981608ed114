"""dvc.yaml with the real ``layl`` on a corpus of tones: pauses, changed transcripts, removed clips, scores."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.process, pytest.mark.skipif(os.name != "posix", reason="`layl` is a shell script here")]

WORDS = {"one": 330, "two": 520, "three": 760}
CONFIG = {
    "data": {
        "sources": [{"kind": "nemo", "manifest": "data/raw/tones/clips.jsonl"}],
        "text": "plain",
        "split": {"valid": ["vera"], "test": ["tom"]},
    },
    "model": {"width": 16, "blocks": 2, "heads": 2, "kernel": 3, "stem_channels": 4},
    "train": {"epochs": 3, "lr": 0.005, "warmup_steps": 5, "max_batch_seconds": 6, "eval_every_steps": 8},
    "augment": {},
    "spec_augment": {},
    "export": {"max_int8_loss_points": 100},
}


class Corpus:
    """Tones for words, read by six people; one JSON line a clip."""

    def __init__(self, folder: Path):
        self.manifest = folder / "clips.jsonl"
        folder.mkdir(parents=True)
        self.rows: list[dict[str, str]] = []
        for reader in ("anna", "bert", "cleo", "dora", "tom", "vera"):
            for take in range(4):
                self._record(folder, reader, take)
        self.write()

    def _record(self, folder: Path, reader: str, take: int) -> None:
        random = np.random.default_rng(len(self.rows))
        words = [list(WORDS)[i] for i in random.integers(0, 3, 2)]
        time = np.arange(9_000) / 16_000
        tones = [np.sin(2 * np.pi * WORDS[word] * time) for word in words]
        sound = 0.3 * np.concatenate(tones) + 0.01 * random.standard_normal(18_000)
        with wave.open(str(folder / f"{reader}{take}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes((sound * 32_000).astype("<i2").tobytes())
        self.rows.append({"audio": f"{reader}{take}.wav", "text": " ".join(words), "speaker": reader})

    def write(self) -> None:
        self.manifest.write_text("".join(json.dumps(row) + "\n" for row in self.rows))


class Project:
    """A project without git whose one run is called quran, as in dvc.yaml."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in (".dvc", "configs", "bin"):
            (folder / name).mkdir(parents=True)
        for name in ("dvc.yaml", ".dvcignore", ".dvc/config"):
            shutil.copy(ROOT / name, folder / name)
        (folder / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
        (folder / "configs" / "quran.yaml").write_text(json.dumps(CONFIG))
        command = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -P -m cli"
        (folder / "bin" / "layl").write_text(f'#!/bin/sh\n{command} "$@"\n')
        (folder / "bin" / "layl").chmod(0o755)
        self.corpus = Corpus(folder / "data" / "raw" / "tones")

    def dvc(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        changed = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1", **environment}
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(command, cwd=self.folder, env=changed, capture_output=True, text=True, timeout=300)

    def repro(self, **environment: str) -> tuple[int, str]:
        done = self.dvc("repro", **environment)
        return done.returncode, done.stdout + done.stderr


def test_the_stages_go_on_after_a_pause_skip_what_is_done_and_warm_up_after_a_change(tmp_path: Path) -> None:
    project = Project(tmp_path / "with space ع")

    code, said = project.repro(LAYL_UNTIL_STEP="5")
    assert code != 0
    assert "saved at step 5 of" in said and "`dvc repro`) goes on" in said
    assert not (project.folder / "models").exists()

    code, said = project.repro()
    assert code == 0, said
    assert "resumed at step 5 of" in said
    assert (project.folder / "models/quran/model.int8.onnx").is_file()

    code, said = project.repro()
    assert code == 0, said
    assert "Stage 'train@quran' didn't change, skipping" in said
    assert "Stage 'export@quran' didn't change, skipping" in said

    project.corpus.rows[0]["text"] = "two two three"
    project.corpus.write()
    code, said = project.repro()
    assert code == 0, said
    assert "data changed: +0 -0 ~1 clips" in said and "learning rate warms up again" in said
    assert "published" in said

    del project.corpus.rows[1]
    project.corpus.write()
    code, said = project.repro()
    assert code == 0, said
    assert "data changed: +0 -1 ~0 clips" in said and "learning rate warms up again" in said

    assert "test.cer" in project.dvc("metrics", "show").stdout
    assert project.dvc("plots", "show").returncode == 0
    page = (project.folder / "dvc_plots/index.html").read_text()
    assert "errors.svg" in page and "https://" not in page
