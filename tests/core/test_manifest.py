from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError
from core.manifest import (
    META,
    Manifest,
    Row,
    data_id,
    manifest_text,
    parse_manifest,
    publish,
    read_meta,
    read_prepared,
    row_id,
)
from core.run_dir import replacing

#: What a file name, a reader or a corpus may hold; no half characters.
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def row(number: int = 0, **changes: object) -> Row:
    digest, text = f"{number:064x}", "بسم الله"
    values: dict = {
        "id": row_id(digest, text, "ordinary"), "name": f"husary/1/{number}", "audio": f"raw/{number}.wav",
        "digest": digest, "duration": 1.0 + number / 16_000, "text": text, "source": "nemo", "group": "ordinary",
    }  # fmt: skip
    return Row(**(values | changes))


ROWS = st.builds(
    Row,
    id=TEXT, name=TEXT, audio=TEXT, digest=TEXT, text=TEXT, source=TEXT,
    duration=st.integers(0, 10**8).map(lambda n: round(n / 16_000, 6)),
    group=st.sampled_from(["professional", "ordinary"]),
    offset=st.none() | st.integers(0),
    riwaya=st.none() | st.sampled_from(["hafs", "warsh"]),
    reciter=st.none() | TEXT,
    sura=st.none() | st.integers(1, 114),
    aya=st.none() | st.integers(1, 286),
)  # fmt: skip


@given(st.lists(ROWS, max_size=4), st.randoms())
def test_the_data_id_does_not_depend_on_order_places_or_names(rows, random):
    moved = [
        dataclasses.replace(
            r, audio=f"elsewhere/{i}", offset=i, name=f"n{i}", reciter="x", sura=1, aya=1, source="kaldi"
        )
        for i, r in enumerate(rows)
    ]
    random.shuffle(moved)
    assert data_id(moved) == data_id(rows)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"}, {"text": "بسم"}, {"digest": "f" * 64}, {"duration": 1.001}, {"group": "professional"},
        {"riwaya": "warsh"},
    ],
)  # fmt: skip
def test_the_data_id_depends_on_what_training_reads(change):
    assert data_id([row(0, **change), row(1)]) != data_id([row(0), row(1)])


def test_the_data_id_counts_rows():
    assert len({data_id([]), data_id([row(0)]), data_id([row(0), row(0)]), data_id([row(0), row(1)])}) == 4


def test_the_data_id_sees_no_rounding_below_a_millisecond():
    assert data_id([row(0, duration=1.0)]) == data_id([row(0, duration=1.0001)])


def test_a_row_id_tells_what_its_parts_are():
    parts = [
        row_id("a", "b", "c"),
        row_id("ab", "", "c"),
        row_id("a", "c", "b"),
        row_id("a", "b", "d"),
        row_id("e", "b", "c"),
    ]
    assert len(set(parts)) == 5
    assert all(len(each) == 16 and set(each) <= set("0123456789abcdef") for each in parts)


@given(st.integers(0, 10**9))
def test_six_decimals_hold_a_length_in_samples_exactly(samples):
    assert row(duration=round(samples / 16_000, 6)).samples == samples


@given(st.lists(ROWS, max_size=4))
def test_rows_survive_write_and_read(rows):
    text = manifest_text(rows)
    assert parse_manifest(text, "train.jsonl") == tuple(rows)
    assert text.count("\n") == len(rows)


def test_arabic_stands_in_a_manifest_as_it_is():
    assert "بسم الله" in manifest_text([row()])


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"id": "a"}', '"text"'])
def test_a_line_that_is_no_row_is_named(line):
    text = manifest_text([row()]) + line + "\n" + manifest_text([row(1)])
    with pytest.raises(DataError, match=r"train\.jsonl:2: not a manifest row .*run `layl prepare` again") as error:
        parse_manifest(text, "train.jsonl")
    assert error.value.exit_code == 65


def test_a_column_of_a_later_layl_is_left_aside():
    line = json.dumps({**dataclasses.asdict(row()), "mood": "glad"}) + "\n"
    assert parse_manifest(line, "train.jsonl") == (row(),)


def test_a_manifest_counts_clips_and_hours():
    manifest = Manifest("train", (row(duration=1800.0), row(1, duration=900.0)))
    assert (len(manifest), manifest.hours) == (2, 0.75)
    assert manifest.data_id == data_id(manifest.rows)


FILES = {
    "train.jsonl": manifest_text([row(0), row(1)]), "valid.jsonl": manifest_text([row(2)]), "test.jsonl": "",
    "unseen_verse.jsonl": "", "tokens.txt": "<blk> 0\n", "audit.md": "# Audit\n",
}  # fmt: skip


def never(_: float) -> None:
    raise AssertionError("a whole manifest waits for nothing")


def test_what_was_published_is_read_whole(tmp_path):
    meta = publish(tmp_path / "m", FILES, {"counts": {"train": 2}})
    prepared = read_prepared(tmp_path / "m", wait=never)
    assert prepared.train.rows == (row(0), row(1)) and prepared.valid.rows == (row(2),)
    assert [len(prepared.splits[split]) for split in ("test", "unseen_verse")] == [0, 0]
    assert prepared.tokens == "<blk> 0\n"
    assert prepared.meta == meta == read_meta(tmp_path / "m")
    assert meta["schema"] == 1 and set(meta["files"]) == set(FILES) and meta["counts"] == {"train": 2}


def state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()}


def test_a_second_publication_of_the_same_leaves_bytes_and_times_alone(tmp_path):
    meta = {"counts": {"train": (1, 2)}, "by_number": {7: 1}, "hours": 1.0}
    publish(tmp_path, FILES, meta)
    before = state(tmp_path)
    publish(tmp_path, dict(reversed(FILES.items())), meta)
    assert state(tmp_path) == before


def test_the_bytes_are_a_function_of_the_arguments(tmp_path):
    publish(tmp_path / "a", FILES, {"counts": 1})
    publish(tmp_path / "b", FILES, {"counts": 1})
    assert {n: s[0] for n, s in state(tmp_path / "a").items()} == {n: s[0] for n, s in state(tmp_path / "b").items()}


def test_one_changed_file_leaves_the_others_alone(tmp_path):
    publish(tmp_path, FILES, {})
    before = state(tmp_path)
    publish(tmp_path, {**FILES, "audit.md": "# New\n"}, {})
    after = state(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"audit.md", META}
    read_prepared(tmp_path, wait=never)


def test_a_number_that_changes_its_kind_is_a_change(tmp_path):
    publish(tmp_path, FILES, {"strict": 1})
    publish(tmp_path, FILES, {"strict": True})
    assert '"strict": true' in (tmp_path / META).read_text()


def test_files_of_before_are_removed_and_hidden_ones_and_folders_stay(tmp_path):
    publish(tmp_path, {**FILES, "old.jsonl": "x\n"}, {})
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "folder").mkdir()
    publish(tmp_path, FILES, {})
    assert {p.name for p in tmp_path.iterdir()} == {*FILES, META, ".gitignore", "folder"}


def test_the_meta_file_is_written_last(tmp_path, monkeypatch):
    order = []

    def noted(path: Path):
        order.append(path.name)
        return replacing(path)

    monkeypatch.setattr("core.manifest.replacing", noted)
    publish(tmp_path, FILES, {})
    assert order[-1] == META and sorted(order[:-1]) == sorted(FILES)


def test_a_name_that_is_not_utf_8_can_be_published(tmp_path):
    odd = row(name="caf\udce9")
    publish(tmp_path, {**FILES, "train.jsonl": manifest_text([odd])}, {"worst": "caf\udce9"})
    prepared = read_prepared(tmp_path, wait=never)
    assert prepared.train.rows == (odd,) and prepared.meta["worst"] == "caf\udce9"


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_was_touched_is_read_again_once_and_then_refused(tmp_path, name):
    publish(tmp_path, FILES, {})
    with (tmp_path / name).open("a") as file:
        file.write(" ")
    waits: list[float] = []
    with pytest.raises(DataError) as error:
        read_prepared(tmp_path, wait=waits.append)
    assert waits == [2.0] and error.value.exit_code == 65
    said = str(error.value)
    assert said.startswith(f"{tmp_path / name} is not what {META} says it is; run `layl prepare {tmp_path.name}`")


def test_a_writer_at_work_is_waited_for(tmp_path):
    publish(tmp_path, FILES, {})
    new = {**FILES, "train.jsonl": manifest_text([row(7)])}
    (tmp_path / "train.jsonl").write_text(new["train.jsonl"], encoding="utf-8")
    prepared = read_prepared(tmp_path, wait=lambda _: publish(tmp_path, new, {}) and None)
    assert prepared.train.rows == (row(7),)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / META).unlink(), "is missing or torn"),
        (lambda f: (f / META).write_text('{"schema"'), "is missing or torn"),
        (lambda f: (f / META).write_text("[1]"), "is missing or torn"),
        (lambda f: (f / META).write_text('{"schema": 99, "files": {}}'), "has schema 99, this layl reads 1"),
        (lambda f: (f / META).write_text('{"schema": 1}'), "names no files"),
        (lambda f: (f / META).write_text('{"schema": 1, "files": ["train.jsonl"]}'), "names no files"),
        (lambda f: (f / "valid.jsonl").unlink(), r"valid\.jsonl is missing"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_in_words(tmp_path, damage, said):
    publish(tmp_path, FILES, {})
    damage(tmp_path)
    with pytest.raises(DataError, match=said):
        read_prepared(tmp_path, wait=lambda _: None)


def test_a_folder_that_does_not_exist_is_refused_in_words(tmp_path):
    with pytest.raises(DataError, match="missing or torn; run `layl prepare quran`"):
        read_prepared(tmp_path / "quran", wait=lambda _: None)
    assert read_meta(tmp_path / "quran") is None
