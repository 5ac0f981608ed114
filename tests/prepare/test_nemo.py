"""JSON-lines manifests as people really write them."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError
from core.speech.config import NemoSource
from prepare.clip import Clip, Rejected
from prepare.nemo import NemoReader


def line(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def reader(project: Path, content: bytes, **options: Any) -> NemoReader:
    path = project / "data" / "m.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return NemoReader(NemoSource(manifest="data/m.jsonl", **options), project, "data.sources[2]")


def only(project: Path, **fields: Any) -> Clip | Rejected:
    (item,) = reader(project, line(**fields)).clips()
    return item


def test_a_row_needs_audio_and_text_and_takes_the_rest_as_it_is(tmp_path: Path) -> None:
    plain = only(tmp_path, audio="a/b.wav", text=" one ")
    full = only(
        tmp_path, path="c.mp3", text="x", duration=-1, reciter="husary", riwaya="warsh", sura=2, aya="255",
        source="qul", group="professional",
    )  # fmt: skip

    assert plain == Clip(name="a/b.wav", text="one", source="m", group="ordinary", audio=Path("data/a/b.wav"))
    assert full == Clip(
        name="c.mp3", text="x", source="qul", group="professional", reciter="husary", riwaya="warsh", sura=2, aya=255,
        audio=Path("data/c.mp3"),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["audio", "audio_filepath", "path"])
def test_audio_may_be_called_in_three_ways(tmp_path: Path, name: str) -> None:
    item = only(tmp_path, **{name: "a.wav", "text": "x", "speaker": "ann"})

    assert isinstance(item, Clip) and item.name == "a.wav" and item.reciter == "ann"


def test_a_byte_order_mark_crlf_and_empty_lines_are_no_trouble(tmp_path: Path) -> None:
    rows = [line(audio=f"{i}.wav", text="سلام\u2028x") for i in range(3)]
    items = list(reader(tmp_path, b"\xef\xbb\xbf" + b"\r\n".join(rows) + b"\r\n\r\n").clips())

    assert [item.name for item in items] == ["0.wav", "1.wav", "2.wav"]


@pytest.mark.parametrize("cut", range(1, 26))
def test_a_last_line_cut_anywhere_is_dropped_and_named(tmp_path: Path, cut: int) -> None:
    torn = line(audio="b.wav", text="سلام")[:-1][:cut]
    items = list(reader(tmp_path, line(audio="a.wav", text="x") + b"\n" + torn).clips())

    assert [item.name for item in items] == ["a.wav", "m.jsonl:2"]
    assert items[1] == Rejected("m.jsonl:2", "torn_line")


def test_a_torn_line_anywhere_else_names_file_and_line(tmp_path: Path) -> None:
    content = line(audio="a.wav", text="x") + b'\n{"audio": "b.w\n' + line(audio="c.wav", text="x") + b"\n"

    with pytest.raises(DataError, match=r"m\.jsonl:2: not JSON"):
        list(reader(tmp_path, content).clips())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text": "no audio"}, "malformed_row"),
        ({"audio": 7, "text": "x"}, "malformed_row"),
        ({"audio": "a.wav", "text": ["x"]}, "malformed_row"),
        ({"audio": "a.wav", "text": "x", "sura": "two"}, "malformed_row"),
        ({"audio": "a.wav", "text": "x", "group": "experts"}, "malformed_row"),
        ({"audio": "a.wav", "text": "x", "offset": 1.5}, "offset_unsupported"),
        ({"audio": "../a.wav", "text": "x"}, "outside_root"),
        ({"audio": "b/../../a.wav", "text": "x"}, "outside_root"),
        ({"audio": "/etc/hostname", "text": "x"}, "outside_root"),
        ({"audio": ".", "text": "x"}, "outside_root"),
        ({"audio": "a\0.wav", "text": "x"}, "outside_root"),
    ],
)
def test_rows_that_cannot_be_meant_have_their_reason(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    item = only(tmp_path, **fields)

    assert isinstance(item, Rejected) and item.reason == reason


def test_a_row_that_is_no_object_and_an_offset_of_zero(tmp_path: Path) -> None:
    items = list(reader(tmp_path, b"[1]\n" + line(audio="a.wav", text="x", offset=0.0)).clips())

    assert items[0] == Rejected("m.jsonl:1", "malformed_row") and isinstance(items[1], Clip)


def test_a_row_without_text_is_left_to_the_checks(tmp_path: Path) -> None:
    item = only(tmp_path, audio="a.wav")

    assert isinstance(item, Clip) and item.text == ""


def test_paths_are_spelled_as_the_configuration_spells_their_folder(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    other.mkdir()
    content = line(audio="a.wav", text="x")
    (project / "audio").mkdir(parents=True)

    def spelled(**options: Any) -> str:
        (item,) = reader(project, content, **options).clips()
        assert isinstance(item, Clip) and item.audio is not None
        return item.audio.as_posix()

    assert spelled() == "data/a.wav"
    assert spelled(root="audio") == "audio/a.wav"
    assert spelled(root=str(project / "audio")) == "audio/a.wav"
    assert spelled(root="../other") == "../other/a.wav"
    assert spelled(root=str(other)) == f"{other.as_posix()}/a.wav"


def test_an_absolute_path_inside_the_folder_is_fine(tmp_path: Path) -> None:
    item = only(tmp_path, audio=str(tmp_path / "data" / "x" / "a.wav"), text="x")

    assert isinstance(item, Clip) and (item.name, item.audio) == ("x/a.wav", Path("data/x/a.wav"))


def test_a_neighbour_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    item = only(tmp_path, audio=str(tmp_path / "data-private" / "a.wav"), text="x")

    assert isinstance(item, Rejected) and item.reason == "outside_root"


def test_a_name_is_found_in_the_unicode_form_that_the_disk_has(tmp_path: Path) -> None:
    composed, apart = unicodedata.normalize("NFC", "آية.wav"), unicodedata.normalize("NFD", "آية.wav")
    assert composed != apart
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / apart).write_bytes(b"x")
    item = only(tmp_path, audio=composed, text="x")

    assert isinstance(item, Clip) and item.audio is not None and (tmp_path / item.audio).is_file()


def test_what_is_missing_names_the_configurations_key(tmp_path: Path) -> None:
    absent = NemoReader(NemoSource(manifest="no.jsonl"), tmp_path, "data.sources[2]")
    folderless = reader(tmp_path, line(audio="a.wav", text="x"), root="nowhere")

    for call in (absent.fingerprint, lambda: list(absent.clips())):
        with pytest.raises(DataError, match=r"data.sources\[2\].manifest.*no.jsonl"):
            call()
    with pytest.raises(DataError, match=r"data.sources\[2\].root.*nowhere"):
        folderless.fingerprint()


def test_the_fingerprint_sees_the_manifest_and_every_file(tmp_path: Path) -> None:
    content = line(audio="a.wav", text="x")
    seen = [reader(tmp_path, content).fingerprint()]
    (tmp_path / "data" / "a.wav").write_bytes(b"1")
    seen.append(reader(tmp_path, content).fingerprint())
    os.utime(tmp_path / "data" / "a.wav", ns=(5, 5))
    seen.append(reader(tmp_path, content).fingerprint())
    seen.append(reader(tmp_path, content + b"\n").fingerprint())

    assert len(set(seen)) == 4
    one = NemoReader(NemoSource(manifest="data/m.jsonl"), tmp_path)
    assert one.fingerprint() == NemoReader(NemoSource(manifest="data/m.jsonl"), tmp_path).fingerprint()
