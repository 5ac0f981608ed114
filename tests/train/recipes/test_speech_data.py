"""Which clips an epoch holds, how one is loaded, how many become one batch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from core.config import classed_values
from core.errors import DataError
from core.manifest import Manifest, Row
from core.speech.config import SpeechRun
from core.speech.text import TEXT_MODES, Vocabulary
from tests.train.conftest import WORDS, tiny_config, tone_rows
from train.recipe import Draw
from train.recipes.spectrum import Change, source_filters
from train.recipes.speech_data import Clips, Example, collate, fitting

VOCABULARY = Vocabulary.of(TEXT_MODES["plain"], WORDS)
PLAN = classed_values(tiny_config())["plan"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clips")


@pytest.fixture(scope="module")
def rows(root: Path) -> list[Row]:
    return tone_rows(root, range(20))


def clips(rows: list[Row], root: Path, config: SpeechRun | None = None) -> Clips:
    return Clips(rows, root, VOCABULARY, config or tiny_config())


def named(made: Clips, epoch: int = 1) -> list[tuple[tuple[str, int], ...]]:
    return [tuple((made.rows[row].name, turn) for row, turn in batch) for batch in made.batches(epoch, PLAN)]


def test_an_epoch_does_not_depend_on_the_order_of_the_manifest(rows: list[Row], root: Path) -> None:
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    assert named(clips(shuffled, root)) == named(clips(rows, root))
    assert named(clips(rows, root), 2) != named(clips(rows, root))


def test_weights_stay_with_their_clips(rows: list[Row], root: Path) -> None:
    mixed = [replace(row, riwaya="warsh", group="professional") if i % 3 == 0 else row for i, row in enumerate(rows)]
    values = {**PLAN, "data.warsh_weight": 3.0}
    counts: dict[str, int] = {}
    made = clips(mixed, root)
    for batch in made.batches(1, values):
        for row, _ in batch:
            counts[made.rows[row].name] = counts.get(made.rows[row].name, 0) + 1
    assert {name: count for name, count in counts.items() if count == 3}.keys() == {row.name for row in mixed[::3]}
    assert set(counts.values()) == {1, 3}


def test_no_rows_make_no_batches(root: Path) -> None:
    assert clips([], root).batches(1, PLAN) == []


def test_a_clean_turn_is_the_clip_itself(rows: list[Row], root: Path) -> None:
    made = clips(rows, root)
    clean = made.encode(3, Draw(seed=1, epoch=1, repeat=0, clean=True))
    assert np.array_equal(clean.samples, made.plain(3).samples)
    assert clean.change is None
    assert len(clean.samples) == rows[3].samples
    assert VOCABULARY.decode(clean.ids) == rows[3].text


def test_a_share_of_the_turns_is_augmented_and_the_rest_are_the_clip_itself(rows: list[Row], root: Path) -> None:
    made = clips(rows, root)

    def augmented(share: float) -> list[bool]:
        draws = (Draw(seed=1, epoch=epoch, repeat=0, clean=False, share=share) for epoch in range(60))
        return [made.encode(3, draw).change is not None for draw in draws]

    assert not any(augmented(0.0))
    assert all(augmented(1.0))
    assert 10 < sum(augmented(0.5)) < 50
    # whoever is augmented at a small share is so at a larger one, and sounds the same
    assert all(large for small, large in zip(augmented(0.3), augmented(0.7), strict=True) if small)
    draw = Draw(seed=1, epoch=augmented(0.3).index(True), repeat=0, clean=False)
    assert np.array_equal(made.encode(3, draw).samples, made.encode(3, replace(draw, share=0.3)).samples)


def test_a_turn_is_a_function_of_seed_epoch_clip_and_turn(rows: list[Row], root: Path) -> None:
    made = clips(rows, root)
    draw = Draw(seed=1, epoch=2, repeat=0, clean=False)
    one = made.encode(3, draw)
    again = clips(rows, root).encode(3, draw)
    assert np.array_equal(one.samples, again.samples)
    assert one.change is not None and again.change is not None
    for name, value in vars(one.change).items():
        assert np.array_equal(value, vars(again.change)[name]), name
    for other in (replace(draw, seed=2), replace(draw, epoch=3), replace(draw, repeat=1)):
        assert not np.array_equal(one.samples, made.encode(3, other).samples)
    # by what the clip is, not by where it stands
    moved = clips(rows[::-1], root).encode(len(rows) - 4, draw)
    assert np.array_equal(one.samples, moved.samples)


def test_a_clip_that_is_gone_is_an_error_of_data_that_names_it(rows: list[Row], root: Path) -> None:
    made = clips([replace(rows[0], audio="data/packs/gone.pcm16")], root)
    with pytest.raises(DataError, match=rf"row {rows[0].name}: .*gone.pcm16 is gone; run `layl prepare` again"):
        made.plain(0)
    assert made.row_name(0) == "anna/0"


def example(samples: int, ids: tuple[int, ...], *, masked: bool = False) -> Example:
    frames = (samples + 80) // 160
    time, filters = np.zeros(frames, bool), np.zeros(80, bool)
    time[: frames // 2], filters[7] = True, True
    change = Change(time, filters, source_filters(1.0)) if masked else None
    return Example(samples, np.full(samples, 0.5, np.float32), ids, samples / 16_000, change)


def test_clips_of_different_lengths_are_padded_at_their_ends() -> None:
    batch = collate([example(400, (1, 2, 3)), example(160, (4,))])
    assert batch.audio_NS.shape == (2, 400)
    assert batch.audio_NS[1].tolist() == [0.5] * 160 + [0.0] * 240
    assert batch.samples_N.tolist() == [400, 160]
    assert batch.targets_NL.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch.lengths_N.tolist() == [3, 1]
    assert batch.indices == (400, 160)
    assert batch.changes is None
    assert batch.units == pytest.approx(560 / 16_000)
    assert batch.describe() == "2 clips, 0.0 s"


def test_masks_go_with_the_clips_that_have_them() -> None:
    batch = collate([example(1600, (1,), masked=True), example(3200, (1,))])
    assert batch.changes is not None
    assert batch.changes.time_mask_NT.shape == (2, 20)
    assert batch.changes.time_mask_NT.sum(1).tolist() == [5, 0]
    assert batch.changes.filter_mask_NF.nonzero().tolist() == [[0, 7]]


def test_a_batch_already_on_the_cpu_is_not_copied() -> None:
    batch = collate([example(160, (1,))])
    assert batch.to(torch.device("cpu")) is batch


def test_a_clip_too_short_for_its_letters_is_left_out_and_counted(rows: list[Row]) -> None:
    # "three" needs six output frames (ee needs one between): 6 x 40 ms
    row = replace(rows[0], text="three")
    just = replace(row, duration=(6 * 4 - 3) * 0.01)
    short = replace(row, duration=(5 * 4) * 0.01)
    kept, left_out = fitting(Manifest("train", (just, short)), VOCABULARY, 1.0)
    assert (kept, left_out) == ([just], 1)
    # what fits as it is may not fit at the fastest speed
    assert fitting(Manifest("train", (just,)), VOCABULARY, 1.1) == ([], 1)


def test_a_clip_without_letters_needs_a_frame(rows: list[Row]) -> None:
    silent = replace(rows[0], text="", duration=0.005)
    assert fitting(Manifest("train", (silent, replace(silent, duration=0.004))), VOCABULARY, 1.0) == ([silent], 1)
