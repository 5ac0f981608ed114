from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

import core.speech.audio
from cli.main import app
from core.run_dir import RunDir
from core.speech.audio import AudioError


@pytest.fixture
def exported(project, monkeypatch):
    """An exported model that hears how many samples there are; the second client hears it twice."""
    models = RunDir(project, "quran").models
    models.mkdir(parents=True)

    class Recogniser:
        def __init__(self, folder):
            assert folder == models

        def transcribe(self, samples):
            return f"سمعت {len(samples)}"

    class SherpaRecogniser(Recogniser):
        def transcribe(self, samples):
            return f"sherpa {len(samples)}"

    client = types.ModuleType("export.client")
    client.Recogniser, client.SherpaRecogniser = Recogniser, SherpaRecogniser
    monkeypatch.setitem(sys.modules, "export.client", client)

    def decode(path):
        if path.name.startswith("bad"):
            raise AudioError("not_audio", f"{path}: no audio")
        return np.zeros(int(path.stem), dtype=np.float32)

    monkeypatch.setattr(core.speech.audio, "decode", decode)
    return models


def test_one_file_is_its_text_alone(exported, cli):
    assert cli.invoke(app, ["transcribe", "160.wav"]).output == "سمعت 160\n"


def test_a_bad_file_does_not_keep_the_others_from_being_heard(exported, cli):
    result = cli.invoke(app, ["transcribe", "1.wav", "bad.txt", "2.wav", "--client", "sherpa"])
    assert result.exit_code == 65
    assert result.stdout == "1.wav: sherpa 1\n2.wav: sherpa 2\n"
    assert "bad.txt: no audio" in result.stderr


def test_json_lists_texts_and_errors_in_order(exported, cli):
    result = cli.invoke(app, ["transcribe", "bad.wav", "7.wav", "--json"])
    assert result.exit_code == 65
    assert json.loads(result.stdout) == [
        {"file": "bad.wav", "error": "no audio"},
        {"file": "7.wav", "text": "سمعت 7"},
    ]


def test_without_an_exported_model_it_says_which_command_makes_one(exported, cli):
    result = cli.invoke(app, ["transcribe", "1.wav", "--run", "digits"])
    assert result.exit_code == 65 and "layl export digits" in result.stderr


def test_a_missing_sherpa_says_how_to_install_it(exported, cli, monkeypatch):
    def missing(folder):
        raise ModuleNotFoundError("No module named 'sherpa_onnx'", name="sherpa_onnx")

    monkeypatch.setattr(sys.modules["export.client"], "SherpaRecogniser", missing)
    result = cli.invoke(app, ["transcribe", "1.wav", "--client", "sherpa"])
    assert result.exit_code == 70 and "pip install sherpa-onnx" in result.stderr
