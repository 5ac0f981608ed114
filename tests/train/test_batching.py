"""What an epoch holds, and how it is cut into batches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.batching import (
    QUADRATIC_SECONDS,
    cost_seconds,
    epoch_batches,
    padding_share,
    random_for,
    repeats,
    row_weights,
)


def cut(
    durations: np.ndarray,
    *,
    epoch: int = 1,
    seed: int = 1,
    max_seconds: float = 60.0,
    max_clips: int = 512,
    weights=None,
):
    weights = np.ones(len(durations)) if weights is None else weights
    return epoch_batches(durations, weights, seed=seed, epoch=epoch, max_seconds=max_seconds, max_clips=max_clips)


def ayat(count: int, seed: int = 0) -> np.ndarray:
    """Durations as recitation has them: most of some seconds, some of a minute, a few of several."""
    return np.clip(random_for("ayat", seed).lognormal(1.9, 0.75, count), 0.8, 330.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.1, 400), min_size=1, max_size=120), st.integers(0, 5), st.floats(1, 400), st.integers(1, 20)
)
def test_every_clip_comes_once_and_no_batch_passes_the_budget_but_a_clip_alone(
    durations: list[float], epoch: int, max_seconds: float, max_clips: int
) -> None:
    array = np.array(durations)
    batches = cut(array, epoch=epoch, max_seconds=max_seconds, max_clips=max_clips)
    assert sorted(item for batch in batches for item in batch) == [(row, 0) for row in range(len(durations))]
    for batch in batches:
        longest = max(durations[row] for row, _ in batch)
        padded = longest * len(batch)
        assert len(batch) == 1 or padded + padded * longest / QUADRATIC_SECONDS <= max_seconds * (1 + 1e-9)
        assert len(batch) <= max_clips


def test_a_clip_longer_than_the_budget_rides_alone_and_whole() -> None:
    batches = cut(np.array([3.0, 135.0, 4.0]))
    assert ((1, 0),) in batches
    assert len(batches) == 2


def test_long_clips_count_for_more_than_their_length() -> None:
    assert cost_seconds(120.0, 3) == 720.0
    assert cost_seconds(1.0, 30) == pytest.approx(30.25)


@pytest.mark.parametrize("max_seconds", [60.0, 300.0])
def test_at_most_a_twentieth_is_padding_and_no_epoch_repeats_anothers_batches(max_seconds: float) -> None:
    durations = ayat(3000)
    epochs = [cut(durations, epoch=epoch, max_seconds=max_seconds) for epoch in range(1, 5)]
    assert all(padding_share(batches, durations) <= 0.05 for batches in epochs)
    # clips that fill a batch alone are the same every time, and the two or three longest meet again
    shared = [frozenset(b for b in map(frozenset, batches) if len(b) > 1) for batches in epochs]
    for i, one in enumerate(shared):
        assert len(one) > 20
        for other in shared[:i]:
            assert len(one & other) <= 0.1 * len(one)


def test_batches_come_in_no_order_of_length() -> None:
    durations = ayat(3000)
    longest = [max(durations[row] for row, _ in batch) for batch in cut(durations)]
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.1
    # nor are the first batches those of one pool
    assert len({row for row, _ in cut(durations)[0]} & {row for row, _ in cut(durations, epoch=2)[0]}) < 3


def test_padding_share_counts_what_is_added() -> None:
    assert padding_share([((0, 0), (1, 0)), ((2, 0),)], np.array([1.0, 3.0, 4.0])) == pytest.approx(0.2)
    assert padding_share([], np.array([])) == 0.0


def test_an_epoch_is_a_function_of_seed_and_number_alone() -> None:
    durations = ayat(700)
    again = durations.copy()
    np.random.seed(5)
    first = cut(durations, epoch=3)
    np.random.seed(6)
    assert cut(again, epoch=3) == first
    assert cut(durations, epoch=4) != first
    assert cut(durations, epoch=3, seed=2) != first


def test_random_for_is_a_function_of_all_its_parts() -> None:
    draws = {parts: random_for(*parts).random() for parts in [(1, 2), (12,), (1, "2x"), (2, 1), ("1", 23)]}
    assert len(set(draws.values())) == len(draws)
    assert random_for(1, 2).random() == draws[(1, 2)]


def test_no_clips_make_no_batch() -> None:
    assert cut(np.zeros(0)) == []


def test_a_weight_is_met_in_expectation_and_its_whole_part_always() -> None:
    weights = np.tile([0.3, 1.0, 2.6, 4.0], 500)
    counts = np.array([repeats(weights, 1, epoch) for epoch in range(40)])
    assert set(counts[:, 1::4].ravel()) == {1}
    assert set(counts[:, 3::4].ravel()) == {4}
    assert set(counts[:, 2::4].ravel()) == {2, 3}
    assert counts[:, 0::4].mean() == pytest.approx(0.3, abs=0.01)
    assert counts[:, 2::4].mean() == pytest.approx(2.6, abs=0.01)
    # and over the epochs every clip gets its turn
    assert counts[:, 0::4].sum(axis=0).min() > 0


def test_repeats_of_a_clip_are_numbered_so_that_each_may_sound_different() -> None:
    batches = cut(np.array([2.0, 3.0]), weights=np.array([3.0, 1.0]))
    assert Counter(item for batch in batches for item in batch) == Counter([(0, 0), (0, 1), (0, 2), (1, 0)])


def corpus(count: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hours of a clip, who is an ordinary reader (a tenth), what is Warsh (a fifth)."""
    random = random_for("corpus")
    return ayat(count) / 3600, random.random(count) < 0.1, random.random(count) < 0.2


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("warsh_weight", [1.0, 2.5])
def test_ordinary_readers_get_their_share_to_one_per_cent(share: float, warsh_weight: float) -> None:
    hours, ordinary, warsh = corpus()
    weights, sentence = row_weights(
        hours, ordinary, warsh, ordinary_share=share, warsh_weight=warsh_weight, repeat_cap=20.0
    )
    heard = np.mean([repeats(weights, 1, epoch) for epoch in range(30)], axis=0) * hours
    assert heard[ordinary].sum() / heard.sum() == pytest.approx(share, abs=0.01)
    assert f"ordinary {share:.1%}" in sentence
    rest = heard * ~ordinary
    expected = hours * ~ordinary * np.where(warsh, warsh_weight, 1.0)
    assert rest[warsh].sum() / rest.sum() == pytest.approx(expected[warsh].sum() / expected.sum(), abs=0.01)


def test_no_clip_comes_more_often_than_the_cap_and_the_sentence_says_what_came_of_it() -> None:
    hours, ordinary, warsh = corpus()
    weights, sentence = row_weights(hours, ordinary, warsh, ordinary_share=0.9, warsh_weight=9.0, repeat_cap=4.0)
    assert weights.max() == 4.0
    assert set(weights[ordinary]) == {4.0}
    assert set(weights[warsh & ~ordinary]) == {4.0}
    share = (hours * weights)[ordinary].sum() / (hours * weights).sum()
    assert share < 0.9
    assert f"an epoch holds {(hours * weights).sum():.2f} h: ordinary {share:.1%}" in sentence


@pytest.mark.parametrize("who", [0.0, 1.0])
def test_a_share_of_nobody_or_of_everybody_leaves_the_weights_alone(who: float) -> None:
    everyone = np.full(10, bool(who))
    weights, _ = row_weights(
        np.ones(10), everyone, np.zeros(10, bool), ordinary_share=0.3, warsh_weight=1.0, repeat_cap=4.0
    )
    assert set(weights) == {1.0}


def test_without_a_share_ordinary_readers_count_as_they_are() -> None:
    hours, ordinary, warsh = corpus(400)
    assert (ordinary & warsh).any()
    weights, _ = row_weights(hours, ordinary, warsh, ordinary_share=0.0, warsh_weight=2.5, repeat_cap=4.0)
    assert set(weights[ordinary]) == {1.0}
    assert set(weights[warsh & ~ordinary]) == {2.5}
