"""What may happen to a clip's sound, and what must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.speech.config import AugmentSection
from train.batching import random_for
from train.recipes.augment import augmented

EVERYTHING = AugmentSection(speed=(0.9, 1.1), noise_share=1.0, tilt_share=1.0, reverb_share=1.0, band_share=1.0)
NOTHING: dict[str, Any] = {
    "speed": (1.0, 1.0), "gain_db": (0.0, 0.0), "noise_share": 0.0, "reverb_share": 0.0, "band_share": 0.0,
    "tilt_share": 0.0,
}  # fmt: skip


def alone(**others: Any) -> AugmentSection:
    """One effect and nothing else."""
    return AugmentSection(**{**NOTHING, **others})


def tone(hz: float, samples: int = 16_000, level: float = 0.3) -> np.ndarray:
    return (np.sin(2 * np.pi * hz * np.arange(samples) / 16_000) * level).astype(np.float32)


def level_db(sound: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(sound, dtype=np.float64))))


@pytest.mark.parametrize("samples", [1, 2, 3, 159, 400, 16_000])
@pytest.mark.parametrize("seed", range(4))
def test_a_clip_of_any_length_stays_a_clip(samples: int, seed: int) -> None:
    sound = augmented(tone(440, samples, level=0.99), EVERYTHING, random_for(seed))
    assert sound.dtype == np.float32
    assert sound.ndim == 1
    assert len(sound) > 0
    assert np.isfinite(sound).all()
    assert np.abs(sound).max() <= 1.0
    assert samples / 1.1 - 2 <= len(sound) <= samples / 0.9 + 2


def test_a_clip_of_nothing_stays_one_of_nothing() -> None:
    for seed in range(10):
        assert len(augmented(np.zeros(0, np.float32), EVERYTHING, random_for(seed))) == 0


def test_silence_stays_all_but_silent() -> None:
    assert level_db(augmented(np.zeros(16_000, np.float32), EVERYTHING, random_for(0)) + 1e-12) < -100


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.001, 1.0))
def test_nothing_is_ever_clipped(seed: int, level: float) -> None:
    loud = AugmentSection(
        gain_db=(0.0, 30.0), noise_share=1.0, noise_snr_db=(-10.0, 5.0), reverb_share=0.5, band_share=0.5
    )
    sound = augmented(tone(300, 3000, level), loud, random_for(seed))
    assert np.isfinite(sound).all()
    assert np.abs(sound).max() <= 1.0
    # scaled as a whole, never cut: no run of samples at full scale
    at_scale = np.abs(sound) >= 1.0
    assert not (at_scale[1:] & at_scale[:-1]).any()


def test_the_clip_that_came_in_is_left_as_it_was() -> None:
    sound = tone(440)
    before = sound.copy()
    augmented(sound, EVERYTHING, random_for(1))
    assert np.array_equal(sound, before)


def test_the_sound_is_a_function_of_its_random_alone() -> None:
    sound = tone(440)
    one = augmented(sound, EVERYTHING, random_for(1, 2, "id", 0))
    np.random.seed(3)
    assert np.array_equal(one, augmented(sound, EVERYTHING, random_for(1, 2, "id", 0)))
    for other in [(2, 2, "id", 0), (1, 3, "id", 0), (1, 2, "di", 0), (1, 2, "id", 1)]:
        assert not np.array_equal(one, augmented(sound, EVERYTHING, random_for(*other)))


def test_nothing_wanted_is_nothing_done() -> None:
    assert np.array_equal(augmented(tone(440), alone(), random_for(1)), tone(440))


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_speed_changes_length_and_pitch_together(factor: float) -> None:
    sound = augmented(tone(1000), alone(speed=(factor, factor)), random_for(1))
    assert len(sound) == pytest.approx(16_000 / factor, abs=2)
    spectrum = np.abs(np.fft.rfft(sound))
    assert np.argmax(spectrum) / len(sound) * 16_000 == pytest.approx(1000 * factor, abs=2)


def test_gain_moves_the_level_within_its_bounds() -> None:
    moved = [level_db(augmented(tone(440, level=0.1), alone(gain_db=(-6.0, 6.0)), random_for(i))) for i in range(40)]
    moved = [level - level_db(tone(440, level=0.1)) for level in moved]
    assert -6 <= min(moved) < -4
    assert 4 < max(moved) <= 6


@pytest.mark.parametrize("snr", [5.0, 25.0])
def test_noise_lies_below_the_voice_by_what_was_asked(snr: float) -> None:
    clean = tone(440, level=0.1)
    for seed in range(5):
        noise = augmented(clean, alone(noise_share=1.0, noise_snr_db=(snr, snr)), random_for(seed)) - clean
        assert level_db(clean) - level_db(noise) == pytest.approx(snr, abs=0.3)


def test_noise_of_every_colour_lies_where_a_voice_does() -> None:
    clean = tone(440, level=0.1)
    shares = []
    for seed in range(30):
        noise = augmented(clean, alone(noise_share=1.0, noise_snr_db=(0.0, 0.0)), random_for(seed)) - clean
        power = np.square(np.abs(np.fft.rfft(noise)))
        shares.append(power[20:].sum() / power.sum())
    assert min(shares) > 0.5


def test_a_phone_lets_a_voice_through_and_little_above_or_below_it() -> None:
    phone = alone(band_share=1.0)
    for seed in range(5):
        passed = {
            hz: level_db(augmented(tone(hz), phone, random_for(seed))) - level_db(tone(hz)) for hz in (60, 1000, 7500)
        }
        assert passed[1000] > -1.5
        assert passed[60] < -6
        assert passed[7500] < -6


def test_a_room_adds_a_tail_and_keeps_the_beginning() -> None:
    click = np.zeros(16_000, np.float32)
    click[1000] = 0.5
    sound = augmented(click, alone(reverb_share=1.0), random_for(1))
    assert len(sound) == len(click)
    assert np.argmax(np.abs(sound)) == 1000
    early, late = level_db(sound[1001:2000]), level_db(sound[8000:9000] + 1e-12)
    assert level_db(sound[:1000] + 1e-12) < -100
    assert early > late + 10


def test_another_microphone_changes_the_colour_and_keeps_the_level() -> None:
    click = np.zeros(16_000, np.float32)
    click[1000] = 0.5
    slopes = []
    for seed in range(20):
        sound = augmented(click, alone(tilt_share=1.0), random_for(seed))
        assert level_db(sound) == pytest.approx(level_db(click), abs=0.1)
        spectrum = np.abs(np.fft.rfft(sound))
        slopes.append(20 * np.log10(spectrum[100] / spectrum[7900]))
    assert min(slopes) < -10
    assert max(slopes) > 4


@pytest.mark.parametrize("share", ["tilt_share", "noise_share", "reverb_share", "band_share"])
def test_an_effect_comes_to_its_share_of_the_clips(share: str) -> None:
    clean = tone(440, 800)
    changed = sum(not np.array_equal(augmented(clean, alone(**{share: 0.3}), random_for(i)), clean) for i in range(300))
    assert changed / 300 == pytest.approx(0.3, abs=0.08)
