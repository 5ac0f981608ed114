"""What may happen to a clip's features, and what must not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.speech.config import AugmentSection, SpecAugmentSection
from core.speech.features import FrontEnd
from train.batching import random_for
from train.recipes.spectrum import Change, Changes, drawn, masks, source_filters

NO_MASKS = SpecAugmentSection(time_masks=0, freq_masks=0)


def features_of(samples: np.ndarray) -> torch.Tensor:
    audio = torch.from_numpy(samples.astype(np.float32))[None]
    return FrontEnd()(audio, torch.tensor([audio.shape[1]]))[0]


def tones(*hz: float) -> np.ndarray:
    time = np.arange(8000) / 16_000
    return np.sum([np.sin(2 * np.pi * one * time) for one in hz], axis=0) * 0.2


def done(features: torch.Tensor, *changes: Change | None) -> torch.Tensor:
    all_of_them = Changes.of(changes, features.shape[1])
    assert all_of_them is not None
    return all_of_them.done(features)


@pytest.mark.parametrize("factor", [0.85, 0.95, 1.0, 1.1, 1.2])
@pytest.mark.parametrize("hz", [500.0, 1500.0, 3000.0])
def test_formants_move_by_their_factor(hz: float, factor: float) -> None:
    """The loudest filters of a tone that was moved are those of the tone at its new place."""
    change = Change(np.zeros(50, bool), np.zeros(80, bool), source_filters(factor))
    moved = done(features_of(tones(hz)), change)[0, 10:40].mean(0)
    expected = features_of(tones(hz * factor))[0, 10:40].mean(0)
    assert abs(int(moved.argmax()) - int(expected.argmax())) <= 1


def test_a_factor_of_one_moves_nothing() -> None:
    np.testing.assert_allclose(source_filters(1.0), np.arange(80), atol=1e-4)


@given(st.floats(0.5, 2.0))
def test_filters_read_inside_the_bank_in_order(factor: float) -> None:
    source = source_filters(factor)
    assert source.shape == (80,) and source.min() >= 0 and source.max() <= 79
    assert (np.diff(source) >= 0).all()


def test_a_clip_that_does_not_change_is_left_alone_beside_one_that_does() -> None:
    features = torch.cat([features_of(tones(400)), features_of(tones(700))])
    augment = AugmentSection(formants=(1.2, 1.2))
    changed = done(features, None, drawn(features.shape[1], augment, SpecAugmentSection(), random_for(1)))
    assert torch.equal(changed[0], features[0]) and not torch.allclose(changed[1], features[1], atol=1.0)


def test_a_batch_of_plain_voices_costs_no_product() -> None:
    changes = Changes.of([drawn(9, AugmentSection(), NO_MASKS, random_for(0)), None], 12)
    assert changes is not None
    assert changes.source_NF is None
    assert Changes.of([None, None], 12) is None


def test_features_stay_float32_where_training_does_not() -> None:
    features = features_of(tones(400))
    change = drawn(features.shape[1], AugmentSection(formants=(1.1, 1.1)), NO_MASKS, random_for(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = done(features, change)
    assert low.dtype == torch.float32 and torch.equal(low, done(features, change))


def test_every_tensor_of_a_batch_is_moved() -> None:
    augment = AugmentSection(formants=(1.1, 1.1))
    changes = Changes.of([drawn(9, augment, NO_MASKS, random_for(0))], 9)
    assert changes is not None
    assert all(value.device.type == "meta" for value in vars(changes.map(lambda value: value.to("meta"))).values())


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 500), st.integers(0, 10), st.integers(0, 120), st.floats(0, 1), st.integers(0, 4),
    st.integers(0, 80), st.integers(0, 1000),
)  # fmt: skip
def test_masks_lie_inside_the_clip_and_hide_at_most_their_share(
    frames: int, count: int, width: int, share: float, bands: int, band_width: int, seed: int
) -> None:
    config = SpecAugmentSection(
        time_masks=count, time_width=width, max_time_share=share, freq_masks=bands, freq_width=band_width
    )
    time, filters = masks(frames, config, random_for(seed))
    assert (time.shape, filters.shape) == ((frames,), (80,))
    assert time.sum() <= min(frames * share, count * width)
    assert filters.sum() <= bands * band_width


def test_masks_use_what_they_may() -> None:
    config = SpecAugmentSection(time_masks=5, time_width=40, max_time_share=0.15, freq_masks=2, freq_width=27)
    drawn = [masks(400, config, random_for(seed)) for seed in range(200)]
    hidden = [time.sum() for time, _ in drawn]
    assert max(hidden) > 50
    assert np.mean(hidden) > 35
    where = np.sum([time for time, _ in drawn], axis=0)
    # everywhere in the clip alike, but for its very ends
    assert where[20:-20].min() > 5
    assert max(filters.sum() for _, filters in drawn) > 40
    assert len({tuple(time) for time, _ in drawn}) == 200
