"""A small random model, its exported files, and a project whose run has checkpoints, all made anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from core import checkpoint
from core.config import build
from core.manifest import Row, data_id, manifest_text, publish, row_id
from core.run_dir import RunDir, write_json
from core.speech import audio
from core.speech.config import ModelSection, SpeechRun
from core.speech.model import SpeechModel
from core.speech.text import LETTERS, Vocabulary
from export.client import FLOAT_FILE, INT8_FILE, TOKENS_FILE
from export.onnx_file import export_float, quantise
from export.pipeline import export

TINY = {"width": 32, "blocks": 2, "heads": 2, "ff_factor": 2, "kernel": 5, "stem_channels": 8}
VOCABULARY = Vocabulary(("<blk>", " ", *LETTERS))
FIELDS = {
    "data": {"sources": [{"kind": "sample"}]},
    "model": TINY,
    # a random model has nothing to lose in 8 bits but ties
    "export": {"average": 3, "max_int8_loss_points": 50.0},
}


def tiny_model(seed: int = 0, **fields: object) -> SpeechModel:
    """Random weights with opinions."""
    torch.manual_seed(seed)
    model = SpeechModel(ModelSection.model_validate({**TINY, **fields}), len(VOCABULARY)).eval()
    torch.nn.init.normal_(model.head.weight, std=0.5)
    model.set_statistics(torch.linspace(-9, -6, 80), torch.linspace(2, 3, 80))
    return model


def sound(seconds: float, seed: int) -> np.ndarray:
    """Bursts of coloured noise."""
    rng = np.random.default_rng(seed)
    samples = int(seconds * 16000)
    steps = np.repeat(rng.uniform(0, 0.2, samples // 1600 + 1), 1600)[:samples]
    return (np.convolve(rng.standard_normal(samples), rng.standard_normal(9), "same") * steps * 0.3).astype(np.float32)


@pytest.fixture(scope="session")
def model() -> SpeechModel:
    return tiny_model()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, model: SpeechModel) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export_float(model, VOCABULARY.symbols, {"step": 7, "data_id": "abc"}, folder / FLOAT_FILE)
    quantise(folder / FLOAT_FILE, folder / INT8_FILE)
    (folder / TOKENS_FILE).write_text(VOCABULARY.tokens_text(), encoding="utf-8")
    return folder


def make_row(root: Path, name: str, seconds: float, seed: int, text: str = "قل هو الله أحد", **columns: object) -> Row:
    """A wav under ``root`` and its row."""
    path = root / "data" / f"{name}.wav"
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, sound(seconds, seed), 16000, subtype="PCM_16")
    samples = audio.decode(path)
    digest = audio.digest(samples)
    columns = {"reciter": f"reader {seed % 2}", "riwaya": "hafs", "group": "ordinary", **columns}
    return Row(
        id=row_id(digest, text, str(columns["group"])),
        name=name,
        audio=str(path.relative_to(root)),
        digest=digest,
        duration=round(len(samples) / 16000, 6),
        text=text,
        source="sample",
        **columns,  # type: ignore[arg-type]
    )


def save(path: Path, model: SpeechModel, step: int, **extra: object) -> None:
    facts = {
        "model_config": json.loads(model.config.model_dump_json()),
        "vocab": list(VOCABULARY.symbols),
        "step": step,
        "data_id": "d" * 64,
        "valid_id": "v" * 64,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write(path, {"model": model.state_dict(), **facts, **extra})


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 30 steps with manifests, best at 10, and three step files: to copy, not to change."""
    root = tmp_path_factory.mktemp("made")
    run = RunDir(root, "quran")
    splits = {
        "train": [make_row(root, "t0", 1.0, 0)],
        "valid": [make_row(root, f"v{i}", 0.6 + 0.2 * i, 10 + i) for i in range(5)],
        "test": [make_row(root, f"e{i}", 1.0, 20 + i) for i in range(2)],
        "unseen_verse": [],
    }
    files = {f"{split}.jsonl": manifest_text(rows) for split, rows in splits.items()}
    files["tokens.txt"] = VOCABULARY.tokens_text()
    publish(run.manifests, files, {"data_id": {split: data_id(rows) for split, rows in splits.items()}})
    for step in (10, 20, 30):
        save(run.step_file(step), tiny_model(step), step)
    save(run.best, tiny_model(10), 10, valid_cer=0.5)
    write_json(run.last_facts, {"step": 30, "planned": 30})
    return root


@pytest.fixture
def project(made: Path, tmp_path: Path) -> tuple[RunDir, SpeechRun]:
    """A run of one's own, not yet exported."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return RunDir(tmp_path, "quran"), build(SpeechRun, FIELDS, "test")


@dataclass(frozen=True)
class Published:
    run: RunDir
    metrics: dict[str, Any]
    said: list[str]


@pytest.fixture(scope="session")
def published(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The same run exported once: to read or copy, not to change."""
    root = tmp_path_factory.mktemp("published")
    shutil.copytree(made, root, dirs_exist_ok=True)
    run, said = RunDir(root, "quran"), []
    return Published(run, export(run, build(SpeechRun, FIELDS, "test"), report=said.append), said)


@pytest.fixture
def said() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append
