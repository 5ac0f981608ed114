from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

CONFIG = "data:\n  sources:\n    - kind: sample\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with the runs quran and digits, where the person stands."""
    root = tmp_path.resolve()
    (root / "configs").mkdir()
    (root / "dvc.yaml").write_text("stages: {}\n")
    for name in ("quran", "digits"):
        (root / "configs" / f"{name}.yaml").write_text(CONFIG)
        (root / "data" / "manifests" / name).mkdir(parents=True)
    monkeypatch.chdir(root)
    for name in ("LAYL_ROOT", "LAYL_STOP_AT", "LAYL_STOP_AFTER", "LAYL_UNTIL_STEP", "LAYL_ON_CHANGE"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()
