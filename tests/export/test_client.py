from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import CheckpointError
from core.speech.text import Vocabulary
from export import client
from export.client import FLOAT_FILE, Recogniser, SherpaRecogniser, pieces
from tests.export.conftest import VOCABULARY, sound


@pytest.mark.parametrize("kind", [Recogniser, SherpaRecogniser])
@pytest.mark.parametrize("samples", [0, 1, 79])
def test_nothing_to_hear_is_no_text(kind: type, samples: int, exported: Path) -> None:
    assert kind(exported).transcribe(np.zeros(samples, dtype=np.float32)) == ""


@pytest.mark.parametrize("samples", [80, 160, 399, 1601, 16001])
def test_short_and_odd_lengths_are_heard_alike_by_both(samples: int, exported: Path) -> None:
    wave = sound(2, 5)[:samples]
    assert Recogniser(exported, FLOAT_FILE).transcribe(wave) == SherpaRecogniser(exported, FLOAT_FILE).transcribe(wave)


def test_sherpa_writes_the_same_text_as_our_decoder(exported: Path) -> None:
    ours, theirs = Recogniser(exported, FLOAT_FILE), SherpaRecogniser(exported, FLOAT_FILE)
    waves = [sound(1 + 0.3 * i, i) for i in range(6)]
    heard = [ours.transcribe(wave) for wave in waves]
    assert heard == [theirs.transcribe(wave) for wave in waves]
    assert len(set(heard)) == 6


def test_symbols_that_break_naive_readers_survive_the_real_client(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "odd")
    waves = [sound(2, i) for i in range(4)]
    heard = sorted({i for wave in waves for i in Recogniser(exported, FLOAT_FILE).ids(wave)})
    odd = [" ", "#", "\u064e", "'", "<", "٠"][: len(heard)]
    symbols = list(VOCABULARY.symbols)
    for place, symbol in zip(heard, odd, strict=False):
        if symbol in symbols:
            symbols[symbols.index(symbol)] = symbols[place]
        symbols[place] = symbol
    (tmp_path / "odd" / "tokens.txt").write_text(Vocabulary(tuple(symbols)).tokens_text(), encoding="utf-8")
    ours, theirs = Recogniser(tmp_path / "odd", FLOAT_FILE), SherpaRecogniser(tmp_path / "odd", FLOAT_FILE)
    texts = [ours.transcribe(wave) for wave in waves]
    assert texts == [theirs.transcribe(wave) for wave in waves]
    assert set(odd) <= set("".join(texts)) and len(odd) >= 4


def test_a_missing_model_says_what_makes_it(tmp_path: Path) -> None:
    for kind in (Recogniser, SherpaRecogniser):
        with pytest.raises(CheckpointError, match="layl export"):
            kind(tmp_path)


def test_tokens_of_another_model_are_refused(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "m")
    tokens = Vocabulary(VOCABULARY.symbols[:-1]).tokens_text()
    (tmp_path / "m" / "tokens.txt").write_text(tokens, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"writes 37 symbols, tokens\.txt has 36"):
        Recogniser(tmp_path / "m")


def test_both_clients_tell_symbols_before_they_are_text(exported: Path) -> None:
    ours, theirs = Recogniser(exported, FLOAT_FILE), SherpaRecogniser(exported, FLOAT_FILE)
    wave = np.concatenate([sound(2, i) for i in range(4)])
    assert ours.symbols(wave) == theirs.symbols(wave) and len(ours.symbols(wave)) > 20
    assert theirs.symbols(wave[:79]) == ours.symbols(wave[:79]) == []
    assert " ".join("".join(ours.symbols(wave)).split()) == ours.transcribe(wave)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30_000), st.integers(0, 5))
def test_pieces_cover_every_frame_once_on_the_grid_of_output_frames(T: int, seed: int) -> None:
    features = np.random.default_rng(seed).standard_normal((T, 2)).astype(np.float32)
    found = list(pieces(features))
    assert found[0][0] == 0 and found[-1][1] == T
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert all(start % 4 == 0 and start < end for start, end in found)
    if T > 6000:
        assert all(end - start <= 3000 for start, end in found) and all(e - s >= 1500 for s, e in found[:-1])
    else:
        assert len(found) == 1


def test_a_cut_falls_into_the_pause() -> None:
    features = np.zeros((7000, 80), dtype=np.float32)
    features[2400:2440] = -10
    assert abs(next(iter(pieces(features)))[1] - 2420) <= 8


class _Echo(Recogniser):
    """Hears at each output frame a symbol that the features name, so pieces can be compared with the whole."""

    longest = 0

    def outputs(self, features_NTF: np.ndarray, frames_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        named = features_NTF[:, ::4, :36].argmax(axis=-1)
        self.longest = max(self.longest, features_NTF.shape[1])
        return np.eye(37, dtype=np.float32)[named], (frames_N + 3) // 4


def test_long_audio_in_pieces_loses_and_repeats_nothing(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = sound(130.01, 3)
    echo = _Echo(exported)
    in_pieces = echo.ids(wave)
    assert len(in_pieces) > 500 and echo.longest <= 3400
    monkeypatch.setattr(client, "WHOLE_SECONDS", 1e6)
    assert echo.ids(wave) == in_pieces


def test_long_audio_is_heard_by_sherpa_too(exported: Path) -> None:
    wave = sound(65, 4)
    assert len(SherpaRecogniser(exported).transcribe(wave)) > 100
    assert len(Recogniser(exported).transcribe(wave)) > 100
