from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from core.errors import ExportRefused
from core.speech import features
from core.speech.model import SpeechModel
from core.speech.text import Vocabulary
from export import gates
from export.client import FLOAT_FILE, INT8_FILE, TOKENS_FILE, Recogniser
from tests.export.conftest import VOCABULARY, make_row, tiny_model


def test_the_exported_model_passes_parity_and_another_one_does_not(exported: Path, model: SpeechModel) -> None:
    recogniser = Recogniser(exported, FLOAT_FILE)
    assert gates.parity(model, recogniser).passed
    assert not gates.parity(tiny_model(seed=1), recogniser).passed
    assert not gates.parity(model, Recogniser(exported, INT8_FILE)).passed


@pytest.mark.parametrize(
    ("exact", "rough", "passed"),
    [
        (0.0, 0.001, True),
        (0.0, 0.0011, False),
        (0.02, 0.021, True),
        (0.02, 0.0212, False),
        (0.2, 0.204, True),
        (0.2, 0.2041, False),
        (0.2, 0.1, True),
    ],
)
def test_int8_may_lose_a_tenth_of_a_point_or_two_per_cent_of_the_rate(exact: float, rough: float, passed: bool) -> None:
    assert gates.int8_loss(exact, rough, 0.1).passed is passed


def test_size_is_gated_for_named_sizes_and_said_for_a_demo(tmp_path: Path) -> None:
    file = tmp_path / "m"
    file.write_bytes(bytes(1_110_000))
    assert not gates.size(file, 1.0, "16m").passed and gates.size(file, 1.01, "33m").passed
    demo = gates.size(file, 0.5, "demo")
    assert demo.passed and "1.1 MB" in demo.detail and "not gated" in demo.detail


@pytest.mark.parametrize("file", [FLOAT_FILE, INT8_FILE])
def test_sherpa_agrees_on_wav_files(file: str, exported: Path, tmp_path: Path) -> None:
    rows = [make_row(tmp_path, f"c{i}", 1 + 0.2 * i, i) for i in range(15)]
    gate = gates.sherpa_agrees(exported, file, rows, tmp_path)
    assert gate.passed and "of 12 clips" in gate.detail, gate.detail


def test_other_features_than_the_phones_are_found(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_row(tmp_path, f"c{i}", 1.5, i) for i in range(3)]
    monkeypatch.setattr(features, "HIGH_HZ", 0.0)
    assert not gates.sherpa_agrees(exported, FLOAT_FILE, rows, tmp_path).passed


def test_another_models_tokens_are_found(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_row(tmp_path, f"c{i}", 1.5, i) for i in range(3)]
    folder = tmp_path / "wrong"
    shutil.copytree(exported, folder)
    turned = Vocabulary((*VOCABULARY.symbols[:2], *reversed(VOCABULARY.symbols[2:])))
    real = Vocabulary.from_tokens_text
    monkeypatch.setattr(Vocabulary, "from_tokens_text", lambda text: real(turned.tokens_text()))
    assert (folder / TOKENS_FILE).is_file()
    assert not gates.sherpa_agrees(folder, INT8_FILE, rows, tmp_path).passed


def test_every_failed_gate_is_named_and_the_exit_code_is_73() -> None:
    proofs = [gates.Gate("a", True, "fine"), gates.Gate("b", False, "too big"), gates.Gate("c", False, "too far")]
    with pytest.raises(ExportRefused) as caught:
        gates.refuse_unless_passed(proofs)
    assert caught.value.exit_code == 73
    assert "b: too big" in str(caught.value) and "c: too far" in str(caught.value) and "fine" not in str(caught.value)
    gates.refuse_unless_passed(proofs[:1])
