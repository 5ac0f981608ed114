"""dvc.yaml with a stand-in for ``layl``: which stages run again, and what a pause does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.config import read_yaml

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.process, pytest.mark.skipif(os.name != "posix", reason="the stand-in is a shell script")]

LAYL = """#!/bin/sh
echo "$1" >> calls
[ -e "fail-$1" ] && rm "fail-$1" && exit 75
mkdir -p "data/manifests/$2" "runs/$2/plots" metrics "models/$2"
case "$1" in
  prepare) cat source > "data/manifests/$2/train.jsonl" ;;
  train)
    echo '<svg xmlns="http://www.w3.org/2000/svg"/>' > "runs/$2/plots/loss.svg"
    cat "data/manifests/$2/train.jsonl" > "metrics/$2.train.json" ;;
  export)
    cat "metrics/$2.train.json" > "models/$2/model"
    echo '{"test": {"wer": 0.25}}' > "metrics/$2.json" ;;
esac
"""


class Project:
    """A copy of the stages in a folder without git."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / ".dvc").mkdir(parents=True)
        (folder / "configs").mkdir()
        (folder / "bin").mkdir()
        for name in ("dvc.yaml", ".dvcignore", ".dvc/config", "configs/quran.yaml"):
            shutil.copy(ROOT / name, folder / name)
        (folder / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
        self.set_source("one")
        (folder / "bin" / "layl").write_text(LAYL)
        (folder / "bin" / "layl").chmod(0o755)

    def set_source(self, text: str) -> None:
        (self.folder / "source").write_text(text)

    def fail_once(self, stage: str) -> None:
        (self.folder / f"fail-{stage}").touch()

    def dvc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1"}
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)

    def repro(self) -> tuple[int, list[str]]:
        """Exit code, and the stages that ran."""
        (self.folder / "calls").unlink(missing_ok=True)
        done = self.dvc("repro")
        calls = self.folder / "calls"
        return done.returncode, calls.read_text().split() if calls.exists() else [done.stderr]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "with space ع")


def test_unchanged_sources_train_nothing_again_and_a_pause_keeps_what_is_published(project: Project) -> None:
    assert project.repro() == (0, ["prepare", "train", "export"])
    assert project.repro() == (0, ["prepare"])

    project.set_source("two")
    project.fail_once("train")
    code, ran = project.repro()
    assert (code != 0, ran) == (True, ["prepare", "train"])
    assert (project.folder / "models/quran/model").read_text() == "one"

    assert project.repro() == (0, ["prepare", "train", "export"])
    assert (project.folder / "models/quran/model").read_text() == "two"


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        ("prepare", "data/manifests/quran/train.jsonl"),
        ("train", "metrics/quran.train.json"),
        ("export", "models/quran/model"),
        ("export", "metrics/quran.json"),
    ],
)
def test_a_stage_that_fails_loses_nothing_of_what_it_made_before(project: Project, stage: str, kept: str) -> None:
    assert project.repro()[0] == 0
    before = (project.folder / kept).read_text()

    project.set_source("two")
    project.fail_once(stage)
    assert project.repro()[0] != 0

    assert (project.folder / kept).read_text() == before


def test_scores_and_pictures_are_shown_without_a_network(project: Project) -> None:
    assert project.repro()[0] == 0

    assert "0.25" in project.dvc("metrics", "show").stdout
    assert project.dvc("plots", "show").returncode == 0
    page = (project.folder / "dvc_plots/index.html").read_text()
    assert "loss.svg" in page
    assert "https://" not in page


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [("train", "lr", 0.25), ("train", "epochs", 3), ("data", "ordinary_share", 0.4), ("augment", "noise_share", 0.9)],
)
def test_a_changed_setting_reaches_the_trainer(project: Project, section: str, field: str, value: float) -> None:
    """Whether there is anything to train is the trainer's own question, answered in a fraction of a second."""
    assert project.repro()[0] == 0
    config = project.folder / "configs/quran.yaml"
    fields = read_yaml(config)
    config.write_text(json.dumps({**fields, section: {**fields[section], field: value}}))
    assert project.repro() == (0, ["prepare", "train"])
