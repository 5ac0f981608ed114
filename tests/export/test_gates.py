from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from core.errors import ExportRefused
from core.speech import features
from core.speech.model import SpeechModel
from core.speech.text import Vocabulary
from export import gates
from export.client import FLOAT_FILE, INT8_FILE, TOKENS_FILE, Recogniser, SherpaRecogniser
from export.onnx_file import export_float, quantise
from tests.export.conftest import VOCABULARY, make_row, sound, tiny_model

SOUND = sound(13, 1)


def test_the_exported_model_passes_parity_and_another_one_does_not(exported: Path, model: SpeechModel) -> None:
    recogniser = Recogniser(exported, FLOAT_FILE)
    assert gates.parity(model, recogniser, SOUND).passed
    assert not gates.parity(tiny_model(seed=1), recogniser, SOUND).passed
    assert not gates.parity(model, Recogniser(exported, INT8_FILE), SOUND).passed


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
    assert gate.passed and "on 12 clips and a test signal" in gate.detail, gate.detail


@pytest.fixture(scope="module", params=["opinions", "untrained", "silent"])
def weak(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Exported models with random weights: one with opinions, one of ties, and one that writes nothing at all."""
    model = tiny_model(seed=2)
    if request.param != "opinions":
        torch.nn.init.normal_(model.head.weight, std=0.02)
    if request.param == "silent":
        torch.nn.init.constant_(model.head.bias[:1], 50.0)
    folder = tmp_path_factory.mktemp("weak")
    export_float(model, VOCABULARY.symbols, {}, folder / FLOAT_FILE)
    quantise(folder / FLOAT_FILE, folder / INT8_FILE)
    (folder / TOKENS_FILE).write_text(VOCABULARY.tokens_text(), encoding="utf-8")
    return request.param, folder


@pytest.mark.parametrize("file", [FLOAT_FILE, INT8_FILE])
@pytest.mark.parametrize("clips", [0, 3])
def test_other_features_than_the_phones_are_found_with_weak_models_and_without_clips(
    file: str, clips: int, weak: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_row(tmp_path, f"c{i}", 1.5, i) for i in range(clips)]
    kind, folder = weak
    right = gates.sherpa_agrees(folder, file, rows, tmp_path)
    assert right.passed and f"on {clips} clips and" in right.detail
    assert ("writes nothing" in right.detail) == (kind == "silent")
    monkeypatch.setattr(features, "HIGH_HZ", 0.0)
    wrong = gates.sherpa_agrees(folder, file, rows, tmp_path)
    assert wrong.passed == (kind == "silent"), wrong.detail
    # what a silent model cannot tell, the probe does
    assert not gates.sherpa_features().passed


def test_ties_excuse_a_few_symbols_of_all_and_none_where_there_is_no_tie(exported: Path) -> None:
    def judged(*heard: tuple[int, int, int]) -> bool:
        return gates._judged("x", [gates._Heard("a", *one) for one in heard]).passed

    assert judged((500, 5, 0), (0, 0, 0)) and not judged((500, 6, 0), (0, 0, 0))
    assert judged((4, 2, 0)) and not judged((4, 3, 0)) and not judged((1000, 1, 1))


def test_a_symbol_that_differs_is_excused_by_a_tie_only(exported: Path) -> None:
    class OneLess(Recogniser):
        def symbols(self, samples: np.ndarray) -> list[str]:
            return super().symbols(samples)[1:]

    ours, theirs = Recogniser(exported, FLOAT_FILE), OneLess(exported, FLOAT_FILE)
    heard = {margin: gates._compared("a", sound(2.0, 1), ours, theirs, margin) for margin in (0.0, 100.0)}  # type: ignore[arg-type]
    assert all(one.differ == 1 and one.symbols > 5 for one in heard.values())
    assert [one.unexplained for one in heard.values()] == [1, 0]


def test_clips_of_over_a_minute_are_compared_by_their_first_one(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, real = [], SherpaRecogniser.symbols
    monkeypatch.setattr(SherpaRecogniser, "symbols", lambda self, s: (lengths.append(len(s)), real(self, s))[1])
    gate = gates.sherpa_agrees(exported, FLOAT_FILE, [make_row(tmp_path, "long", 61.0, 1)], tmp_path)
    assert gate.passed and "on 1 clip and" in gate.detail
    assert lengths == [60 * 16000, 20 * 16000]


def test_clips_come_from_all_over_the_split(tmp_path: Path) -> None:
    rows = [make_row(tmp_path, f"c{i:02}", 0.02, i) for i in range(23)]
    names = [row.name for row in gates.evenly(rows, 12)]
    assert len(names) == 12 and names[0] == "c00" and names[-1] == "c21" and names == sorted(set(names))
    assert gates.evenly(rows[:3], 12) == rows[:3] and gates.evenly([], 12) == []


@pytest.mark.parametrize(("name", "value"), [("HIGH_HZ", 0.0), ("HIGH_HZ", -300.0), ("LOW_HZ", 40.0)])
def test_the_probe_hears_wrong_filters(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gates.sherpa_features()
    assert right.passed and int(right.detail.split(" of ")[1].split()[0]) > 150, right.detail
    monkeypatch.setattr(features, name, value)
    assert not gates.sherpa_features().passed


def test_the_probe_hears_another_scale_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recogniser.features
    monkeypatch.setattr(Recogniser, "features", lambda self, samples: real(self, 32768 * samples))
    assert not gates.sherpa_features().passed


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


def test_parity_allows_for_float32_but_never_for_a_model_that_is_broken(exported: Path, model: SpeechModel) -> None:
    broken = tiny_model()
    with torch.no_grad():
        broken.head.bias[0] = float("nan")
    gate = gates.parity(broken, Recogniser(exported, FLOAT_FILE), SOUND)
    assert not gate.passed
    assert "(allowed 1.0e-03)" in gate.detail
    # a model that float32 suits is held to the plain tolerance
    assert "(allowed 1.0e-04)" in gates.parity(model, Recogniser(exported, FLOAT_FILE), SOUND).detail
