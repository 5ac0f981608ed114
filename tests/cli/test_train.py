from __future__ import annotations

import sys
import types
from datetime import datetime, timedelta

import pytest

import tasks.supervise
from cli.main import app
from cli.train import Frontend, ancestor_to_watch, closing, first_limit
from core.events import Started
from core.outcome import Outcome
from core.process import Mark
from core.run_dir import RunDir, write_json


@pytest.fixture
def sessions(project, monkeypatch):
    """What would have been supervised; each session pauses at step 40 of 100."""
    asked = []

    def supervise(wanted, listeners, *, say):
        asked.append(wanted)
        started = Started(
            step=10, planned=100, epoch=1, epochs=2, steps_per_epoch=50, session=wanted.session, frontend="shell",
            device="cpu", notes=["resumed at step 10"],
        )  # fmt: skip
        for listener in listeners:
            listener(started)
        return Outcome("paused", 10, 40, "it is 06:30")

    monkeypatch.setattr(tasks.supervise, "supervise", supervise)
    finished = types.ModuleType("train.finished")
    finished.already_finished = lambda run, config: None
    monkeypatch.setitem(sys.modules, "train.finished", finished)
    return asked


def test_a_paused_session_says_how_to_go_on_and_ends_with_75(sessions, cli):
    result = cli.invoke(app, ["train", "quran"])
    assert result.exit_code == 75
    assert "resumed at step 10" in result.stdout
    assert "saved at step 40 of 100 (it is 06:30); `layl train quran` (or `dvc repro`) goes on" in result.stdout


def test_a_finished_run_starts_no_session(sessions, cli, monkeypatch):
    monkeypatch.setattr(sys.modules["train.finished"], "already_finished", lambda run, config: "it has all its steps")
    result = cli.invoke(app, ["train", "quran"])
    assert (result.exit_code, result.output, sessions) == (0, "it has all its steps\n", [])


def test_flags_become_the_request(sessions, cli):
    arguments = ["train", "quran", "--until-step", "30", "--set", "train.epochs=3", "--set", "train.lr=1e-4"]
    cli.invoke(app, [*arguments, "--on-change", "archive"])
    (wanted,) = sessions
    assert (wanted.run.name, wanted.until_step, wanted.on_change) == ("quran", 30, "archive")
    assert wanted.overrides == ("train.epochs=3", "train.lr=1e-4")
    assert (wanted.frontend, wanted.watch, wanted.stop_at) == ("shell", None, None)


def test_limits_come_from_the_environment_without_flags(sessions, cli, monkeypatch):
    monkeypatch.setenv("LAYL_UNTIL_STEP", "77")
    monkeypatch.setenv("LAYL_STOP_AFTER", "30m")
    monkeypatch.setenv("LAYL_ON_CHANGE", "archive")
    cli.invoke(app, ["train", "quran"])
    cli.invoke(app, ["train", "quran", "--until-step", "5"])
    assert [wanted.until_step for wanted in sessions] == [77, 5]
    assert sessions[0].stop_at == pytest.approx(datetime.now().timestamp() + 1800, abs=20)
    assert sessions[0].on_change == "archive"


def test_the_first_limit_counts():
    start = datetime.now().astimezone()
    at = (start + timedelta(hours=3)).strftime("%H:%M:%S")
    assert first_limit(at, "1h", start) == pytest.approx(start.timestamp() + 3600, abs=2)
    assert first_limit(at, "5h", start) == pytest.approx(start.timestamp() + 3 * 3600, abs=3700)
    assert first_limit(None, None, start) is None


def test_a_bad_time_of_day_is_exit_65_and_starts_nothing(sessions, cli):
    assert cli.invoke(app, ["train", "quran", "--stop-at", "1410"]).exit_code == 65
    assert sessions == []


def test_a_broken_configuration_is_exit_65_and_starts_nothing(sessions, project, cli):
    (project / "configs" / "quran.yaml").write_text("data:\n  sorces: []\n")
    result = cli.invoke(app, ["train", "quran"])
    assert result.exit_code == 65 and "did you mean data.sources?" in result.stderr
    assert sessions == []


def test_under_dvc_the_session_watches_an_ancestor(sessions, cli):
    cli.invoke(app, ["train", "quran", "--frontend", Frontend.dvc.value])
    (wanted,) = sessions
    assert wanted.frontend == "dvc" and wanted.watch is not None


def test_the_nearest_ancestor_that_is_no_shell_is_watched():
    chain = [("sh", Mark(3, 1.0)), ("bash", Mark(2, 1.0)), ("dvc", Mark(1, 1.0)), ("python", Mark(0, 1.0))]
    assert ancestor_to_watch(chain) == Mark(1, 1.0)
    assert ancestor_to_watch([("PowerShell.EXE", Mark(3, 1.0)), ("-zsh", Mark(4, 1.0))]) is None


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("finished", 0, 100), ["finished at step 100 of 100", "layl export quran"]),
        (Outcome("stopped", 0, 0, "left at once"), ["nothing is saved yet", "begins again"]),
        (Outcome("discarded", 30, 20), ["without saving", "step 20 of 100", "goes on"]),
        (Outcome("busy", 0, 0, "run quran is in use by pid 4"), ["pid 4"]),
        (Outcome("crashed", 0, 7, "exit code 1\nValueError: no"), ["ValueError: no", "step 7 of 100", "output.log"]),
    ],
)
def test_every_ending_says_what_to_do(outcome, words):
    said = closing(outcome, "quran", 100)
    assert all(word in said for word in words), said


def test_the_plan_comes_from_the_checkpoint_when_no_event_told_it(sessions, project, cli, monkeypatch):
    monkeypatch.setattr(tasks.supervise, "supervise", lambda wanted, listeners, *, say: Outcome("stopped", 9, 9))
    write_json(RunDir(project, "quran").last_facts, {"step": 9, "planned": 250})
    assert "step 9 of 250" in cli.invoke(app, ["train", "quran"]).output
