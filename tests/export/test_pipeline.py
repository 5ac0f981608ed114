from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from core import checkpoint
from core.config import build
from core.errors import DataError, ExportRefused
from core.manifest import manifest_text, publish, read_prepared
from core.run_dir import RunDir, read_json, write_json
from core.seen import origins_of
from core.speech import features
from core.speech.config import SpeechRun
from export import pipeline
from export.candidates import candidates
from export.client import Recogniser
from export.hearing import heard_live
from export.pipeline import export
from tests.export.conftest import FIELDS, save, sound, tiny_model

PUBLISHED = ["README.md", "model.int8.onnx", "model.json", "model.onnx", "spelling.json", "tokens.txt"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def teach(run: RunDir, config: SpeechRun, name: str) -> None:
    """Rewrite the validation texts to what candidate ``name`` hears, so that it makes no mistake."""
    prepared = read_prepared(run.manifests)
    [candidate] = [c for c in candidates(run, config, lambda _: None) if c.name == name]
    texts = heard_live(candidate.model(), prepared.valid.rows, run.root, candidate.vocabulary)
    files = {f"{s}.jsonl": manifest_text(m.rows) for s, m in prepared.splits.items()}
    rows = [json.loads(line) | {"text": t} for line, t in zip(files["valid.jsonl"].splitlines(), texts, strict=True)]
    files["valid.jsonl"] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    publish(run.manifests, {**files, "tokens.txt": prepared.tokens}, {})


def test_a_whole_export_publishes_what_it_measured(published) -> None:
    run, metrics = published.run, published.metrics
    assert sorted(files_of(run.models)) == PUBLISHED
    assert read_json(run.metrics) == metrics
    facts = read_json(run.models / "model.json")
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files_of(run.models).items()}
    assert {name: digest for name, digest in digests.items() if name != "model.json"} == facts["files"]
    assert metrics["file"] == "model.int8.onnx" and metrics["unfinished"] is None and metrics["unseen_verse"] is None
    assert {"cer", "wer", "skeleton", "clips", "letters", "hafs_cer", "by_length"} <= metrics["test"].keys()
    assert metrics["valid"]["cer"] == facts["scores"]["int8"]["valid"]["cer"] and metrics["test"]["clips"] == 2
    assert metrics["float32"]["cer"] == facts["scores"]["float32"]["valid"]["cer"]
    assert metrics["step"] == facts["step"] and metrics["data_id"] == "d" * 64
    assert metrics["size_mb"] == round((run.models / "model.int8.onnx").stat().st_size / 1e6, 2)
    assert 0 < metrics["rtf"] < 1
    assert facts["blank"] == 0 and len(facts["mean"]) == len(facts["std"]) == 80 and facts["vocabulary"][1] == " "
    assert len((run.models / "tokens.txt").read_text().splitlines()) == len(facts["vocabulary"])
    assert Recogniser(run.models).transcribe(sound(1, 1))
    assert sorted(p.name for p in run.models.parent.iterdir()) == ["quran"]


def test_the_winner_has_the_fewest_wrong_letters_on_validation(project, said) -> None:
    run, config = project
    for name, step in (("best", 10), ("last", 30), ("mean_last", 30)):
        teach(run, config, name)
        metrics = export(run, config, report=said[1])
        assert (metrics["candidate"], metrics["step"], metrics["float32"]["cer"]) == (name, step, 0.0)
    table = read_json(run.models / "model.json")["candidates"]
    assert [row["shipped"] for row in table] == [False, False, True]
    assert table[2]["cer"] == 0 < min(table[0]["cer"], table[1]["cer"])
    assert any(line.startswith("-> mean_last") for line in said[0])


def test_a_refused_export_leaves_what_is_published_alone(published, tmp_path, said, monkeypatch) -> None:
    shutil.copytree(published.run.root, tmp_path, dirs_exist_ok=True)
    run = RunDir(tmp_path, "quran")
    before, metrics = files_of(run.models), run.metrics.read_bytes()
    save(run.best, tiny_model(77), 99)
    strict = build(SpeechRun, {**FIELDS, "export": {"max_int8_loss_points": 0.0}}, "test")
    teach(run, strict, "best")
    real = pipeline.quantise
    # eight bits of another model: the loudest way in which quantising can go wrong
    monkeypatch.setattr(
        pipeline,
        "quantise",
        lambda source, target: (real(source, target), target.write_bytes(before["model.int8.onnx"])),
    )
    with pytest.raises(ExportRefused, match="FAILED  letter error rate of int8") as caught:
        export(run, strict, report=said[1])
    assert caught.value.exit_code == 73
    assert files_of(run.models) == before and run.metrics.read_bytes() == metrics
    assert sorted(p.name for p in run.models.parent.iterdir()) == ["quran"]


def test_a_file_that_is_not_the_model_is_refused_before_anything_is_scored(project, said, monkeypatch) -> None:
    run, config = project
    real = pipeline.export_float
    monkeypatch.setattr(pipeline, "export_float", lambda model, *rest: real(tiny_model(5), *rest))
    with pytest.raises(ExportRefused, match="FAILED  parity"):
        export(run, config, report=said[1])
    assert not run.models.exists() and not run.metrics.exists()


def test_an_unfinished_run_ships_only_when_asked_and_says_so(project, said) -> None:
    run, config = project
    write_json(run.last_facts, {"step": 30, "planned": 200})
    with pytest.raises(ExportRefused, match="step 30 of 200"):
        export(run, config, report=said[1])
    metrics = export(run, config, unfinished=True, report=said[1])
    assert metrics["unfinished"] == "step 30 of 200"
    assert "Unfinished: step 30 of 200." in (run.models / "README.md").read_text()


def test_without_validation_clips_nothing_is_chosen(project, said) -> None:
    run, config = project
    publish(run.manifests, {f"{s}.jsonl": "" for s in ("train", "valid", "test", "unseen_verse")}, {})
    with pytest.raises(DataError, match="no validation clips") as caught:
        export(run, config, report=said[1])
    assert caught.value.exit_code == 65


def test_card_and_console_tell_whom_it_was_tested_on_and_that_the_sample_is_synthetic(published) -> None:
    metrics, card = published.metrics, (published.run.models / "README.md").read_text()
    # the training clip's reader is reader 0
    whom = {"test": "test: 1 of 2 readers heard in training", "valid": "validation: 1 of 2 readers heard in training"}
    for split, text in whom.items():
        assert f"| {text}" in card
        assert any(line.startswith("int8: ") and f"({text}" in line for line in published.said), split
    assert "unseen verses" not in card and "The manifests have changed" in card
    assert any("synthetic" in line for line in published.said)
    assert any("features of sherpa-onnx" in gate for gate in card.splitlines())
    assert "synthetic" in card and "Hafs" in card and "reader 0" in card
    assert f"{100 * metrics['test']['cer']:.2f} %" in card
    assert f"{metrics['size_mb']:.1f}" in card and "real-time factor" in card


def test_whoever_was_trained_on_before_is_named_beside_every_score(project, said) -> None:
    run, config = project
    rows = read_prepared(run.manifests).splits["test"].rows
    identity = {"origins": torch.from_numpy(origins_of(rows))}
    checkpoint.write(run.last, {"identity": identity})
    metrics = export(run, config, report=said[1])
    # reader 0 stands in training now, too: only reader 1 and the recordings of both have moved
    assert metrics["seen_in_training"] == [*(f"clip {row.name}" for row in rows), "reader reader 1"]
    assert "**Seen in training** before they were held out: clip e0" in (run.models / "README.md").read_text()
    assert any(line.startswith("seen in training before") and "reader reader 1" in line for line in said[0])


def test_nobody_is_called_seen_who_was_not_and_a_damaged_memory_is_said(project, said) -> None:
    run, config = project
    assert export(run, config, report=said[1])["seen_in_training"] == []
    assert "Seen in training" not in (run.models / "README.md").read_text()
    run.last.write_bytes(b"damaged")
    export(run, config, report=said[1])
    assert any("cannot be read" in line for line in said[0])


def test_real_speech_is_not_called_synthetic_and_plain_text_needs_no_spelling(project, said) -> None:
    run, _ = project
    write_json(run.models / "spelling.json", {})
    digits = build(SpeechRun, {**FIELDS, "data": {"sources": [{"kind": "digits"}], "text": "plain"}}, "test")
    export(run, digits, report=said[1])
    assert any(line.startswith("int8: ") for line in said[0]) and "synthetic" not in "".join(said[0])
    assert "synthetic" not in (run.models / "README.md").read_text()
    assert not (run.models / "spelling.json").exists()


def test_what_a_killed_export_left_is_swept_up(project, said) -> None:
    run, config = project
    left = run.models.parent / ".quran.layl-tmp"
    left.mkdir(parents=True)
    (left / "spelling.json").write_text("half")
    export(run, config, report=said[1])
    assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "megabytes"), [("16m", 18.0), ("33m", 36.5)])
def test_named_sizes_fit_phones(preset: str, megabytes: float, tmp_path: Path) -> None:
    import torch

    from core.speech.config import ModelSection
    from core.speech.model import SpeechModel, parameters_m
    from export import gates
    from export.client import FLOAT_FILE, INT8_FILE, SherpaRecogniser
    from export.hearing import single_threaded
    from export.onnx_file import export_float, quantise
    from tests.export.conftest import VOCABULARY

    torch.manual_seed(0)
    model = SpeechModel(ModelSection.model_validate({"preset": preset}), len(VOCABULARY)).eval()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    export_float(model, VOCABULARY.symbols, {}, tmp_path / FLOAT_FILE)
    quantise(tmp_path / FLOAT_FILE, tmp_path / INT8_FILE)
    (tmp_path / "tokens.txt").write_text(VOCABULARY.tokens_text(), encoding="utf-8")
    assert gates.parity(model, Recogniser(tmp_path, FLOAT_FILE), sound(13, 1)).passed
    assert gates.size(tmp_path / INT8_FILE, parameters_m(model), preset).passed
    assert (tmp_path / INT8_FILE).stat().st_size <= megabytes * 1e6
    wave = sound(10, 1)
    for client in (Recogniser(tmp_path), SherpaRecogniser(tmp_path)):
        assert client.transcribe(wave)
        with single_threaded():
            assert min(seconds(client, wave) for _ in range(5)) / 10 < 0.02


def test_features_that_are_not_the_phones_are_refused_whatever_the_model_writes(project, said, monkeypatch) -> None:
    run, config = project
    monkeypatch.setattr(features, "HIGH_HZ", 0.0)
    with pytest.raises(ExportRefused, match="FAILED  features of sherpa-onnx"):
        export(run, config, report=said[1])
    assert not run.models.exists()


def seconds(client, wave: np.ndarray) -> float:
    import time

    # of the processor: what one core needs, however busy the machine is
    began = time.process_time()
    client.transcribe(wave)
    return time.process_time() - began
