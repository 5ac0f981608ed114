from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from core.control import StopRequest, ask_to_stop, read_request
from core.lock import hold
from core.process import Mark, is_alive
from core.run_dir import RunDir, read_json, write_json
from tasks.supervise import CHECKOUT, SessionRequest, new_session_id, supervise, trainer_command, trainer_environment

#: What a trainer does as far as a supervisor can see, without training.
FAKE = """
import json, os, signal, sys, time
from pathlib import Path
from core.events import *
from core.outcome import EXIT_CODES
from core.process import owner_facts
from core.run_dir import RunDir, write_json

run, session = RunDir(Path(sys.argv[1]), "quran"), sys.argv[2]
asked = []
def on_signal(number, frame):
    asked.append(number)
    if len(asked) > 1:
        os._exit(128 + number)
def own():
    signal.signal(signal.SIGTERM, on_signal)
    write_json(run.owner, owner_facts("shell", session))
    emit = EventLog(run.events)
    emit(Started(step=5, planned=100, epoch=1, epochs=2, steps_per_epoch=50, session=session, frontend="shell",
                 device="cpu"))
    return emit
def trained(step):
    return Trained(step=step, planned=100, epoch=1, loss=1.0, lr=1e-3, grad_norm=1.0, units_seen=1.0,
                   elapsed_seconds=1.0, units_per_second=1.0, gpu_peak_bytes=None, skipped=0, eta_seconds=1.0)
def until_asked():
    while not asked:
        time.sleep(0.01)
def end(kind, step, reason=""):
    write_json(run.result, dict(session=session, outcome=kind, from_step=5, to_step=step, reason=reason,
                                resumable=True, exit_code=EXIT_CODES[kind], ended_at=time.time()))
    sys.exit(EXIT_CODES[kind])
"""

process = pytest.mark.process


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path, "quran")


@pytest.fixture
def trainer(tmp_path):
    """Makes a command of a trainer with the given body."""

    def make(body):
        script = tmp_path / "fake_trainer.py"
        script.write_text(FAKE + textwrap.dedent(body))
        return lambda wanted, mark: [sys.executable, str(script), str(wanted.run.root), wanted.session]

    return make


def supervised(run, command, listeners=(), session="mine", said=None, poll_seconds=0.02):
    return supervise(
        SessionRequest(run=run, session=session),
        listeners,
        say=(said if said is not None else []).append,
        command=command,
        poll_seconds=poll_seconds,
    )


def interrupt_when(condition, number=signal.SIGINT):
    """Send this process a signal once the condition holds."""

    def wait():
        deadline = time.monotonic() + 20
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_the_command_carries_every_limit():
    wanted = SessionRequest(
        run=RunDir(Path("/p"), "quran"), session="s", frontend="dvc", stop_at=1000.5, until_step=7,
        overrides=("a=1", "b.c=2"), on_change="archive", watch=Mark(9, 2.5),
    )  # fmt: skip
    command = trainer_command(wanted, Mark(4, 1.25))
    assert command[:5] == [sys.executable, "-P", "-m", "train", "quran"]
    text = " ".join(command[5:])
    assert "--session s --frontend dvc --supervisor 4:1.25 --watch 9:2.50 --stop-at 1000.500 --until-step 7" in text
    assert "--set a=1 --set b.c=2 --on-change archive" in text
    bare = trainer_command(SessionRequest(run=wanted.run, session="s"), Mark(4, 1.25))
    assert not {"--stop-at", "--until-step", "--watch", "--set"} & set(bare)


def test_the_child_finds_this_checkout_from_any_folder(tmp_path):
    environment = trainer_environment({"PYTHONPATH": "/mine", "HOME": "/h"})
    assert environment["PYTHONPATH"] == os.pathsep.join([str(CHECKOUT), "/mine"])
    assert environment["HOME"] == "/h"
    assert trainer_environment({})["PYTHONPATH"] == str(CHECKOUT)


def test_the_trainer_leaves_the_machine_to_others_unless_told_otherwise():
    assert trainer_environment({})["GOMP_SPINCOUNT"] == "1000"
    assert trainer_environment({"GOMP_SPINCOUNT": "5"})["GOMP_SPINCOUNT"] == "5"
    assert "GOMP_SPINCOUNT" not in trainer_environment({"OMP_WAIT_POLICY": "ACTIVE"})


def test_session_ids_sort_by_time():
    first, second = (new_session_id(datetime(2025, 6, day, 23, 0), "aa") for day in (9, 10))
    assert first == "20250609-230000-aa" and first < second
    assert new_session_id(datetime(2025, 6, 9)) != new_session_id(datetime(2025, 6, 9))


def test_a_request_that_waits_for_this_session_ends_it_before_it_starts(run, trainer):
    ask_to_stop(run, StopRequest(request="r", session="mine", action="save", by="layl stop", at=1.0))
    outcome = supervised(run, lambda *_: pytest.fail("a child was started"))
    assert (outcome.kind, outcome.exit_code) == ("stopped", 75)


@process
def test_events_reach_every_listener_and_the_result_is_the_childs(run, trainer):
    command = trainer("""
        emit = own()
        for step in range(6, 9):
            emit(trained(step))
        emit(Finished(step=8, planned=100))
        end("finished", 8, "all steps")
    """)
    run.path.mkdir(parents=True)
    run.events.write_text('{"event": "Finished", "at": 1, "step": 1, "planned": 1}\n')
    heard, steps = [], []

    def broken(event):
        raise RuntimeError("the server is gone")

    outcome = supervised(run, command, [broken, heard.append, lambda event: steps.append(event.step)])
    assert (outcome.kind, outcome.from_step, outcome.to_step, outcome.reason) == ("finished", 5, 8, "all steps")
    assert steps == [5, 6, 7, 8, 8]
    assert [type(event).__name__ for event in heard] == ["Started", "Trained", "Trained", "Trained", "Finished"]


@process
def test_what_a_child_says_last_is_heard_after_it_ended(run, trainer):
    heard = []
    outcome = supervised(
        run, trainer("own()(Finished(step=8, planned=8)); end('finished', 8)"), [heard.append], poll_seconds=1
    )
    assert [type(event).__name__ for event in heard] == ["Started", "Finished"] and outcome.kind == "finished"


@process
def test_ctrl_c_writes_the_intent_first_and_waits_for_the_save(run, trainer):
    command = trainer("""
        emit = own()
        until_asked()
        assert json.loads(run.control.read_text())["action"] == "save"
        time.sleep(0.3)
        end("stopped", 40, "asked to stop")
    """)
    interrupt_when(run.owner.exists)
    said = []
    outcome = supervised(run, command, said=said)
    assert (outcome.kind, outcome.to_step) == ("stopped", 40)
    request = read_request(run)
    assert (request.session, request.by) == ("mine", "SIGINT")
    assert len(said) == 1 and "once more" in said[0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@process
def test_a_second_signal_leaves_at_once_and_is_stopped(run, trainer):
    command = trainer("""
        emit = own()
        until_asked()
        (run.path / "one").touch()
        time.sleep(30)
    """)
    write_json(run.last_facts, {"step": 30, "planned": 100})
    interrupt_when(run.owner.exists, signal.SIGTERM)
    interrupt_when((run.path / "one").exists, signal.SIGTERM)
    began = time.monotonic()
    outcome = supervised(run, command)
    assert time.monotonic() - began < 15
    assert (outcome.kind, outcome.to_step, outcome.exit_code) == ("stopped", 30, 75)
    written = read_json(run.result)
    assert (written["session"], written["outcome"], written["to_step"]) == ("mine", "stopped", 30)


@process
def test_a_third_signal_ends_a_child_that_hears_nothing(run, trainer):
    command = trainer("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (run.path / "deaf").touch()
        time.sleep(30)
    """)
    run.path.mkdir(parents=True)
    said = []
    interrupt_when((run.path / "deaf").exists)
    interrupt_when(lambda: len(said) == 1)
    interrupt_when(lambda: len(said) == 2)
    began = time.monotonic()
    assert supervised(run, command, said=said).kind == "stopped"
    assert time.monotonic() - began < 15


@process
def test_a_child_that_dies_while_it_imports_is_stopped_if_asked_and_crashed_if_not(run, trainer):
    killed = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)"
    outcome = supervised(run, trainer(killed), session="a")
    assert outcome.kind == "crashed" and "SIGTERM" in outcome.reason
    asked = trainer("""
        write_json(run.control, dict(request="r", session=session, action="discard", by="x", at=1.0))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    """)
    assert supervised(run, asked, session="b").kind == "discarded"


WEDGED = """
import subprocess
emit = own()
signal.signal(signal.SIGTERM, lambda *_: None)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(run.path / "helper").write_text(str(helper.pid))
"""


@process
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("emit(Finished(step=5, planned=5))", "crashed"),
        ("(run.path / 'asks').touch()", "stopped"),
    ],
    ids=["it said that it ended", "it was asked to save"],
)
def test_a_child_that_is_stuck_is_ended_with_its_group(run, trainer, body, kind, monkeypatch):
    for name in ("ENDED", "SAVE", "DISCARD", "TERMINATED"):
        monkeypatch.setenv(f"LAYL_WATCHDOG_{name}", "0.5")
    command = trainer(textwrap.dedent(WEDGED) + body + "\nwhile True: time.sleep(1)")

    def asks():
        while not (run.path / "asks").exists() and supervising.is_set():
            time.sleep(0.01)
        if supervising.is_set():
            ask_to_stop(run, StopRequest(request="r", session="mine", action="save", by="test", at=0.0))

    supervising, said = threading.Event(), []
    supervising.set()
    thread = threading.Thread(target=asks)
    thread.start()
    outcome = supervised(run, command, said=said)
    supervising.clear()
    thread.join()
    assert outcome.kind == kind
    assert [line.split(":")[0] for line in said] == ["the trainer does not end by itself", "the trainer hears nothing"]
    helper = int((run.path / "helper").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{helper}").exists() and time.monotonic() < deadline:
        if (Path(f"/proc/{helper}/stat").read_text().rpartition(")")[2].split()[0]) == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{helper}").exists()
    assert read_json(run.result)["session"] == "mine"


@process
def test_a_crash_leaves_a_result_with_its_last_words(run, trainer):
    run.path.mkdir(parents=True)
    run.output.write_text("words of last night\n")
    outcome = supervised(run, trainer('own(); print("loading"); raise ValueError("no such layer")'))
    assert outcome.kind == "crashed" and outcome.from_step == 5
    written = read_json(run.result)
    assert written["outcome"] == "crashed" and written["exit_code"] == 70
    assert "ValueError: no such layer" in written["reason"] and "loading" in written["reason"]
    assert "last night" not in written["reason"]
    assert run.output.read_text().startswith("words of last night\nloading\n")


@process
def test_a_busy_run_keeps_its_result_and_its_events_are_not_ours(run, trainer):
    write_json(run.owner, {"session": "theirs"})
    write_json(run.result, {"session": "theirs", "outcome": "paused"})
    command = trainer("""
        EventLog(run.events)(trained(50))
        time.sleep(0.2)
        print("run quran is in use by pid 4")
        sys.exit(69)
    """)
    heard = []
    outcome = supervised(run, command, [heard.append])
    assert (outcome.kind, outcome.reason, heard) == ("busy", "run quran is in use by pid 4", [])
    assert read_json(run.result)["session"] == "theirs"


@process
def test_a_result_is_not_written_over_a_session_that_took_the_run(run, trainer, monkeypatch):
    monkeypatch.setattr("tasks.supervise.LOCK_WAIT_SECONDS", 0.1)
    with hold(run):
        assert supervised(run, trainer("sys.exit(1)")).kind == "crashed"
    assert not run.result.exists()


@process
def test_a_run_that_is_archived_meanwhile_is_followed_anew(run, trainer):
    run.path.mkdir(parents=True)
    run.events.write_text("\n".join(["{}"] * 1000) + "\n")
    command = trainer("""
        time.sleep(0.1)
        run.archive.mkdir()
        os.rename(run.path, run.archive / "quran-1")
        run.path.mkdir()
        emit = own()
        emit(trained(6))
        print("anew")
        raise SystemExit(1)
    """)
    steps = []
    outcome = supervised(run, command, [lambda event: steps.append(event.step)])
    assert steps == [5, 6]
    assert outcome.reason.endswith("anew")


@process
def test_any_other_exception_tells_the_child_and_is_raised(run, trainer):
    command = trainer("""
        own()
        while sys.stdin.buffer.read(1):
            pass
        until_asked()
        write_json(run.path / "told.json", json.loads(run.control.read_text()))
        end("stopped", 6)
    """)

    class TerminationSignal(BaseException):
        pass

    def cancelled(event):
        raise TerminationSignal

    with pytest.raises(TerminationSignal):
        supervised(run, command, [cancelled])
    deadline = time.monotonic() + 10
    while not run.result.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert read_json(run.path / "told.json")["session"] == "mine"


@process
def test_a_killed_supervisor_leaves_a_child_in_a_session_of_its_own_whose_stdin_ends(run, trainer, tmp_path):
    trainer("""
        own()
        sys.stdin.buffer.read()
        end("stopped", 6, f"stdin ended in session {os.getsid(0) == os.getpid()}")
    """)
    script = tmp_path / "fake_trainer.py"
    program = (
        "import sys; from pathlib import Path; from core.run_dir import RunDir; from tasks.supervise import *\n"
        f"supervise(SessionRequest(run=RunDir(Path({str(tmp_path)!r}), 'quran'), session='mine'),"
        f" command=lambda w, m: [sys.executable, {str(script)!r}, {str(tmp_path)!r}, 'mine'])"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    deadline = time.monotonic() + 20
    while not run.owner.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    owner = read_json(run.owner)
    assert is_alive(Mark(owner["pid"], owner["start_time"]))
    supervisor.kill()
    supervisor.wait()
    while not run.result.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert read_json(run.result)["reason"] == "stdin ended in session True"
