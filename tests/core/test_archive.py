from __future__ import annotations

import pytest

from core.archive import archive, purge
from core.errors import DataError
from core.run_dir import RunDir


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path, "quran")
    run.path.mkdir(parents=True)
    run.last.write_text("weights")
    return run


def test_numbers_go_up_past_gaps_and_other_names(run):
    for name in ("quran-1", "quran-7", "quran-old", "quran-2-9", "quranic-50"):
        (run.archive / name).mkdir(parents=True)
    assert archive(run) == run.archive / "quran-8"
    assert (run.archive / "quran-8" / "last.pt").read_text() == "weights"
    assert not run.path.exists()


def test_nothing_to_archive_is_an_error_that_says_so(run):
    archive(run)
    with pytest.raises(FileNotFoundError):
        archive(run)


def test_a_purge_removes_links_inside_and_never_what_they_point_to(run, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "voice.wav").write_text("la")
    (run.path / "heard").symlink_to(tmp_path / "precious")
    purge(run)
    assert not run.path.exists()
    assert (tmp_path / "precious" / "voice.wav").exists()


def test_a_purge_refuses_a_run_that_is_a_link(run, tmp_path):
    run.path.rename(tmp_path / "big-disk")
    run.path.symlink_to(tmp_path / "big-disk")
    with pytest.raises(DataError, match="is a link"):
        purge(run)
    assert (tmp_path / "big-disk" / "last.pt").exists()


def test_a_purge_never_leaves_runs(run, tmp_path):
    (tmp_path / "configs").mkdir()
    with pytest.raises(DataError, match="does not lie in"):
        purge(RunDir(tmp_path, ".."))
    assert (tmp_path / "configs").exists() and run.last.exists()


def test_runs_itself_may_be_a_link(run, tmp_path):
    run.path.parent.rename(tmp_path / "big-disk")
    (tmp_path / "runs").symlink_to(tmp_path / "big-disk")
    purge(run)
    assert not (tmp_path / "big-disk" / "quran").exists()
