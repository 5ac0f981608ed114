"""Batches under a budget of padded length, from (seed, epoch) and the rows alone: no generator has a state to save."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

#: Seconds at which a clip counts double: attention is quadratic, so long clips cost more than their length.
QUADRATIC_SECONDS = 120.0
#: Batches' worth of rows that are sorted together: with fewer, a batch spans more lengths and holds more padding.
POOL_BATCHES = 96
#: By how much a clip may sort as if it were longer: a corpus of one pool would else have the same batches every epoch.
SORTING_SLACK = 0.03


def random_for(*parts: object) -> np.random.Generator:
    """A generator that is a pure function of ``parts`` (numbers and strings)."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def repeats(weights: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """How often each row comes in an epoch: the whole part of its weight, and one more with the chance of the rest."""
    whole = np.floor(weights).astype(np.int64)
    extra = random_for("repeats", seed, epoch).random(len(weights)) < (weights - whole)
    return whole + extra


def cost_seconds(longest: np.ndarray | float, count: int) -> np.ndarray | float:
    """What a batch of ``count`` clips costs, in seconds of audio: padded length with a quadratic term."""
    return count * longest * (1 + longest / QUADRATIC_SECONDS)


def epoch_batches(
    durations: np.ndarray,
    weights: np.ndarray,
    *,
    seed: int,
    epoch: int,
    max_seconds: float,
    max_clips: int,
) -> list[tuple[tuple[int, int], ...]]:
    """An epoch's batches as (row, repeat) pairs, in the order they are trained.

    Rows are shuffled, sorted by duration (roughly) within pools, cut where longest x count would pass the budget, and
    the batches are shuffled. A clip that fills the budget alone rides alone; nothing is cut or left out.
    """
    random = random_for("batches", seed, epoch)
    times = repeats(weights, seed, epoch)
    rows = np.repeat(np.arange(len(durations)), times)
    turn = np.concatenate([np.arange(n) for n in times]) if len(times) else np.zeros(0, np.int64)
    order = random.permutation(len(rows))
    budgets = float(np.sum(cost_seconds(durations[rows], 1))) / max_seconds
    sort_by = durations[rows] * (1 + SORTING_SLACK * random.random(len(rows)))
    batches: list[tuple[tuple[int, int], ...]] = []
    for members in np.array_split(order, max(1, int(budgets / POOL_BATCHES))):
        members = members[np.argsort(sort_by[members], kind="stable")]
        batches += _cut([(int(rows[m]), int(turn[m])) for m in members], durations, max_seconds, max_clips)
    return [batches[i] for i in random.permutation(len(batches))]


def _cut(
    items: Sequence[tuple[int, int]], durations: np.ndarray, max_seconds: float, max_clips: int
) -> list[tuple[tuple[int, int], ...]]:
    batches: list[tuple[tuple[int, int], ...]] = []
    current: list[tuple[int, int]] = []
    longest = 0.0
    for item in items:
        longest = max(longest, float(durations[item[0]]))
        too_much = cost_seconds(longest, len(current) + 1) > max_seconds
        if current and (too_much or len(current) >= max_clips):
            batches.append(tuple(current))
            current, longest = [], float(durations[item[0]])
        current.append(item)
    if current:
        batches.append(tuple(current))
    return batches


def padding_share(batches: Sequence[Sequence[tuple[int, int]]], durations: np.ndarray) -> float:
    """The part of the batches' padded audio that is padding."""
    padded = sum(max(durations[row] for row, _ in batch) * len(batch) for batch in batches)
    real = sum(durations[row] for batch in batches for row, _ in batch)
    return float(1 - real / padded) if padded else 0.0


def ordinary_weight(share: float, rest_hours: float, ordinary_hours: float) -> float:
    """The weight that gives ordinary readers ``share`` of all audio beside ``rest_hours`` of the others."""
    return share * rest_hours / ((1 - share) * ordinary_hours)


def row_weights(
    hours: np.ndarray,
    ordinary: np.ndarray,
    warsh: np.ndarray,
    *,
    ordinary_share: float,
    warsh_weight: float,
    repeat_cap: float,
) -> tuple[np.ndarray, str]:
    """Weights of the rows and a sentence with the hours and shares that come of them.

    ``hours``, ``ordinary`` and ``warsh`` have one entry a row. Warsh counts ``warsh_weight`` times among the
    professional readers; ordinary readers get ``ordinary_share`` of all audio (0 leaves them as they are).
    """
    weights = np.where(warsh & ~ordinary, min(warsh_weight, repeat_cap), 1.0)
    ordinary_hours = float(hours[ordinary].sum())
    rest_hours = float((hours * weights)[~ordinary].sum())
    if ordinary_share and ordinary_hours and rest_hours:
        weights[ordinary] = min(repeat_cap, ordinary_weight(ordinary_share, rest_hours, ordinary_hours))
    weighted = hours * weights
    total = max(float(weighted.sum()), 1e-9)
    sentence = (
        f"an epoch holds {total:.2f} h: ordinary {weighted[ordinary].sum() / total:.1%}, "
        f"Warsh {weighted[warsh].sum() / total:.1%}"
    )
    return weights, sentence
