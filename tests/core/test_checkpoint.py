from __future__ import annotations

import enum
import errno
import hashlib
import os
import shutil
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core import checkpoint
from core.errors import CheckpointError, UnknownFormatError
from core.run_dir import replacing


def state(step: int) -> dict[str, Any]:
    return {
        "model": OrderedDict(
            weight=torch.full((6, 6), float(step)), none=torch.zeros(0), half=torch.ones(3).bfloat16()
        ),
        "progress": {"step": step, "best": None, "loss": 0.25, "done": False, "names": ["قارئ", ("a", 1)]},
    }


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.fixture
def last(tmp_path: Path) -> Path:
    return tmp_path / "run" / "last.pt"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("written") / "last.pt"
    checkpoint.write(path, state(7))
    return path.read_bytes()


def test_what_was_written_is_read_exactly(last):
    digest = checkpoint.write(last, state(7))
    assert same(checkpoint.read(last), {"format": checkpoint.FORMAT, **state(7)})
    assert digest == hashlib.sha256(last.read_bytes()).hexdigest()


def test_the_same_state_is_the_same_file(last):
    assert checkpoint.write(last, state(7)) == checkpoint.write(last.with_name("again.pt"), state(7))


def test_torch_alone_reads_it_too(last):
    checkpoint.write(last, state(7))
    assert torch.load(last, weights_only=True)["progress"]["step"] == 7


KEYS = st.text(max_size=4) | st.integers(-9, 9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=30)
@given(VALUES)
def test_every_plain_value_survives(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "plain.pt"
    checkpoint.write(path, {"value": value})
    assert same(checkpoint.read(path)["value"], value)


class Colour(enum.StrEnum):
    RED = "red"


class Odd(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "thing",
    [
        {1, 2}, b"bytes", 1j, np.float64(1), np.zeros(2), Path("a"), Colour.RED, torch.float32, torch.Size([1]),
        Counter("a"), defaultdict(list), namedtuple("Point", "x")(1), torch.ones(1).as_subclass(Odd), object(),
        torch.nn.Linear(1, 1),
    ],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_what_is_not_plain_is_refused_before_anything_is_touched(last, thing):
    checkpoint.write(last, state(1))
    before = last.read_bytes()
    with pytest.raises(TypeError, match=r"^checkpoint\.a\[1\]\.b is a \w+; a checkpoint holds plain types and tensors"):
        checkpoint.write(last, {"a": [0, {"b": thing}]}, previous=last.with_name("last.prev.pt"))
    assert last.read_bytes() == before and os.listdir(last.parent) == ["last.pt"]


class Burglar:
    """What pickle runs when it is loaded."""

    def __init__(self, door: Path):
        self.door = door

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.door),)


def test_what_would_run_when_it_is_loaded_is_not_loaded(last, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_refuse_objects", lambda *_: None)
        checkpoint.write(last, {"step": Burglar(tmp_path / "door")})
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read(last)
    assert not (tmp_path / "door").exists()


def test_a_key_that_is_not_plain_is_refused(last):
    with pytest.raises(TypeError, match="is a bytes"):
        checkpoint.write(last, {"a": {b"key": 1}})


def test_a_flipped_byte_anywhere_is_refused(tmp_path, written):
    path = tmp_path / "last.pt"
    path.write_bytes(written)
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(written):
            file.seek(place)
            file.write(bytes([byte ^ 1 << place % 8]))
            with pytest.raises(CheckpointError, match="damaged"):
                checkpoint.read(path)
            file.seek(place)
            file.write(bytes([byte]))
    checkpoint.read(path)


@given(st.data())
def test_a_hole_of_zeros_anywhere_is_refused(tmp_path_factory, written, data):
    start = data.draw(st.integers(0, len(written) - 1))
    length = data.draw(st.integers(1, len(written) - start))
    damaged = written[:start] + bytes(length) + written[start + length :]
    path = tmp_path_factory.getbasetemp() / "hole.pt"
    path.write_bytes(damaged)
    if damaged == written:
        checkpoint.verify(path)
    else:
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.verify(path)


def test_a_file_cut_anywhere_or_longer_than_it_was_is_refused(tmp_path, written):
    path = tmp_path / "last.pt"
    size = len(written)
    cuts = [written[:n] for n in (0, 10, 63, 64, 65, size // 2, size - 64, size - 1)]
    for damaged in [*cuts, written + b"\0", written * 2]:
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{path} is damaged"):
            checkpoint.read(path)


def test_a_file_of_somebody_else_is_refused(tmp_path):
    torch.save({"format": 1}, tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match="damaged or no layl checkpoint"):
        checkpoint.read(tmp_path / "theirs.pt")
    digits = hashlib.sha256(b"").hexdigest().encode()
    (tmp_path / "sealed.pt").write_bytes(digits)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read(tmp_path / "sealed.pt")


def test_no_file_and_a_folder_are_said_in_words(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.read(tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read(tmp_path)


def test_another_format_is_refused_and_touched_by_nobody(last, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoint.write(last, state(7))
    before = last.read_bytes()
    monkeypatch.undo()
    with pytest.raises(UnknownFormatError, match="has format 99, this layl reads 1; update layl, nothing was touched"):
        checkpoint.read(last)
    assert last.read_bytes() == before


def step_of(path: Path) -> int | None:
    return checkpoint.read(path)["progress"]["step"] if path.exists() else None


@pytest.fixture
def previous(last: Path) -> Path:
    return last.with_name("last.prev.pt")


def no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("links", [True, False])
def test_the_generation_before_is_kept(last, previous, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    for step in (1, 2, 3):
        checkpoint.write(last, state(step), previous=previous)
        assert (step_of(last), step_of(previous)) == (step, step - 1 or None)
    assert sorted(os.listdir(last.parent)) == ["last.prev.pt", "last.pt"]


def test_without_a_second_name_only_one_file_is_written(last, previous):
    for step in (1, 2):
        checkpoint.write(last, state(step))
    assert step_of(last) == 2 and not previous.exists()


def two_generations(last: Path, previous: Path) -> dict[str, bytes]:
    for step in (1, 2):
        checkpoint.write(last, state(step), previous=previous)
    return contents(last.parent)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("links", [True, False])
def test_at_no_moment_is_there_no_whole_checkpoint(last, previous, monkeypatch, links):
    two_generations(last, previous)
    seen = []

    def watched(name: str):
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, step_of(last), step_of(previous)))
            result = real(*args, **kwargs)
            seen.append((name, step_of(last), step_of(previous)))
            return result

        return call

    for name in ("replace", "link", "fsync", "unlink"):
        monkeypatch.setattr(os, name, no_links if name == "link" and not links else watched(name))
    checkpoint.write(last, state(3), previous=previous)
    assert {(now, before) for _, now, before in seen} == {(2, 1), (3, 1), (3, 2)}
    assert [name for name, *_ in seen].count("replace") == 4


class Full:
    """A disk that takes so many bytes."""

    def __init__(self, file: Any, room: int):
        self._file, self._room = file, room

    def write(self, data: Any) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1000, 2000, 200_000, 401_000])
def test_a_full_disk_leaves_both_files_as_they_were_and_says_so(last, previous, monkeypatch, room):
    before = two_generations(last, previous)

    class replacing_on_full:
        def __init__(self, path: Path):
            self._real = replacing(path)

        def __enter__(self) -> Full:
            return Full(self._real.__enter__(), room)

        def __exit__(self, *error: Any) -> bool | None:
            return self._real.__exit__(*error)

    monkeypatch.setattr(checkpoint, "replacing", replacing_on_full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        checkpoint.write(last, {"large": torch.zeros(100_000), **state(3)}, previous=previous)
    assert contents(last.parent) == before


@pytest.mark.parametrize("nth", [1, 2])
def test_a_file_that_a_reader_holds_for_a_moment_is_no_failure(last, previous, monkeypatch, nth):
    two_generations(last, previous)
    real, calls = os.replace, []

    def held(*names: Any) -> None:
        calls.append(names)
        if len(calls) == nth:
            raise PermissionError("a reader holds it")
        real(*names)

    monkeypatch.setattr(os, "replace", held)
    checkpoint.write(last, state(3), previous=previous)
    assert (step_of(last), step_of(previous)) == (3, 2)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize(
    ("name", "nth", "error"),
    [
        ("fsync", 1, OSError(errno.EIO, "broken")), ("fsync", 2, OSError(errno.EIO, "broken")),
        ("replace", 1, OSError(errno.EIO, "broken")), ("replace", 2, OSError(errno.EIO, "broken")),
        ("replace", 1, KeyboardInterrupt()), ("replace", 2, KeyboardInterrupt()),
        ("copyfile", 1, OSError(errno.ENOSPC, "full")),
    ],
)  # fmt: skip
def test_a_write_that_fails_leaves_both_files_as_they_were(last, previous, monkeypatch, name, nth, error, links):
    before = two_generations(last, previous)
    module: Any = shutil if name == "copyfile" else os
    real, calls = getattr(module, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == nth:
            raise error
        return real(*args, **kwargs)

    if not links or name == "copyfile":
        monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(module, name, failing)
    with pytest.raises(type(error)):
        checkpoint.write(last, state(3), previous=previous)
    monkeypatch.undo()
    assert contents(last.parent) == before
    checkpoint.write(last, state(3), previous=previous)
    assert (step_of(last), step_of(previous)) == (3, 2)


def test_what_a_kill_left_behind_is_no_obstacle(last, previous):
    two_generations(last, previous)
    (last.parent / ".last.prev.pt.link.layl-tmp").write_bytes(b"torn")
    checkpoint.write(last, state(3), previous=previous)
    assert (step_of(last), step_of(previous)) == (3, 2)
    assert sorted(os.listdir(last.parent)) == ["last.prev.pt", "last.pt"]


@given(st.lists(st.binary(max_size=5), max_size=8))
def test_the_seal_covers_bytes_in_pieces_of_any_size(tmp_path_factory, pieces):
    path = tmp_path_factory.getbasetemp() / "sealed"
    with path.open("wb") as file:
        sealing = checkpoint._Sealing(file)
        for piece in [*pieces, b"\0\0"]:
            assert sealing.write(piece) == len(piece)
        digest = sealing.seal()
    data = path.read_bytes()
    assert data.startswith(b"".join(pieces) + (76).to_bytes(2, "little") + b"layl sha256 ")
    assert digest == hashlib.sha256(data).hexdigest()
    checkpoint.verify(path)
