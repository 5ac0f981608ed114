"""When a sitting ends: clocks that change, people who change their minds, signals that only raise a flag."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from core import checkpoint
from core.control import StopRequest, ask_to_stop
from core.errors import ConfigError
from core.process import mark_of
from core.run_dir import RunDir, remove_temporary
from train.session import Session, Stop, parse_duration, resolve_stop_at, watch_parent

NOW = 1_700_000_000.0


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path, "r")
    run.path.mkdir(parents=True)
    return run


def at(text: str, zone: str) -> datetime:
    """An instant by what a clock there shows; ``+`` for the second time it does."""
    local = datetime.fromisoformat(text.rstrip("+")).replace(tzinfo=ZoneInfo(zone), fold=int(text.endswith("+")))
    return local.astimezone(UTC)


@pytest.mark.parametrize(
    ("zone", "start", "stop_at", "then"),
    [
        ("Europe/Zurich", "2025-06-01 23:00", "06:30", "2025-06-02 06:30"),
        ("Europe/Zurich", "2025-06-01 05:00", "06:30", "2025-06-01 06:30"),
        ("Europe/Zurich", "2025-06-01 06:30", "06:30", "2025-06-02 06:30"),
        ("Europe/Zurich", "2025-06-01 06:29:59", "6:30:00", "2025-06-01 06:30"),
        ("Europe/Zurich", "2025-12-31 23:59", "00:00", "2026-01-01 00:00"),
        # clocks go forward on 30 March at 2:00, back on 26 October at 3:00
        ("Europe/Zurich", "2025-03-29 23:00", "06:30", "2025-03-30 06:30"),
        ("Europe/Zurich", "2025-10-25 23:00", "06:30", "2025-10-26 06:30"),
        # skipped: when the clock would have shown it, which then shows 3:30
        ("Europe/Zurich", "2025-03-30 01:00", "02:30", "2025-03-30 03:30"),
        ("Europe/Zurich", "2025-03-30 03:10", "02:30", "2025-03-30 03:30"),
        ("Europe/Zurich", "2025-03-30 03:40", "02:30", "2025-03-31 02:30"),
        # twice: the first after the start
        ("Europe/Zurich", "2025-10-26 01:00", "02:30", "2025-10-26 02:30"),
        ("Europe/Zurich", "2025-10-26 02:45", "02:30", "2025-10-26 02:30+"),
        ("Europe/Zurich", "2025-10-26 02:10+", "02:30", "2025-10-26 02:30+"),
        ("Europe/Zurich", "2025-10-26 02:30+", "02:30", "2025-10-27 02:30"),
        # Morocco goes back for Ramadan (23 February at 3:00) and forward after it (6 April at 2:00)
        ("Africa/Casablanca", "2025-02-22 23:00", "06:30", "2025-02-23 06:30"),
        ("Africa/Casablanca", "2025-02-23 02:45", "02:30", "2025-02-23 02:30+"),
        ("Africa/Casablanca", "2025-04-05 23:00", "06:30", "2025-04-06 06:30"),
        ("Africa/Casablanca", "2025-04-05 23:00", "02:30", "2025-04-06 03:30"),
    ],
)  # fmt: skip
def test_the_first_such_time_of_day_after_the_start(zone: str, start: str, stop_at: str, then: str) -> None:
    expected = at(then, zone).timestamp()
    assert resolve_stop_at(stop_at, zone, at(start, zone)).timestamp() == expected
    # a shell names no zone: this machine's is meant, whichever zone the start is written in
    with time_machine.travel(datetime(2025, 1, 1, tzinfo=ZoneInfo(zone))):
        assert resolve_stop_at(stop_at, None, at(start, zone)).timestamp() == expected


@given(
    st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1)), st.integers(0, 23), st.integers(0, 59),
    st.sampled_from(["Europe/Zurich", "Africa/Casablanca", "Asia/Kolkata", "Australia/Lord_Howe"]),
)  # fmt: skip
def test_the_stop_lies_within_a_day_or_so_after_the_start(start: datetime, hour: int, minute: int, zone: str) -> None:
    begun = start.replace(tzinfo=UTC)
    then = resolve_stop_at(f"{hour:02}:{minute:02}", zone, begun)
    assert timedelta(0) < then.astimezone(UTC) - begun <= timedelta(hours=25)


@pytest.mark.parametrize("text", ["", "6", "630", "24:00", "06:60", "06:30:60", "6h", "-1:00", "06:30 pm", "06:3"])
def test_what_is_no_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no time of day"):
        resolve_stop_at(text, "Europe/Zurich", datetime.now(UTC))


def test_a_number_for_a_time_is_explained_by_yaml() -> None:
    with pytest.raises(ConfigError, match=r"'1410' is no time of day.*YAML 1.1.*in quotes"):
        resolve_stop_at("1410", None, datetime.now(UTC))


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "/etc/localtime"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match=r"no time zone .*expected a name such as Europe/Zurich"):
        resolve_stop_at("06:30", zone, datetime.now(UTC))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h30m", 9000), ("45m", 2700), ("90s", 90), ("2", 7200), ("0.5", 1800), ("1.5h", 5400), ("1h0m5s", 3605),
        (" 2H30M ", 9000),
    ],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "h", "2h30", "30m2h", "-1", "1e3", "inf", "nan", "2 h", "2,5", "0", "0m", "0h0m0s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"stop-after: .* is no (duration|time at all)"):
        parse_duration(text)


def test_a_session_without_limits_never_ends_by_itself(run: RunDir) -> None:
    session = Session(run, "s", clock=lambda: NOW)
    assert session.stop_reason(10**9) is None
    assert not session.interrupted()


def test_the_clock_is_read_every_time_so_a_laptop_that_slept_ends_at_once(run: RunDir) -> None:
    clock = iter([NOW, NOW + 1, NOW + 99.9, NOW + 30_000])
    session = Session(run, "s", stop_at=NOW + 100, clock=lambda: next(clock))
    assert [session.stop_reason(step) for step in (1, 2)] == [None, None]
    stop = session.stop_reason(3)
    assert stop is not None
    assert stop.kind == "paused"
    assert "the session's end" in stop.reason


def test_a_deadline_interrupts_a_validation_and_a_step_limit_does_not(run: RunDir) -> None:
    assert Session(run, "s", stop_at=NOW, clock=lambda: NOW).interrupted()
    assert not Session(run, "s", until_step=5, clock=lambda: NOW).interrupted()


def test_a_step_limit_is_the_run_s_own_step(run: RunDir) -> None:
    session = Session(run, "s", until_step=1200, clock=lambda: NOW)
    assert session.stop_reason(1199) is None
    assert session.stop_reason(1200) == Stop("paused", "step 1,200 was the session's last")
    assert session.stop_reason(5000) is not None


def test_the_earliest_limit_gives_the_reason(run: RunDir) -> None:
    session = Session(run, "s", until_step=10, stop_at=NOW, clock=lambda: NOW)
    assert session.stop_reason(10) == Session(run, "s", stop_at=NOW, clock=lambda: NOW).stop_reason(10)
    session.request("got SIGTERM")
    assert session.stop_reason(10) == Stop("stopped", "got SIGTERM")


def test_a_stop_file_asks_to_stop(run: RunDir) -> None:
    session = Session(run, "s", clock=lambda: NOW)
    run.stop_file.touch()
    assert session.stop_reason(1) == Stop("stopped", "asked to stop")
    assert session.interrupted()


def ask(run: RunDir, action: str, session: str | None, when: float = NOW) -> None:
    ask_to_stop(run, StopRequest(request="q", session=session, action=action, by="test", at=when))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("session", "when", "obeyed"),
    [("mine", NOW - 99, True), ("another", NOW + 1, False), (None, NOW, True), (None, NOW - 1, False)],
    ids=["its own, also from before", "another's", "anybody's", "anybody's from before it began"],
)
@pytest.mark.parametrize(("action", "kind"), [("save", "stopped"), ("discard", "discarded")])
def test_a_request_is_for_the_session_it_names(
    run: RunDir, session: str | None, when: float, obeyed: bool, action: str, kind: str
) -> None:
    ask(run, action, session, when)
    stop = Session(run, "mine", clock=lambda: NOW).stop_reason(1)
    assert (stop.kind if stop else None) == (kind if obeyed else None)


def test_a_torn_request_is_no_request(run: RunDir) -> None:
    run.control.write_text('{"request": "q", "action": "sa', encoding="utf-8")
    assert Session(run, "s", clock=lambda: NOW).stop_reason(1) is None


def test_a_discard_overrides_a_save_and_a_signal_and_not_the_reverse(run: RunDir) -> None:
    session = Session(run, "s", stop_at=NOW, until_step=0, clock=lambda: NOW)
    session.request("got SIGTERM")
    ask(run, "save", "s")
    assert session.stop_reason(1) == Stop("stopped", "asked to stop")
    ask(run, "discard", "s")
    assert session.stop_reason(1) == Stop("discarded", "asked to stop without saving")
    ask(run, "save", "s")
    assert session.stop_reason(1) == Stop("discarded", "asked to stop without saving")


def test_a_new_session_removes_what_was_meant_for_others_and_keeps_its_own(run: RunDir) -> None:
    session = Session(run, "mine", clock=lambda: NOW)
    assert not session.clear_requests()
    run.stop_file.touch()
    ask(run, "save", "another")
    assert session.clear_requests()
    assert not run.stop_file.exists()
    assert not run.control.exists()
    # an attempt after the first finds the request of its session
    ask(run, "save", "mine")
    assert not session.clear_requests()
    assert session.stop_reason(1) is not None


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_raises_a_flag_and_handlers_come_back(run: RunDir, name: str) -> None:
    number = getattr(signal, name)
    heard: list[int] = []
    before = signal.signal(number, lambda n, _: heard.append(n))
    try:
        session = Session(run, "s", clock=lambda: NOW)
        with session.signals():
            assert session.stop_reason(1) is None
            os.kill(os.getpid(), number)
            assert session.stop_reason(1) == Stop("stopped", f"got {name}")
            assert heard == []
        os.kill(os.getpid(), number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_handlers_come_back_after_an_error_too(run: RunDir) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError), Session(run, "s").signals():
        raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_is_ignored_on_purpose_stays_ignored(run: RunDir) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        session = Session(run, "s", clock=lambda: NOW)
        with session.signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert session.stop_reason(1) is None
    finally:
        signal.signal(signal.SIGHUP, before)


SECOND_SIGNAL = """
import sys, time
from pathlib import Path
from core.run_dir import RunDir
from train.session import Session
with Session(RunDir(Path(sys.argv[1]), "r"), "s").signals():
    print("ready", flush=True)
    try:
        time.sleep(30)
        time.sleep(30)
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.process
def test_a_second_signal_leaves_at_once_touching_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SECOND_SIGNAL, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 128 + signal.SIGTERM
        assert child.stdout.read() == ""
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


IN_A_SAVE = """
import os, sys, time
from pathlib import Path
import torch
from core import checkpoint
from core.run_dir import RunDir
from train.session import Session
run = RunDir(Path(sys.argv[1]), "r")
checkpoint.write(run.last, {"step": 1, "model": torch.zeros(1000)}, previous=run.last_previous)
session = Session(run, "s")
def slow(handle):
    print("saving", flush=True)
    while session._signals == 0:
        time.sleep(0.001)
    print("heard", flush=True)
    time.sleep(30)
os.fsync = slow
with session.signals():
    checkpoint.write(run.last, {"step": 2, "model": torch.ones(1000)}, previous=run.last_previous)
"""


@pytest.mark.process
def test_two_signals_within_a_save_leave_the_last_good_file(run: RunDir) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", IN_A_SAVE, str(run.root)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "saving\n"
        child.send_signal(signal.SIGINT)
        # two that nobody heard in between would be one
        assert child.stdout.readline() == "heard\n"
        time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 128 + signal.SIGINT
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert checkpoint.read(run.last)["step"] == 1
    assert len(list(run.path.iterdir())) > 1, "the save had begun"
    remove_temporary(run.path)
    assert [path.name for path in run.path.iterdir()] == ["last.pt"]


@pytest.mark.process
def test_the_end_of_a_watched_process_asks_for_a_stop_with_save(run: RunDir) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert parent.stdin is not None
    session = Session(run, "s")
    watch_parent(session, [mark_of(parent.pid)], stdin=False, grace_seconds=1e7)
    assert session.stop_reason(1) is None
    parent.stdin.close()
    # its end is seen before anybody has asked for its exit code
    deadline = time.monotonic() + 10
    while session.stop_reason(1) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.wait()
    assert session.stop_reason(1) == Stop("stopped", "whoever started this session is gone")
