from __future__ import annotations

import pytest

from cli.main import app
from core.control import read_request
from core.process import owner_facts
from core.run_dir import RunDir, write_json


@pytest.fixture
def running(project):
    run = RunDir(project, "quran")
    write_json(run.owner, owner_facts("shell", "night-1"))
    return run


def test_without_a_session_nothing_is_written(project, cli):
    run = RunDir(project, "quran")
    write_json(run.owner, {**owner_facts("shell", "s"), "start_time": 1.0})
    result = cli.invoke(app, ["stop", "quran"])
    assert result.exit_code == 1 and "no session" in result.stderr
    assert not run.control.exists()


@pytest.mark.parametrize(("flags", "action"), [([], "save"), (["--discard"], "discard")])
def test_the_request_bears_the_sessions_id(running, cli, flags, action):
    assert cli.invoke(app, ["stop", "quran", *flags]).exit_code == 0
    request = read_request(running)
    assert (request.session, request.action) == ("night-1", action)


def test_a_save_does_not_take_back_a_discard(running, cli):
    cli.invoke(app, ["stop", "quran", "--discard"])
    result = cli.invoke(app, ["stop", "quran"])
    assert read_request(running).action == "discard"
    assert "without saving" in result.stdout and "discard before" in result.stderr


def test_a_request_that_cannot_be_written_is_refused(running, cli, monkeypatch):
    monkeypatch.setattr("core.control.SECONDS_BETWEEN_TRIES", 0)
    running.control.mkdir()
    (running.control / "full").touch()
    result = cli.invoke(app, ["stop", "quran"])
    assert result.exit_code == 1 and "training goes on" in result.stderr
