from __future__ import annotations

from pathlib import Path

import pytest

from core.speech.scoring import score
from core.speech.text import TEXT_MODES
from export.client import FLOAT_FILE, INT8_FILE, Recogniser
from export.hearing import batches, heard_by_file, heard_live, real_time_factor
from tests.export.conftest import VOCABULARY, make_row


@pytest.fixture
def rows(tmp_path: Path):
    lengths = [1.3, 0.004, 0.5, 2.0, 0.5, 0.9]
    return [make_row(tmp_path, f"c{i}", seconds, i) for i, seconds in enumerate(lengths)]


def test_the_live_model_and_its_float_file_hear_the_same_on_rows_of_any_length(rows, tmp_path, exported, model) -> None:
    live = heard_live(model, rows, tmp_path, VOCABULARY)
    file = heard_by_file(Recogniser(exported, FLOAT_FILE), rows, tmp_path)
    assert live == file and live[1] == "" and len(set(live)) >= 4
    assert score(rows, file, TEXT_MODES["quran_letters"])["clips"] == 6


def test_scores_of_the_int8_file_are_what_a_client_hears(rows, tmp_path, exported) -> None:
    from core.speech import audio

    recogniser = Recogniser(exported, INT8_FILE)
    assert heard_by_file(recogniser, rows, tmp_path) == [recogniser.transcribe(audio.load(r, tmp_path)) for r in rows]


def test_a_clip_of_over_a_minute_is_scored_in_the_pieces_a_client_hears(tmp_path, exported, monkeypatch) -> None:
    from core.speech import audio

    row = make_row(tmp_path, "long", 62.0, 1)
    recogniser, cut = Recogniser(exported, INT8_FILE), []
    real = recogniser.outputs
    monkeypatch.setattr(recogniser, "outputs", lambda x, n: (cut.append(x.shape[1]), real(x, n))[1])
    [heard] = heard_by_file(recogniser, [row], tmp_path)
    # three pieces with two seconds of each neighbour, none longer than thirty seconds of its own
    assert len(cut) >= 3 and max(cut) <= 3400 and sum(cut) > 6200
    assert heard == recogniser.transcribe(audio.load(row, tmp_path)) and len(heard) > 10


def test_batches_hold_every_row_once_under_their_budget(rows, tmp_path) -> None:
    found = list(batches(rows, tmp_path, seconds=2.0))
    assert sorted(i for clips in found for i in clips.indices) == list(range(6))
    assert len(found) > 2
    for clips in found:
        assert len(clips.indices) == 1 or clips.audio_NS.numel() <= 2.0 * 16000
        assert clips.samples_N.tolist() == [rows[i].samples for i in clips.indices]


def test_speed_is_measured_over_audio_time(rows, tmp_path, exported) -> None:
    factor = real_time_factor(Recogniser(exported), rows, tmp_path)
    assert factor is not None and 0 < factor < 1
    assert real_time_factor(Recogniser(exported), [], tmp_path) is None
