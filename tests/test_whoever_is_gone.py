"""Real trainers whose supervisor, DVC, thread or patience is gone: they save and end, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.events import Saved, read_events
from core.process import Mark, is_alive, mark_of
from core.run_dir import RunDir, read_json
from tasks.supervise import SessionRequest, _start, trainer_command, trainer_environment
from tests.test_dvc_real import CONFIG, Project
from tests.torture import project
from train.start import SAVE_GRACE_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")]

STEPS = 1_000_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDir]:
    """A run that nobody's patience would see the end of; its trainer is ended whatever came of the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = project(tmp_path, "tiny", STEPS)
    yield made
    end_trainer(made)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes, and ends those that are left."""
    left: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **others: Any) -> subprocess.Popen[bytes]:
        left.append(subprocess.Popen(command, **others))
        return left[-1]

    yield start
    for process in left:
        process.kill()
        process.wait()


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What ``what`` gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
    return found


def layl(run: RunDir, *arguments: str) -> dict[str, Any]:
    command = (sys.executable, "-P", "-m", "cli", *arguments)
    return {"args": command, "cwd": run.root, "env": trainer_environment(os.environ)}


def step_of(run: RunDir) -> int:
    return int((read_json(run.status) or {}).get("step") or 0)


def trainer_of(run: RunDir) -> Mark:
    owner = read_json(run.owner)
    return Mark(owner["pid"], owner["start_time"])


def end_trainer(run: RunDir) -> None:
    """Kill the trainer that a broken promise left behind, with its group."""
    owner = read_json(run.owner)
    if isinstance(owner, dict) and is_alive(mark := Mark(owner["pid"], owner["start_time"])):
        os.killpg(mark.pid, signal.SIGKILL)


def saved_and_gone(run: RunDir, trainer: Mark) -> dict[str, Any]:
    """The result of a session whose trainer ended by itself, with its last step saved."""
    until(lambda: not is_alive(trainer), SAVE_GRACE_SECONDS)
    result = until(lambda: read_json(run.result))
    assert read_json(run.last_facts)["step"] == result["to_step"] > 0
    assert not run.owner.exists()
    return result


def test_a_trainer_whose_supervisor_is_killed_saves_and_ends(run: RunDir, started: Any) -> None:
    asked = layl(run, "train", "tiny")
    supervisor = started(*asked.pop("args"), **asked)
    until(lambda: step_of(run) > 5)
    trainer = trainer_of(run)
    supervisor.kill()
    supervisor.wait()
    result = saved_and_gone(run, trainer)
    assert (result["outcome"], result["reason"]) == ("stopped", "whoever started this session is gone")


def test_sigterm_to_the_command_is_saved_within_five_seconds(run: RunDir, started: Any) -> None:
    asked = layl(run, "train", "tiny")
    supervisor = started(*asked.pop("args"), **asked)
    until(lambda: step_of(run) > 5)
    trainer = trainer_of(run)
    supervisor.terminate()
    assert supervisor.wait(60) == 75
    # the end of both processes is up to the machine; benchmarks/sessions.py times it
    asked = read_json(run.control)["at"]
    saved = [at for event, at in read_events(run.events)[0] if isinstance(event, Saved)][-1]
    assert 0 <= saved - asked < 5
    assert saved_and_gone(run, trainer)["outcome"] == "stopped"


def test_ctrl_c_right_after_the_start_is_a_stop_and_no_crash(run: RunDir, started: Any) -> None:
    asked = layl(run, "train", "tiny")
    supervisor = started(*asked.pop("args"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **asked)
    # its output file is made right before the child is
    until(run.output.exists)
    time.sleep(0.3)
    assert step_of(run) == 0
    supervisor.send_signal(signal.SIGINT)
    said = supervisor.communicate(timeout=30)[0].decode()
    assert supervisor.returncode == 75, said
    result = read_json(run.result)
    assert (result["outcome"], result["to_step"]) == ("stopped", step_of(run)), said
    assert not (read_json(run.status) or {}).get("error")


def test_a_trainer_outlives_the_thread_that_started_it(run: RunDir) -> None:
    wanted = SessionRequest(run=run, session="s", until_step=30)
    children: list[subprocess.Popen[bytes]] = []
    run.path.mkdir(parents=True)
    with run.output.open("ab") as output:
        start = threading.Thread(
            target=lambda: children.append(_start(trainer_command(wanted, mark_of()), run.root, output))
        )
        start.start()
        start.join()
        with children[0] as child:
            assert child.wait(60) == 75, run.output.read_text()
    assert read_json(run.result)["to_step"] == 30


def test_without_a_supervisor_an_input_that_has_ended_is_no_stop(run: RunDir) -> None:
    command = [sys.executable, "-P", "-m", "train", "tiny", "--root", str(run.root), "--session", "s"]
    done = subprocess.run(
        [*command, "--until-step", "20"], stdin=subprocess.DEVNULL, cwd=run.root, timeout=60, capture_output=True,
        env=trainer_environment(os.environ), check=False,
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert read_json(run.result)["to_step"] == 20


def test_a_second_session_is_told_who_trains(run: RunDir, started: Any) -> None:
    asked = layl(run, "train", "tiny")
    supervisor = started(*asked.pop("args"), **asked)
    until(lambda: step_of(run) > 5)
    pid = trainer_of(run).pid
    for frontend in ((), ("--frontend", "dvc")):
        second = layl(run, "train", "tiny", *frontend)
        done = subprocess.run(second.pop("args"), capture_output=True, text=True, timeout=60, check=False, **second)
        assert done.returncode == 69 and str(pid) in done.stdout + done.stderr
    assert is_alive(trainer_of(run)) and trainer_of(run).pid == pid
    supervisor.terminate()
    assert supervisor.wait(30) == 75


def test_a_trainer_under_dvc_saves_and_ends_when_dvc_is_terminated(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(CONFIG, "train", {**CONFIG["train"], "epochs": STEPS, "log_every_steps": 1})
    made = Project(tmp_path / "p")
    run = RunDir(made.folder, "quran")
    request.addfinalizer(lambda: end_trainer(run))
    assert made.dvc("repro", "prepare").returncode == 0
    path = f"{made.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}
    dvc = started(sys.executable, "-m", "dvc", "repro", cwd=made.folder, env=environment, stdout=subprocess.DEVNULL)
    until(lambda: step_of(run) > 5)
    trainer = trainer_of(run)
    dvc.send_signal(signal.SIGTERM)
    assert dvc.wait(30) != 0
    assert saved_and_gone(run, trainer)["outcome"] == "stopped"
    # and DVC has nothing in its way
    again = made.dvc("repro", LAYL_UNTIL_STEP="1")
    assert "saved at step" in again.stdout + again.stderr and "`dvc repro`) goes on" in again.stdout + again.stderr
