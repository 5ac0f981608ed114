"""One clear reason for everything that is left out."""

from __future__ import annotations

import pytest

from core.errors import DataError
from core.speech.text import TEXT_MODES, Vocabulary
from prepare.cache import Heard
from prepare.checks import Dropped, frames_at_25_hz, judge, refuse_bad_source
from prepare.clip import Clip, Rejected

PLAIN = TEXT_MODES["plain"]


def heard(name: str, text: str = "one two", seconds: float = 2.0, peak: int = 9000, digest: str = "") -> Heard:
    clip = Clip(name=name, text=text, source="s", group="ordinary")
    return Heard(clip=clip, digest=digest or name, samples=round(seconds * 16_000), peak=peak, audio=name)


def reasons(*items: Heard | Rejected, known: Vocabulary | None = None, fastest: float = 1.0) -> dict[str, str]:
    return {drop.name: drop.reason for drop in judge([items], PLAIN, known, fastest).dropped}


def test_silence_ends_at_minus_60_db() -> None:
    assert reasons(heard("a", peak=32), heard("b", peak=33)) == {"a": "silent"}


@pytest.mark.parametrize("text", ["", " \u200f \t", "?!"])
def test_a_text_without_letters_is_empty(text: str) -> None:
    assert reasons(heard("a", text)) == {"a": "empty_text"}


@pytest.mark.parametrize(
    ("samples", "frames"), [(0, 0), (79, 0), (80, 1), (399, 1), (719, 1), (720, 2), (1600, 3), (16_000, 25)]
)
def test_frames_are_counted_as_the_model_makes_them(samples: int, frames: int) -> None:
    assert frames_at_25_hz(samples) == frames


def test_letters_must_fit_at_the_fastest_speed_equal_neighbours_counted_twice() -> None:
    exactly = heard("a", "abcdefghij", seconds=0.4)
    doubled = heard("b", "abcdefghii", seconds=0.4)

    assert frames_at_25_hz(exactly.samples) == 10
    assert reasons(exactly, doubled) == {"b": "text_too_long_for_audio"}
    assert set(reasons(exactly, fastest=1.1)) == {"a"}


def test_of_equal_audio_the_first_by_name_stays_in_whatever_order_it_came() -> None:
    one, two = heard("a.wav", digest="x"), heard("b.flac", digest="x")

    for items in ((one, two), (two, one)):
        judged = judge([items[:1], items[1:]], PLAIN, None, 1.0)
        assert [each.row.name for each in judged.kept] == ["a.wav"]
        assert [(drop.name, drop.reason) for drop in judged.dropped] == [("b.flac", "duplicate_audio")]


def test_a_clip_that_is_dropped_itself_makes_no_other_a_duplicate() -> None:
    assert reasons(heard("a", "", digest="x"), heard("b", digest="x")) == {"a": "empty_text"}
    assert reasons(heard("a", "x" * 99, digest="x"), heard("b", digest="x")) == {"a": "text_too_long_for_audio"}


def test_letters_come_from_the_data_until_the_run_has_begun() -> None:
    fresh = judge([[heard("a", "AB c")]], PLAIN, None, 1.0)
    begun = judge([[heard("a", "ab"), heard("b", "abc")]], PLAIN, Vocabulary(("<blk>", " ", "b", "a")), 1.0)

    assert fresh.vocabulary.symbols == ("<blk>", " ", "a", "b", "c")
    assert [each.row.text for each in fresh.kept] == ["ab c"]
    assert begun.vocabulary.symbols == ("<blk>", " ", "b", "a")
    assert [(drop.name, drop.reason) for drop in begun.dropped] == [("b", "outside_vocabulary")]


def test_a_dropped_clip_leaves_no_letter_in_the_vocabulary() -> None:
    judged = judge([[heard("a", "ab"), heard("b", "xyz", seconds=0.01)]], PLAIN, None, 1.0)

    assert judged.vocabulary.symbols == ("<blk>", " ", "a", "b")


def test_what_the_source_rejected_stays_rejected() -> None:
    assert reasons(Rejected("x.wav", "missing_file"), heard("a")) == {"x.wav": "missing_file"}


def test_a_source_that_lost_too_much_is_refused_with_reasons_counts_and_examples() -> None:
    dropped = [Dropped(0, f"s{i}.wav", "silent") for i in range(3)] + [Dropped(0, "e.wav", "empty_file")]

    refuse_bad_source("data.sources[0] (nemo)", 16, dropped, 0.2)
    with pytest.raises(
        DataError, match=r"(?s)data.sources\[0\].*4 of 19.*1 empty_file.*e.wav.*3 silent.*s0.wav"
    ) as error:
        refuse_bad_source("data.sources[0] (nemo)", 15, dropped, 0.2)
    assert error.value.exit_code == 65


def test_a_source_that_yields_nothing_is_refused_and_a_torn_line_is_no_loss() -> None:
    with pytest.raises(DataError, match="holds no clip at all"):
        refuse_bad_source("data.sources[0] (nemo)", 0, [], 1.0)
    refuse_bad_source("data.sources[0] (nemo)", 1, [Dropped(0, "m:2", "torn_line")], 0.0)
