"""The front end against what phones compute."""

from __future__ import annotations

import kaldi_native_fbank as knf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.speech.features import FEATURE_PARAMETERS, FrontEnd, frames, mel_bank

FRONT_END = FrontEnd()
FLOOR = float(np.log(np.finfo(np.float32).eps))


def speechlike(samples: int, seed: int = 0) -> np.ndarray:
    """Harmonics under a moving envelope with a little noise, in [-1, 1]."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / 16000
    pitch = 120 + 30 * np.sin(2 * np.pi * 1.5 * t)
    voice = sum(np.sin(2 * np.pi * k * np.cumsum(pitch) / 16000) / k for k in range(1, 20))
    wave = 0.1 * voice * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t)) + 0.01 * rng.standard_normal(samples)
    return np.asarray(wave, dtype=np.float32)


def kaldi(wave: np.ndarray) -> np.ndarray:
    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = False
    options.frame_opts.window_type = "povey"
    options.mel_opts.num_bins = 80
    options.mel_opts.low_freq = 20.0
    options.mel_opts.high_freq = -400.0
    bank = knf.OnlineFbank(options)
    bank.accept_waveform(16000, wave.tolist())
    bank.input_finished()
    rows = [bank.get_frame(i) for i in range(bank.num_frames_ready)]
    return np.array(rows, dtype=np.float32).reshape(-1, 80)


def ours(waves: list[np.ndarray], padding: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    audio = torch.full((len(waves), max(len(w) for w in waves)), padding)
    for i, wave in enumerate(waves):
        audio[i, : len(wave)] = torch.from_numpy(wave)
    return FRONT_END(audio, torch.tensor([len(w) for w in waves]))


@pytest.mark.parametrize("samples", [1, 79, 80, 81, 159, 160, 161, 239, 240, 399, 400, 401, 1601, 16000, 37777])
def test_a_clip_of_any_length_equals_kaldi(samples: int) -> None:
    wave = speechlike(samples)
    features, count = ours([wave])
    reference = kaldi(wave)
    assert int(count) == len(reference) == frames(samples)
    np.testing.assert_allclose(features[0, : len(reference)], reference, atol=1e-3)


def test_a_clip_among_longer_ones_equals_kaldi_whatever_the_padding_holds() -> None:
    waves = [speechlike(n, seed) for seed, n in enumerate([1, 160, 399, 4001, 16000, 7999])]
    features, count = ours(waves, padding=0.7)
    for row, T, wave in zip(features, count.tolist(), waves, strict=True):
        np.testing.assert_allclose(row[:T], kaldi(wave), atol=1e-3)
        assert not row[T:].any()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4))
def test_features_do_not_depend_on_the_batch(lengths: list[int]) -> None:
    waves = [speechlike(n, n) for n in lengths]
    together, count = ours(waves)
    for row, T, wave in zip(together, count.tolist(), waves, strict=True):
        alone, _ = ours([wave])
        torch.testing.assert_close(row[:T], alone[0, :T], atol=1e-4, rtol=0)


def test_a_constant_offset_is_no_sound() -> None:
    features, _ = ours([np.full(1600, 0.5, dtype=np.float32)])
    np.testing.assert_allclose(features, FLOOR, atol=1e-3)


def test_digital_silence_lies_at_kaldis_floor() -> None:
    features, _ = ours([np.zeros(1600, dtype=np.float32)])
    np.testing.assert_allclose(features, FLOOR, atol=1e-5)


def test_nothing_at_all_has_no_frames_and_still_fits_a_model() -> None:
    features, count = FRONT_END(torch.zeros(2, 0), torch.zeros(2, dtype=torch.int64))
    assert features.shape == (2, 1, 80) and count.tolist() == [0, 0]


def test_the_filter_bank_is_torchaudios() -> None:
    kaldi_compliance = pytest.importorskip("torchaudio.compliance.kaldi")
    theirs, _ = kaldi_compliance.get_mel_banks(80, 512, 16000.0, 20.0, -400.0, 100.0, -500.0, 1.0)
    torch.testing.assert_close(mel_bank()[:256], theirs.T, atol=1e-4, rtol=0)
    assert not mel_bank()[256].any()


def test_half_precision_around_it_does_not_reach_the_features() -> None:
    wave = speechlike(4000)
    plain, _ = ours([wave])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, _ = ours([wave])
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, plain)


def test_tables_stay_out_of_checkpoints() -> None:
    assert not FRONT_END.state_dict()
    assert FEATURE_PARAMETERS["high_freq_hz"] == -400.0
