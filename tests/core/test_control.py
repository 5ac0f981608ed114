from __future__ import annotations

import pytest

import core.control
from core.control import StopRequest, ask_to_stop, read_request
from core.run_dir import RunDir, write_json


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path, "quran")


def request(action="save", session="s", at=10.0):
    return StopRequest(request="r", session=session, action=action, by="somebody", at=at)


def test_a_request_is_read_as_it_was_written(run):
    for asked in (request(), request("discard", None)):
        assert ask_to_stop(run, asked) == asked
        assert read_request(run) == asked


def test_a_discard_overrides_a_save_and_not_the_reverse(run):
    ask_to_stop(run, request("save"))
    ask_to_stop(run, request("discard"))
    assert ask_to_stop(run, request("save")) == request("discard")
    assert read_request(run) == request("discard")


def test_a_discard_of_another_session_holds_nobody(run):
    ask_to_stop(run, request("discard", "last night"))
    ask_to_stop(run, request("save", "tonight"))
    assert read_request(run) == request("save", "tonight")


@pytest.mark.parametrize("values", [None, [], 3, {}, {"action": "explode"}, {"action": "save", "at": "soon"}])
def test_what_is_no_request_asks_for_nothing(run, values):
    write_json(run.control, values)
    assert read_request(run) is None


def test_a_bare_request_of_a_person_is_understood(run):
    write_json(run.control, {"action": "save"})
    assert read_request(run) == StopRequest(request="", session=None, action="save", by="", at=0.0)


@pytest.mark.parametrize(
    ("session", "at", "concerned"), [("s", 0.0, True), ("other", 99.0, False), (None, 5.0, True), (None, 4.9, False)]
)
def test_a_request_concerns_its_session_or_whichever_runs(session, at, concerned):
    assert request(session=session, at=at).concerns("s", since=5.0) is concerned


def failing(times):
    def write(path, value):
        failing.calls += 1
        if failing.calls <= times:
            raise OSError("no space")

    failing.calls = 0
    return write


def test_writing_is_tried_three_times(run, monkeypatch):
    waits = []
    monkeypatch.setattr(core.control, "write_json", failing(2))
    ask_to_stop(run, request(), wait=waits.append)
    assert (failing.calls, waits) == (3, [0.5, 0.5])
    monkeypatch.setattr(core.control, "write_json", failing(3))
    with pytest.raises(OSError, match="no space"):
        ask_to_stop(run, request(), wait=waits.append)
    assert failing.calls == 3
