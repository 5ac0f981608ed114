from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import app
from cli.status import describe, merge, summary
from core.process import owner_facts
from core.run_dir import RunDir, write_json

NOTHING = dict(status=None, result=None, owner=None, active=False, last=None, meta=None)
RUNNING = {"active": True, "owner": {"session": "s"}}
META = {"schema": 1, "data_id": {"train": "abcdef0123456789"}, "clips": {"train": 1204}, "hours": {"train": 2.5}}
CHECKOUT = Path(__file__).resolve().parents[2]


def merged(**files):
    return merge("quran", **{**NOTHING, **files})


@pytest.mark.parametrize(
    ("files", "phase", "finished"),
    [
        ({}, None, False),
        ({"status": {"phase": "training"}}, "crashed", False),
        ({"status": {"phase": "saving"}}, "crashed", False),
        ({"status": {"phase": "paused"}}, "paused", False),
        ({"status": {"phase": "finished"}}, "finished", True),
        ({"status": {"phase": "training"}, "result": {"outcome": "stopped"}}, "stopped", False),
        ({"status": {"phase": "training"}, "result": {"outcome": "discarded"}}, "stopped", False),
        ({"status": {"phase": "finished"}, "result": {"outcome": "invalid"}}, "finished", True),
        (RUNNING, "starting", False),
        (
            {**RUNNING, "status": {"session": "s", "phase": "training"}},
            "training",
            False,
        ),
        ({**RUNNING, "status": {"session": "r", "phase": "paused"}}, "starting", False),
        (
            {
                "active": True,
                "owner": {"session": "s"},
                "asked": "save",
                "status": {"session": "s", "phase": "training"},
            },
            "stopping",
            False,
        ),
        (
            {**RUNNING, "asked": "save", "status": {"session": "s", "phase": "saving"}},
            "saving",
            False,
        ),
        (
            {**RUNNING, "status": {"session": "s", "phase": "finished"}},
            "finished",
            True,
        ),
    ],
)
def test_the_phase_follows_from_the_files_and_the_process(files, phase, finished):
    facts = merged(**files)
    assert (facts["phase"], facts["finished"]) == (phase, finished)
    assert facts["active"] is files.get("active", False)


def test_a_dead_owner_is_not_shown_and_asks_for_nothing():
    facts = merged(owner={"session": "s"}, asked="save")
    assert facts["owner"] is None and facts["stop_requested"] is None


def test_a_session_that_just_began_has_no_speed_of_its_own():
    facts = merged(
        active=True,
        owner={"session": "new"},
        status={"session": "old", "phase": "paused", "audio_h_per_h": 100, "eta_h": 2, "stop_at": 5, "step": 7},
    )
    assert (facts["audio_h_per_h"], facts["eta_h"], facts["stop_at"], facts["step"]) == (None, None, None, 7)


def test_files_that_hold_something_else_are_as_good_as_missing(project, cli):
    run = RunDir(project, "quran")
    for path in (run.status, run.result, run.owner, run.last_facts, run.control):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[1, 2")
    write_json(run.owner, [1])
    result = cli.invoke(app, ["status", "quran"])
    assert (result.exit_code, result.output) == (0, "quran: not trained yet\n")


def test_every_known_run_has_a_line(project, cli):
    write_json(RunDir(project, "quran").status, {"phase": "paused", "step": 1240, "total_steps": 12000, "loss": 0.4})
    lines = cli.invoke(app, ["status"]).output.splitlines()
    assert lines == ["digits  not prepared yet", "quran   paused  step 1,240/12,000  loss 0.4000"]


def test_json_holds_all_files_merged(project, cli):
    run = RunDir(project, "quran")
    write_json(run.status, {"phase": "training", "session": "s", "step": 5, "best_score": 0.1})
    write_json(run.owner, owner_facts("dvc", "s"))
    write_json(run.control, {"request": "r", "session": "s", "action": "discard", "by": "layl stop", "at": 1})
    write_json(run.last_facts, {"step": 4, "planned": 9})
    write_json(run.manifests / "manifest.meta.json", {**META, "files": {"train.jsonl": "f00"}})
    facts = json.loads(cli.invoke(app, ["status", "quran", "--json"]).output)
    assert (facts["name"], facts["phase"], facts["active"], facts["step"]) == ("quran", "stopping", True, 5)
    assert (facts["owner"]["pid"], facts["stop_requested"], facts["saved_step"]) == (os.getpid(), "discard", 4)
    assert facts["data"] == META and facts["data_id"] == "abcdef0123456789"
    assert [f["name"] for f in json.loads(cli.invoke(app, ["status", "--json"]).output)] == ["digits", "quran"]


def test_the_description_says_who_trains_until_when_and_how_it_ended():
    now = 1_000_000.0
    running = merged(
        active=True,
        owner={"session": "s", "pid": 7, "host": "night", "frontend": "dvc"},
        status={
            "session": "s", "phase": "training", "step": 500, "total_steps": 1000, "epoch": 1, "epochs": 2.0,
            "loss": 0.5, "lr": 1e-3, "audio_h_per_h": 142.0, "eta_h": 0.5, "best_score": 0.25, "best_step": 400,
            "stop_at": now + 600,
        },
    )  # fmt: skip
    said = describe(running, now)
    for part in ("500/1,000 (50%), epoch 1/2", "142 h of audio an hour, 30 m to go", "25.00 % at step 400", "pid 7"):
        assert part in said
    assert "in 10 m" in said and "last ended" not in said
    assert "1,204 clips, 2.50 h to train on; id abcdef012345" in describe(merged(meta=META), now)
    ended = describe(merged(result={"outcome": "crashed", "to_step": 40, "reason": "Traceback\nValueError: no"}), now)
    assert "crashed at step 40: ValueError: no" in ended


@pytest.mark.process
def test_status_imports_nothing_heavy(project):
    script = (
        "import sys; sys.argv = ['layl', 'status', 'quran']\n"
        "from cli.main import app\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = 'torch torchaudio prefect dvc sqlalchemy numpy ruamel rich matplotlib soundfile core.config'.split()\n"
        "print('imported:', sorted(set(heavy) & set(sys.modules)))\n"
    )
    write_json(RunDir(project, "quran").status, {"phase": "paused"})
    write_json(RunDir(project, "quran").owner, owner_facts("shell", "s"))
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] == "imported: []"


def test_a_best_score_on_synthetic_speech_says_so():
    facts = merged(status={"phase": "paused", "best_score": 0.25, "best_step": 9}, meta={**META, "synthetic": True})
    assert "25.00 % at step 9 (synthetic speech)" in describe(facts, 0.0)
    assert "best 25.00 % (synthetic speech)" in summary(facts)
    assert "synthetic" not in summary(merged(status={"phase": "paused", "best_score": 0.25, "best_step": 9}, meta=META))
