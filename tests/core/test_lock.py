from __future__ import annotations

import pytest

from core.errors import BusyError
from core.lock import busy_message, hold
from core.process import owner_facts
from core.run_dir import RunDir, write_json


def test_one_at_a_time_and_free_afterwards(tmp_path):
    run = RunDir(tmp_path, "quran")
    with hold(run):
        with pytest.raises(BusyError) as error, hold(run):
            pass
        assert error.value.exit_code == 69
        with hold(RunDir(tmp_path, "digits")):
            pass
    with hold(run):
        pass


def test_the_lock_outlives_an_archived_run_directory(tmp_path):
    run = RunDir(tmp_path, "quran")
    run.path.mkdir(parents=True)
    with hold(run):
        run.path.rename(tmp_path / "elsewhere")
        with pytest.raises(BusyError), hold(run):
            pass


def test_an_error_inside_frees_it(tmp_path):
    run = RunDir(tmp_path, "quran")
    with pytest.raises(ZeroDivisionError), hold(run):
        raise ZeroDivisionError
    with hold(run):
        pass


def test_the_message_names_a_living_owner_and_no_dead_one(tmp_path):
    run = RunDir(tmp_path, "quran")
    owner = owner_facts("dvc", "night-1")
    write_json(run.owner, owner)
    with hold(run), pytest.raises(BusyError, match=f"night-1.*dvc.*pid {owner['pid']}.*layl stop quran"), hold(run):
        pass
    assert "night-1" not in busy_message("quran", {**owner, "start_time": 0.0})
    assert "another command" in busy_message("quran", None)
