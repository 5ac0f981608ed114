"""Held-out readers: whole persons, stable under new data, and nothing on both sides."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DataError
from core.manifest import Row
from core.seen import reader_key
from core.speech.config import SplitSection
from core.speech.text import TEXT_MODES
from prepare.audit import summary
from prepare.checks import Kept
from prepare.splits import Before, Splits, assign, fraction, leaks, recording_key, split_of, verse_key

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


def facts(splits: Splits) -> dict[str, Any]:
    """What the meta file says of a split."""
    return summary("r", "plain", splits, [], [], [])["split"]


def published(splits: Splits) -> Before:
    return Before.of(splits.rows, facts(splits))


def places(splits: Splits) -> dict[str, str]:
    return {recording_key(row): split for split, rows in splits.rows.items() for row in rows}


name = st.text("abcdefgh", min_size=1, max_size=6)
readers = st.lists(name, min_size=3, max_size=30, unique=True)
shares = st.sampled_from(
    [
        HALF,
        SplitSection(valid_share=0.01, test_share=0.01),
        SplitSection(test_share=0),
        SplitSection(valid=("anna",), valid_share=0.2, test_share=0.2),
        SplitSection(valid=("anna",), test=("bob",), valid_share=0.01, test_share=0.01),
    ]
)
#: name -> (recordings, riwaya), from one reader on, one of whom may be nobody
crowds = st.dictionaries(
    st.one_of(name, st.just("")), st.tuples(st.integers(1, 4), st.sampled_from(["hafs", "warsh", None])),
    min_size=1, max_size=8,
)  # fmt: skip


def crowd(people: dict[str, tuple[int, str | None]], config: SplitSection) -> list[Kept]:
    """Everybody's recordings, and those of whomever the configuration names."""
    everybody = {**dict.fromkeys((*config.valid, *config.test), (2, "hafs")), **people}
    return [kept(who or None, i, riwaya=riwaya) for who, (count, riwaya) in everybody.items() for i in range(count)]


@given(readers)
def test_readers_stay_whole(names: list[str]) -> None:
    rows = [kept(name, number) for name in names for number in range(3)]

    assert all(len(splits) == 1 for splits in where(assign(rows, HALF, PLAIN)).values())


@settings(max_examples=150)
@given(crowds, st.text("xyz", min_size=1, max_size=6), st.integers(1, 4), st.sampled_from(["hafs", "warsh"]), shares)
def test_a_new_reader_moves_nobody_else_whatever_has_to_be_filled(
    people: dict[str, tuple[int, str | None]], newcomer: str, count: int, riwaya: str, config: SplitSection
) -> None:
    before = assign(crowd(people, config), config, PLAIN)
    after = assign(crowd({**people, newcomer: (count, riwaya)}, config), config, PLAIN, published(before))
    known = {place: split for place, split in places(after).items() if not place.startswith(f"s/{newcomer}/")}

    assert not after.moved
    if before.could_train:
        assert known == places(before)


@settings(max_examples=150)
@given(st.lists(st.tuples(crowds, shares), min_size=1, max_size=4))
def test_preparing_the_same_again_gives_the_same_whatever_came_before(
    history: list[tuple[dict[str, tuple[int, str | None]], SplitSection]],
) -> None:
    before = Before()
    for people, config in history:
        splits = assign(crowd(people, config), config, PLAIN, before)
        before = published(splits)

    assert assign(crowd(people, config), config, PLAIN, before) == splits


@settings(max_examples=150)
@given(crowds, crowds, shares, shares)
def test_nobody_leaves_train_for_test_and_whoever_leaves_it_for_valid_is_named(
    old: dict[str, tuple[int, str | None]],
    new: dict[str, tuple[int, str | None]],
    first: SplitSection,
    second: SplitSection,
) -> None:
    before = assign(crowd(old, first), first, PLAIN)
    after = assign(crowd(new, second), second, PLAIN, published(before))
    was, now = places(before), places(after)
    left = {place for place in was.keys() & now.keys() if was[place] == "train" != now[place] and before.could_train}
    named = {f"reader {name}" for name in (*second.valid, *second.test)}
    own = {place for place in left if f"reader {place.split('/')[1]}" in named}

    assert {now[place] for place in left - own} <= {"valid"}
    assert bool(left) == bool(after.moved) and bool(left - own) == bool(after.moved.keys() - named)


def with_hash(split: str, count: int, config: SplitSection, letter: str = "n") -> list[str]:
    names = (f"{letter}{i}" for i in range(1000))
    return [name for name in names if split_of(f"reader:{name}", config) == split][:count]


def test_the_shares_decide_about_newcomers_alone_and_that_is_said() -> None:
    few, many = SplitSection(valid_share=0.1, test_share=0.1), SplitSection(valid_share=0.1, test_share=0.6)
    names = with_hash("train", 8, few) + with_hash("valid", 2, few) + with_hash("test", 2, few)
    before = assign([kept(name) for name in names], few, PLAIN)
    after = assign([kept(name) for name in names], many, PLAIN, published(before))

    assert where(after) == where(before)
    assert any(note.startswith("In train, by the shares alone in test: reader ") for note in after.notes)


def test_an_empty_split_takes_a_newcomer_before_anybody_who_was_trained_on() -> None:
    config = SplitSection(valid_share=0.01, test_share=0.01)
    one, two, three, four, new = sorted(with_hash("train", 5, config), key=lambda name: fraction(f"reader:{name}"))
    before = assign([kept(name) for name in (one, two, three, four)], config, PLAIN)
    assert where(before) == {one: {"valid"}, two: {"test"}, three: {"train"}, four: {"train"}}
    after = assign([kept(name) for name in (two, three, four, new)], config, PLAIN, published(before))

    assert where(after) == {two: {"test"}, three: {"train"}, four: {"train"}, new: {"valid"}} and not after.moved


def test_an_empty_valid_takes_a_trained_reader_at_worst_and_says_so_ever_after_but_an_empty_test_stays() -> None:
    config = SplitSection(valid_share=0.01, test_share=0.01)
    one, two, three, four, five = sorted(with_hash("train", 5, config), key=lambda name: fraction(f"reader:{name}"))
    before = assign([kept(name) for name in (one, two, three, four, five)], config, PLAIN)
    rest = [kept(name) for name in (three, four, five)]
    after = assign(rest, config, PLAIN, published(before))

    assert where(after) == {three: {"valid"}, four: {"train"}, five: {"train"}}
    assert after.moved == {f"reader {three}": "valid"}
    assert any(note.startswith("No reader is in test") and "data.split.test" in note for note in after.notes)
    assert assign([*rest, kept("newcomer")], config, PLAIN, published(after)).moved == after.moved


def test_a_third_warsh_reader_moves_neither_of_the_two_who_were_trained_on() -> None:
    config = SplitSection(valid_share=0.2, test_share=0.2)
    one, two, new = with_hash("train", 3, config, "w")
    crowd = [kept(f"h{i}", riwaya="hafs") for i in range(30)] + [kept(name, riwaya="warsh") for name in (one, two)]
    before = assign(crowd, config, PLAIN)
    after = assign([*crowd, kept(new, riwaya="warsh")], config, PLAIN, published(before))

    assert [where(after)[name] for name in (one, two, new)] == [{"train"}, {"train"}, {"valid"}]
    assert any(note.startswith("No Warsh reader is in test") for note in after.notes)


def test_a_name_in_the_configuration_moves_a_trained_reader_with_a_warning() -> None:
    names = [f"r{i}" for i in range(12)]
    config = SplitSection(valid=("r1",), test=("r2",), valid_share=0, test_share=0)
    before = assign([kept(name) for name in names], config, PLAIN)
    renamed = SplitSection(valid=("r1",), test=("r3",), valid_share=0, test_share=0)
    after = assign([kept(name) for name in names], renamed, PLAIN, published(before))

    assert where(after) == {**where(before), "r2": {"train"}, "r3": {"test"}} and after.moved == {"reader r3": "test"}


def test_naming_others_lets_those_go_who_were_held_out_by_name() -> None:
    rows = [kept(f"r{i}") for i in range(5)]
    first = SplitSection(valid=("r1",), test=("r2",), valid_share=0, test_share=0)
    second = SplitSection(valid=("r3",), test=("r2",), valid_share=0, test_share=0)
    before = assign(rows, first, PLAIN)

    assert where(assign(rows, second, PLAIN, published(before)))["r1"] == {"train"}
    nobody = SplitSection(valid_share=0, test_share=0)
    assert where(assign(rows, nobody, PLAIN, published(before))) == where(before)


def test_a_trained_reader_under_a_new_name_is_still_one() -> None:
    config = SplitSection(valid_share=0.01, test_share=0.01)
    one, two, three, four = sorted(with_hash("train", 4, config), key=lambda name: fraction(f"reader:{name}"))
    rows = [kept(name) for name in (one, two, three, four)]
    before = assign(rows, config, PLAIN)
    renamed = [*rows[:3], Kept(Row(**{**_fields(rows[3].row), "reciter": "anna"}), None, 0)]
    named = SplitSection(valid=(one,), test=("anna",))

    assert where(before)[four] == {"train"}
    assert assign(renamed, named, PLAIN, published(before)).moved == {"reader anna": "test"}


def test_what_never_had_a_validation_row_binds_nobody() -> None:
    names = [f"r{i}" for i in range(40)]
    before = assign([kept(name) for name in names], SplitSection(valid_share=0, test_share=0.2), PLAIN)
    after = assign([kept(name) for name in names], HALF, PLAIN, published(before))

    assert after == assign([kept(name) for name in names], HALF, PLAIN)
    gone = Before.of(before.rows, {**facts(before), "could_train": True})
    assert where(assign([kept(name) for name in names], HALF, PLAIN, gone)) != where(after)


@pytest.mark.parametrize("names", [["ann"], ["ann", "bob"]])
def test_one_or_two_speakers_are_split_by_recording_and_that_is_said(names: list[str]) -> None:
    rows = [kept(name, number) for name in names for number in range(40)]
    splits = assign(rows, SplitSection(), PLAIN)

    assert all(splits.rows[split] for split in ("train", "valid", "test")) and splits.by_recording == set(names)
    assert f"too few to hold one out: recordings are ({', '.join(names)})" in splits.notes[0]
    assert not leaks(splits.rows, (), PLAIN, splits.by_recording) and leaks(splits.rows, (), PLAIN)


def test_two_clips_are_enough_to_train_on_one_and_validate_on_the_other() -> None:
    two = assign([kept("ann", 0), kept("ann", 1)], SplitSection(valid_share=0.01, test_share=0.01), PLAIN)
    nobody = assign([kept(None, 0), kept(None, 1)], SplitSection(valid_share=0.01, test_share=0.01), PLAIN)

    for splits in (two, nobody):
        assert {split: len(rows) for split, rows in splits.rows.items() if rows} == {"train": 1, "valid": 1}
    assert nobody.notes[0].startswith("No row names its reader")


def test_a_speaker_whom_somebody_joins_stays_split_by_recording() -> None:
    alone = [kept("ann", number) for number in range(40)]
    before = assign(alone, SplitSection(), PLAIN)
    joined = [*alone, kept("bob"), kept("cem"), kept("dan"), kept("ann", 40)]
    after = assign(joined, SplitSection(), PLAIN, published(before))

    assert {place: split for place, split in places(after).items() if place in places(before)} == places(before)
    assert after.by_recording == {"ann"} and after.notes[0].startswith("Recordings are held out")


def test_whoever_was_held_out_whole_is_not_divided_when_others_leave() -> None:
    config = SplitSection(valid_share=0.01, test_share=0.01)
    names = with_hash("train", 3, config)
    before = assign([kept(name, i) for name in names for i in range(9)], config, PLAIN)
    (test,) = (name for name in names if where(before)[name] == {"test"})
    (train,) = (name for name in names if where(before)[name] == {"train"})
    after = assign([kept(name, i) for name in (test, train) for i in range(20)], config, PLAIN, published(before))

    assert where(after) == {test: {"test"}, train: {"train", "valid"}} and after.by_recording == {train}
    assert not after.moved


def test_two_readers_stay_whole_beside_a_source_that_validates_already() -> None:
    rows = [kept("ann", i) for i in range(40)] + [kept("bob", i, split="valid") for i in range(3)]

    assert not assign(rows, SplitSection(), PLAIN).by_recording


def test_whoever_stood_in_train_at_all_counts_as_trained_on_and_unseen_verses_as_test() -> None:
    rows = [kept("ann", 0).row, kept("ann", 1).row, kept("bob").row, kept("cem").row]
    before = Before.of({"train": rows[:1], "valid": rows[1:3], "test": [], "unseen_verse": rows[3:]}, {})

    assert before.readers == {"ann": "train", "bob": "valid", "cem": "test"}
    assert before.recordings == {"s/ann/0": "train", "s/ann/1": "valid", "s/bob/0": "valid", "s/cem/0": "test"}


def test_a_recording_nobody_trained_on_fills_valid_before_a_reader_who_was_trained_on() -> None:
    config = SplitSection(valid_share=0.01, test_share=0)
    one, two, three, four = sorted(with_hash("train", 4, config), key=lambda name: fraction(f"reader:{name}"))
    before = assign([kept(name) for name in (one, two, three, four)], config, PLAIN)
    rows = [*(kept(name) for name in (two, three, four)), kept(None, 0), kept(None, 1)]
    after = assign(rows, config, PLAIN, published(before))

    assert {row.reciter for row in after.rows["valid"]} == {None} and not after.moved


def test_named_speakers_are_held_out_whole_though_there_are_only_two() -> None:
    splits = assign([kept(n, i) for n in ("ann", "bob") for i in range(9)], SplitSection(valid=("ann",)), PLAIN)

    assert where(splits)["ann"] == {"valid"} and not splits.by_recording


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


def test_a_name_that_the_reader_s_source_would_not_obey_is_an_error() -> None:
    rows = [kept("ann", 0, split="train"), kept("ann", 1, split="valid"), kept("bob", split="test"), kept("cem")]

    with pytest.raises(DataError, match=r"data.split.test: 'Ann' is in train by the source s, which decides its"):
        assign(rows, SplitSection(test=("Ann",)), PLAIN)
    agreed = assign(rows, SplitSection(test=("bob",), valid_share=0, test_share=0), PLAIN)
    assert where(agreed) == {"ann": {"train", "valid"}, "bob": {"test"}, "cem": {"train"}}


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


def test_of_three_readers_one_validates_and_one_tests_although_the_hash_chose_none() -> None:
    names = three_in_train()
    splits = assign([kept(name) for name in names], SplitSection(valid_share=0.01, test_share=0.01), PLAIN)
    by_hash = sorted(names, key=lambda name: fraction(f"reader:{name}"))

    assert where(splits) == {by_hash[0]: {"valid"}, by_hash[1]: {"test"}, by_hash[2]: {"train"}}
    assert len(splits.notes) == 2 and by_hash[1] in splits.notes[0] and by_hash[0] in splits.notes[1]


@pytest.mark.parametrize("count", [1, 3])
def test_nobody_is_held_out_for_shares_of_zero(count: int) -> None:
    names = three_in_train()[:count]
    splits = assign([kept(name) for name in names], SplitSection(valid_share=0, test_share=0), PLAIN)

    assert not splits.notes and len(splits.rows["train"]) == count


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


def test_a_reader_split_by_recording_is_no_leak_but_their_recordings_are_and_a_dictated_row_is() -> None:
    one, two = kept("ann", 0), kept("ann", 1)

    assert not leaks(table(train=[one], test=[two]), (), PLAIN, {"ann"})
    assert leaks(table(train=[one], test=[two]), {two.row.id}, PLAIN, {"ann"})
    assert {leak.kind for leak in leaks(table(train=[one], test=[one]), (), PLAIN, {"ann"})} == {"audio", "recording"}
