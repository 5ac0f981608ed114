"""Held-out readers: whole persons, stable under new data, and nothing on both sides."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DataError
from core.manifest import Row
from core.speech.config import SplitSection
from core.speech.text import TEXT_MODES
from prepare.checks import Kept
from prepare.splits import Splits, assign, fraction, leaks, reader_key, split_of, verse_key

PLAIN, QURAN = TEXT_MODES["plain"], TEXT_MODES["quran_letters"]
HALF = SplitSection(valid_share=0.25, test_share=0.25)


def kept(
    reader: str | None, number: int = 0, text: str = "one", split: str | None = None, riwaya: str | None = None
) -> Kept:
    name = f"{reader}/{number}.wav"
    digest = hashlib.sha256(f"{name}{text}".encode()).hexdigest()
    row = Row(
        id=digest[:16], name=name, audio=name, digest=digest, duration=1.0, text=text, source="s", group="ordinary",
        reciter=reader, riwaya=riwaya,
    )  # fmt: skip
    return Kept(row, split, 0)


def where(splits: Splits) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for split, rows in splits.rows.items():
        for row in rows:
            found.setdefault(row.reciter or row.name, set()).add(split)
    return found


readers = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=30, unique=True)


@given(readers)
def test_readers_stay_whole(names: list[str]) -> None:
    rows = [kept(name, number) for name in names for number in range(3)]

    assert all(len(splits) == 1 for splits in where(assign(rows, HALF, PLAIN)).values())


@settings(max_examples=200)
@given(readers, st.text("xyz", min_size=1, max_size=6))
def test_a_new_reader_moves_nobody_else(names: list[str], newcomer: str) -> None:
    before = assign([kept(name) for name in names], HALF, PLAIN)
    after = assign([kept(name) for name in [*names, newcomer]], HALF, PLAIN)

    if not before.notes and not after.notes:
        assert {k: v for k, v in where(after).items() if k != newcomer} == where(before)


def test_the_shares_are_kept_over_many_readers() -> None:
    counts = {split: 0 for split in ("train", "valid", "test")}
    for number in range(4000):
        counts[split_of(f"reader:{number}", SplitSection(valid_share=0.1, test_share=0.2))] += 1

    assert counts["valid"] == pytest.approx(400, abs=80) and counts["test"] == pytest.approx(800, abs=100)


def test_one_person_under_two_spellings_is_one_reader() -> None:
    assert reader_key(kept("Al  Husary ").row) == reader_key(kept("al husary").row)
    assert reader_key(kept(None).row) is None


def test_named_readers_win_over_the_hash() -> None:
    names = [f"r{i}" for i in range(12)]
    config = SplitSection(valid=("R1",), test=("r2", "r3"), valid_share=0, test_share=0)
    found = where(assign([kept(name) for name in names], config, PLAIN))

    assert (found["r1"], found["r2"], found["r3"]) == ({"valid"}, {"test"}, {"test"})
    assert all(found[name] == {"train"} for name in names if name not in ("r1", "r2", "r3"))


def test_a_named_reader_who_is_not_there_is_an_error_and_so_is_one_named_twice() -> None:
    with pytest.raises(DataError, match=r"data.split.valid.*'bob'.*ann"):
        assign([kept("ann")], SplitSection(valid=("bob",)), PLAIN)
    with pytest.raises(DataError, match="valid and in test"):
        assign([kept("ann")], SplitSection(valid=("ann",), test=("Ann",)), PLAIN)


def test_a_split_that_a_source_dictates_stands() -> None:
    rows = [kept("ann", 0, split="test"), kept("bob", 0, split="valid"), kept("cem", 0, split="train")]

    assert where(assign(rows, HALF, PLAIN)) == {"ann": {"test"}, "bob": {"valid"}, "cem": {"train"}}


def test_without_a_reader_the_recording_decides_whatever_its_format() -> None:
    rows = []
    for number in range(40):
        for suffix in ("wav", "flac"):
            row = kept(None, number, text=suffix).row
            rows.append(Kept(Row(**{**_fields(row), "name": f"{number}.{suffix}"}), None, 0))
    found = where(assign(rows, HALF, PLAIN))

    assert all(found[f"{number}.wav"] == found[f"{number}.flac"] for number in range(40))
    assert {next(iter(splits)) for splits in found.values()} == {"train", "valid", "test"}


def _fields(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__dataclass_fields__}


def three_in_train() -> list[str]:
    config = SplitSection(valid_share=0.01, test_share=0.01)
    names = [f"n{i}" for i in range(100)]
    return [name for name in names if split_of(f"reader:{name}", config) == "train"][:3]


def test_of_three_readers_one_tests_and_one_validates_although_the_hash_chose_none() -> None:
    names = three_in_train()
    splits = assign([kept(name) for name in names], SplitSection(valid_share=0.01, test_share=0.01), PLAIN)
    by_hash = sorted(names, key=lambda name: fraction(f"reader:{name}"))

    assert where(splits) == {by_hash[0]: {"test"}, by_hash[1]: {"valid"}, by_hash[2]: {"train"}}
    assert len(splits.notes) == 2 and by_hash[0] in splits.notes[0]


def test_nobody_is_moved_for_a_share_of_zero_or_with_two_readers() -> None:
    names = three_in_train()
    none = assign([kept(name) for name in names], SplitSection(valid_share=0, test_share=0), PLAIN)
    two = assign([kept(name) for name in names[:2]], SplitSection(valid_share=0.01, test_share=0.01), PLAIN)

    assert not none.notes and not two.notes
    assert len(none.rows["train"]) == 3 and len(two.rows["train"]) == 2


def test_three_warsh_readers_give_one_to_valid_and_one_to_test() -> None:
    config = SplitSection(valid_share=0.2, test_share=0.2)
    in_train = [f"w{i}" for i in range(200) if split_of(f"reader:w{i}", config) == "train"][:4]
    rows = [kept(f"h{i}", riwaya="hafs") for i in range(30)] + [kept(name, riwaya="warsh") for name in in_train]
    found = where(assign(rows, config, PLAIN))

    assert sorted(next(iter(found[name])) for name in in_train) == ["test", "train", "train", "valid"]


def test_an_unseen_verse_is_heard_from_test_readers_only_and_counted() -> None:
    verses = [f"verse {letter}" for letter in "abcdefghijklmnopqrst"]
    rows = [
        kept(reader, number, text, split)
        for reader, split in (("ann", "train"), ("bob", "valid"), ("cem", "test"))
        for number, text in enumerate(verses)
    ]
    splits = assign(rows, SplitSection(unseen_verse_share=0.3), PLAIN)
    unseen = {row.text for row in splits.rows["unseen_verse"]}

    assert 0 < len(unseen) < 20
    assert {row.reciter for row in splits.rows["unseen_verse"]} == {"cem"}
    assert splits.left_out == 2 * len(unseen)
    for split in ("train", "valid", "test"):
        assert {row.text for row in splits.rows[split]} == set(verses) - unseen
    assert not leaks(splits.rows, {each.row.id for each in rows}, PLAIN)


def test_verses_that_differ_in_spelling_alone_are_one_verse() -> None:
    assert verse_key("ملك يوم الدين", QURAN) == verse_key("مالك يوم الدين", QURAN)
    assert verse_key("قل هو الله احد", QURAN) != verse_key("الله الصمد", QURAN)
    assert verse_key("ا و ي", QURAN) != verse_key("ا", QURAN)
    assert verse_key("a b", PLAIN) == verse_key("ab", PLAIN) != verse_key("ac", PLAIN)


def test_rows_stand_in_the_order_of_names_whatever_order_they_came_in() -> None:
    rows = [kept(f"r{i}", n) for i in range(9) for n in range(3)]

    assert assign(rows, HALF, PLAIN) == assign(rows[::-1], HALF, PLAIN)


def table(**rows: list[Kept]) -> dict[str, tuple[Row, ...]]:
    return {s: tuple(k.row for k in rows.get(s, [])) for s in ("train", "valid", "test", "unseen_verse")}


def test_leaks_are_found_by_reader_audio_recording_and_verse() -> None:
    ann = [kept("ann", 0), kept("ann", 1)]
    copy = Row(**{**_fields(kept("bob", 0).row), "digest": ann[0].row.digest})
    format_twin = Row(**{**_fields(kept("cem", 0).row), "name": "dan/0.mp3", "reciter": None})

    assert [(leak.kind, leak.splits) for leak in leaks(table(train=ann[:1], test=ann[1:]), (), PLAIN)] == [
        ("reader", ("train", "test"))
    ]
    assert [leak.kind for leak in leaks(table(train=ann[:1], test=[Kept(copy, None, 0)]), (), PLAIN)] == ["audio"]
    twins = table(train=[kept("dan", 0)], valid=[Kept(format_twin, None, 0)])
    assert [leak.kind for leak in leaks(twins, (), PLAIN)] == ["recording"]
    verses = table(train=[kept("ann", 0, "same")], unseen_verse=[kept("bob", 0, "same")])
    assert [leak.kind for leak in leaks(verses, (), PLAIN)] == ["verse"]


def test_a_source_may_validate_on_its_training_readers_but_never_test_on_them() -> None:
    one, two = kept("ann", 0), kept("ann", 1)
    dictated = {one.row.id, two.row.id}

    assert not leaks(table(train=[one], valid=[two]), dictated, PLAIN)
    assert leaks(table(train=[one], valid=[two]), {one.row.id}, PLAIN)
    assert leaks(table(train=[one], test=[two]), dictated, PLAIN)
    assert not leaks(table(test=[one], unseen_verse=[two]), (), PLAIN)
