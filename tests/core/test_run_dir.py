from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.run_dir import (
    TEMPORARY,
    Lines,
    RunDir,
    find_root,
    known_runs,
    read_json,
    remove_temporary,
    replacing,
    write_json,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_appears_whole_in_a_folder_that_is_made(tmp_path):
    path = tmp_path / "deep" / "er" / "a.json"
    with replacing(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["a.json"]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("fails", ["body", "interrupt", "fsync", "replace", "open"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, before, fails):
    path = tmp_path / "a.json"
    if before is not None:
        path.write_bytes(before)
    if fails in ("fsync", "replace"):
        monkeypatch.setattr(os, fails, no_space)
    if fails == "open":
        monkeypatch.setattr(Path, "open", no_space)
    with pytest.raises((OSError, KeyboardInterrupt)), replacing(path) as file:
        file.write(b"new and longer than any buffer" * 10_000)
        if fails == "body":
            no_space()
        if fails == "interrupt":
            raise KeyboardInterrupt
    monkeypatch.undo()
    assert names(tmp_path) == ([] if before is None else ["a.json"])
    assert before is None or path.read_bytes() == before


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size}")
        fsync(handle)

    def noted_replace(*paths: Path) -> None:
        order.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_text(tmp_path / "a.txt", "twelve bytes")
    assert order == ["file of 12", "rename", *(["folder"] if os.name == "posix" else [])]


@pytest.mark.parametrize(("refusals", "lands"), [(0, True), (2, True), (4, True), (5, False)])
def test_a_file_that_somebody_holds_is_tried_again_a_few_times(tmp_path, monkeypatch, refusals, lands):
    path, real, left = tmp_path / "a.json", os.replace, [refusals]
    write_json(path, 1)

    def replace(*names):
        if left[0]:
            left[0] -= 1
            raise PermissionError(13, "the file is in use")
        real(*names)

    waited = []
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("core.run_dir.time.sleep", waited.append)
    if lands:
        write_json(path, 2)
    else:
        with pytest.raises(PermissionError):
            write_json(path, 2)
    assert read_json(path) == (2 if lands else 1) and [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert len(waited) == min(refusals, 4) and sum(waited) < 1


def test_what_a_full_disk_tore_spoils_no_other_line(tmp_path, monkeypatch):
    lines = Lines(tmp_path / "log")
    lines.write("one\n")
    real = lines._file

    class Full:
        """A disk with room for two bytes."""

        room = 2

        def write(self, data):
            if not self.room:
                raise OSError(errno.ENOSPC, "full")
            taken, Full.room = real.write(data[: self.room]), 0
            return taken

    lines._file = Full()
    for refused in ("two\n", "three\n"):
        with pytest.raises(OSError, match="full"):
            lines.write(refused)
    lines._file = real
    lines.write("four ع\n")
    lines.close()
    assert (tmp_path / "log").read_text(encoding="utf-8").split() == ["one", "tw", "four", "ع"]
    assert (tmp_path / "log").read_text(encoding="utf-8").endswith("tw\nfour ع\n")


def test_readers_that_hold_the_old_file_go_on_reading_it(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with (tmp_path / "a.txt").open() as file:
        write_text(tmp_path / "a.txt", "new")
        assert file.read() == "old"


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_result_is_as_readable_as_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "a")
        assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o666 & ~mask
    finally:
        assert os.umask(before) == mask


def test_json_survives_and_arabic_stands_as_it_is(tmp_path):
    value = {"قارئ": ["الحصري", 1, 2.5, None, True], "u2028": "a\u2028b", "odd name": "caf\udce9"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "الحصري" in (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": object()}])
def test_what_json_cannot_say_touches_no_file(tmp_path, value):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == 1 and names(tmp_path) == ["a.json"]


def test_a_missing_or_torn_file_is_none(tmp_path):
    assert read_json(tmp_path / "a.json") is None
    for torn in (b"", b'{"step": 1', b'{"name": "\xd8'):
        (tmp_path / "a.json").write_bytes(torn)
        assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path) is None


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "precious"
    (folder / "inner").mkdir(parents=True)
    (folder / f".folder{TEMPORARY}").mkdir()
    elsewhere.write_text("voice")
    (folder / f".last.pt.17{TEMPORARY}").write_text("torn")
    (folder / f".link{TEMPORARY}").symlink_to(elsewhere)
    (folder / f".dangling{TEMPORARY}").symlink_to(tmp_path / "nowhere")
    (folder / "inner" / f".x{TEMPORARY}").write_text("not directly in it")
    (folder / f"named-by-a-person{TEMPORARY}").write_text("kept")
    (folder / "last.pt").write_text("kept")
    remove_temporary(folder)
    assert names(folder) == sorted([f".folder{TEMPORARY}", "inner", "last.pt", f"named-by-a-person{TEMPORARY}"])
    assert names(folder / "inner") == [f".x{TEMPORARY}"] and elsewhere.read_text() == "voice"
    remove_temporary(tmp_path / "nowhere")


def test_the_next_start_removes_what_a_killed_write_leaves(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "last.pt") as file:
        file.write(b"torn")
        assert len(names(tmp_path)) == 1
        remove_temporary(tmp_path)
        assert names(tmp_path) == []


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("LAYL_ROOT", raising=False)
    root = tmp_path / "project"
    (root / "configs").mkdir(parents=True)
    (root / "dvc.yaml").write_text("")
    return root


def test_the_root_is_the_nearest_project_upwards(project, monkeypatch):
    inner = project / "data" / "other"
    (inner / "configs").mkdir(parents=True)
    monkeypatch.setenv("LAYL_ROOT", str(project.parent))
    assert find_root(inner) == project
    (inner / "dvc.yaml").write_text("")
    assert find_root(inner / "configs") == inner
    monkeypatch.chdir(project / "data")
    assert find_root() == project


def test_away_from_a_project_the_environment_names_it(project, tmp_path, monkeypatch):
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.setenv("LAYL_ROOT", str(project))
    assert find_root(away) == project
    monkeypatch.setenv("LAYL_ROOT", str(away))
    with pytest.raises(ConfigError, match="holds no configs/ folder; name a project's folder"):
        find_root(away)


def test_without_both_it_is_the_checkout(project, tmp_path):
    assert (find_root(tmp_path) / "core" / "run_dir.py").is_file()


def test_known_runs_are_the_configurations(project):
    for name in ("quran.yaml", "digits.yaml", "notes.md"):
        (project / "configs" / name).write_text("")
    assert known_runs(project) == ["digits", "quran"]
    assert known_runs(project / "nowhere") == []


def test_every_place_of_a_run_is_its_own(tmp_path):
    run = RunDir(tmp_path, "quran")
    places = {
        name: value
        for name in dir(RunDir)
        if isinstance(value := getattr(run, name), Path) and name not in ("root", "path")
    }
    assert len(set(places.values())) == len(places)
    shared = {"archive", "packs", "prepare_cache"}
    other = RunDir(tmp_path, "digits")
    assert {name for name in places if getattr(other, name) == places[name]} == shared
    assert all(path.is_relative_to(tmp_path) for path in places.values())
    assert not run.lock.is_relative_to(run.path)


def test_step_files_come_oldest_first_and_others_are_left_alone(tmp_path):
    run = RunDir(tmp_path, "quran")
    assert run.step_files() == []
    run.path.mkdir(parents=True)
    assert run.step_file(1234).name == "step_0001234.pt"
    for step in (20_000_000, 5, 3_000_000):
        run.step_file(step).touch()
    for name in ("step_best.pt", "step_0000007.old.pt", "step_1_0.pt", f".step_0000009.pt.ab{TEMPORARY}", "step_.pt"):
        (run.path / name).touch()
    assert run.step_files() == [run.step_file(step) for step in (5, 3_000_000, 20_000_000)]
