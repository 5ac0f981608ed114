"""Whole sessions of the speech recipe: what they leave, what ends them, what broke and what was on the disk."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import train.loop
from core import checkpoint
from core.control import StopRequest, ask_to_stop
from core.errors import BusyError
from core.events import Crashed, SaveFailed, Skipped, Trained
from core.lock import hold
from core.manifest import Row
from core.outcome import Outcome
from core.run_dir import RunDir, read_json, write_json
from tests.train.conftest import (
    assert_equal,
    events_of,
    lines,
    publish_rows,
    sit,
    snapshot,
    started,
    state_of,
    tiny_config,
)
from tests.train.test_loop import FullDisk
from train.finished import already_finished
from train.session import Session
from train.step import Stepper
from train.views import read_log

STEPS = 12


@pytest.fixture
def run(tmp_path: Path, train_rows: list[Row], valid_rows: list[Row]) -> RunDir:
    run = RunDir(tmp_path, "tiny")
    publish_rows(run, train_rows, valid_rows)
    return run


def test_a_run_leaves_what_people_and_tools_read(run: RunDir) -> None:
    assert sit(run) == Outcome("finished", 0, STEPS, resumable=False)
    assert sorted(path.name for path in run.path.iterdir()) == [
        "best.pt", "config.yaml", "events.jsonl", "heard", "last.json", "last.prev.pt", "last.pt", "log.csv",
        "result.json", "rows.json", "samples.json", "status.json", "step_0000008.pt", "step_0000010.pt",
        "step_0000012.pt", "tokens.txt",
    ]  # fmt: skip
    result = read_json(run.result)
    assert result.pop("ended_at") > 0
    assert result == {
        "session": "s", "outcome": "finished", "from_step": 0, "to_step": STEPS, "reason": "", "resumable": False,
        "exit_code": 0,
    }  # fmt: skip
    assert run.tokens.read_text(encoding="utf-8") == (run.manifests / "tokens.txt").read_text(encoding="utf-8")
    assert read_json(run.train_metrics)["step"] == STEPS
    assert read_json(run.status)["phase"] == "finished"
    assert already_finished(run, tiny_config()) is not None
    begun = started(run)
    assert begun.notes[0] == "new run: 12 steps, 5 an epoch"
    assert begun.notes[1].startswith("20 clips (0.00 h) to train on, 4 (0.00 h) to validate")


def test_a_finished_run_takes_no_more_steps(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    sit(run)
    before = state_of(run)
    monkeypatch.setattr(Stepper, "update", lambda *_: pytest.fail("a step"))
    assert sit(run) == Outcome("finished", STEPS, STEPS, resumable=False)
    assert_equal(before, state_of(run))
    assert {row["epoch"] for row in read_log(run)} == {"1", "2", "3"}


def test_epochs_count_to_the_last_one_also_when_its_last_batch_is_done(run: RunDir) -> None:
    config = tiny_config(train={"steps": 10})
    sit(run, config)
    place = checkpoint.read(run.last)["place"]
    assert (place["epoch"], place["batch"]) == (3, 0)
    sit(run, config)
    assert started(run).epoch == read_json(run.status)["epoch"] == 2


def test_the_start_line_says_from_where(run: RunDir) -> None:
    sit(run, until_step=7)
    sit(run, until_step=9)
    assert started(run).notes[0] == "resumed at step 7 of 12 (epoch 2/10, batch 2)"


def test_a_stop_file_of_before_is_removed_said_and_not_obeyed(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.path.mkdir(parents=True)
    run.stop_file.touch()
    assert sit(run, until_step=2).kind == "paused"
    assert f"removed a stop file of before this session: {run.stop_file}" in capsys.readouterr().err


def after_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> None:
    """Do something right after the update that makes ``step``."""
    real = Stepper.update

    def watched(self: Stepper, *others: Any) -> bool:
        done = real(self, *others)
        if self._state.progress.step + done == step:
            act()
        return done

    monkeypatch.setattr(Stepper, "update", watched)


def test_a_stop_file_ends_the_session_and_is_removed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    after_step(monkeypatch, 3, run.stop_file.touch)
    assert sit(run) == Outcome("stopped", 0, 3, "asked to stop")
    assert not run.stop_file.exists()
    assert not run.owner.exists()


def test_a_signal_waits_for_the_step_and_the_run_goes_on_as_if_never_cut(
    run: RunDir, whole_speech: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(run, "s")
    with monkeypatch.context() as patch:
        after_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with session.signals():
            assert sit(run, session=session) == Outcome("stopped", 0, 3, "got SIGTERM")
    assert checkpoint.read(run.last)["progress"]["step"] == 3
    sit(run)
    assert_equal(state_of(whole_speech), state_of(run))


def test_a_request_for_another_session_is_not_obeyed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> None:
        ask_to_stop(run, StopRequest(request="q", session="another", action="discard", by="t", at=9e9))

    after_step(monkeypatch, 2, ask)
    assert sit(run, until_step=3).kind == "paused"


def test_a_newcomer_waits_for_a_session_that_was_asked_to_stop(run: RunDir) -> None:
    write_json(run.owner, {"session": "old"})
    ask_to_stop(run, StopRequest(request="r", session="old", action="save", by="test", at=0.0))
    held = threading.Event()

    def ending() -> None:
        with hold(run):
            held.set()
            time.sleep(0.3)

    session = threading.Thread(target=ending)
    session.start()
    held.wait()
    assert sit(run, until_step=1).kind == "paused"
    session.join()


def test_a_run_that_another_session_holds_is_busy(run: RunDir) -> None:
    sit(run, until_step=2)
    before = snapshot(run)
    with hold(run), pytest.raises(BusyError, match="run tiny is in use") as caught:
        sit(run)
    assert caught.value.exit_code == 69
    assert snapshot(run) == before


def test_without_manifests_there_is_nothing_to_train_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path, "tiny")
    outcome = sit(run)
    assert (outcome.kind, outcome.exit_code) == ("invalid", 65)
    assert f"{run.manifests} does not exist; run `layl prepare tiny` first" in capsys.readouterr().err
    assert read_json(run.result)["outcome"] == "invalid"


@pytest.mark.parametrize("empty", ["train", "valid"])
def test_a_manifest_without_rows_is_refused(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row], empty: str
) -> None:
    publish_rows(run, [] if empty == "train" else train_rows, [] if empty == "valid" else valid_rows)
    outcome = sit(run)
    assert (outcome.kind, outcome.exit_code) == ("invalid", 65)
    assert f"{empty}.jsonl holds no clip to use" in outcome.reason


@pytest.mark.parametrize(
    ("device", "kind", "code"), [("tpu9", "invalid", 65), ("cuda:77", "invalid", 65)]
)  # fmt: skip
def test_a_device_that_is_not_here_is_refused(run: RunDir, device: str, kind: str, code: int) -> None:
    outcome = sit(run, tiny_config(train={"device": device}))
    assert (outcome.kind, outcome.exit_code) == (kind, code)


def test_a_device_that_is_taken_makes_the_session_busy(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr("train.device.torch.zeros", taken)
    outcome = sit(run, tiny_config(train={"device": "cpu"}))
    assert (outcome.kind, outcome.exit_code) == ("busy", 69)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(bytes(data))


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_of_before(run: RunDir, whole_speech: RunDir) -> None:
    sit(run, until_step=5)
    damage(run.last)
    spoiled = run.last.read_bytes()
    # a stop at once must not put the damaged file in the place of the good one
    sit(run, until_step=1)
    assert run.last_previous.read_bytes() != spoiled
    note = started(run).notes[0]
    assert str(run.last) in note
    assert note.endswith("; going on from last.prev.pt")
    assert sit(run).kind == "finished"
    assert_equal(state_of(whole_speech), state_of(run))
    assert lines(whole_speech) == lines(run)


def test_two_damaged_checkpoints_end_the_session_with_what_to_do(run: RunDir) -> None:
    sit(run, until_step=5)
    damage(run.last)
    damage(run.last_previous)
    before = snapshot(run)
    outcome = sit(run)
    assert (outcome.kind, outcome.exit_code) == ("crashed", 70)
    assert "no checkpoint of tiny can be read" in outcome.reason
    assert "layl reset tiny --yes" in outcome.reason
    said_so = {"events.jsonl", "status.json"}
    assert {k: v for k, v in snapshot(run).items() if k not in said_so} == {
        k: v for k, v in before.items() if k not in said_so
    }
    assert isinstance(events_of(run)[-1], Crashed)


def test_a_checkpoint_of_a_newer_layl_is_refused_and_not_touched(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    sit(run, until_step=3)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        value = torch.load(run.last, weights_only=True)
        checkpoint.write(run.last, {k: v for k, v in value.items() if k != "format"})
    before = snapshot(run)
    outcome = sit(run)
    assert (outcome.kind, outcome.exit_code) == ("invalid", 65)
    assert snapshot(run) == before


def test_what_was_written_beyond_the_step_of_the_resume_is_retracted(run: RunDir, whole_speech: RunDir) -> None:
    sit(run, until_step=6)
    kept = run.last.read_bytes(), run.last_previous.read_bytes()
    sit(run, until_step=9)
    # as after a power cut: all views went on, the checkpoint did not
    run.last.write_bytes(kept[0])
    run.last_previous.write_bytes(kept[1])
    sit(run, until_step=7)
    assert [row["step"] for row in read_log(run)] == ["2", "4", "4", "6"]
    assert [path.name for path in run.step_files()] == ["step_0000004.pt", "step_0000005.pt"]
    assert sorted(path.name for path in run.heard.glob("step_*")) == ["step_0000004.json"]
    assert [e["step"] for e in read_json(run.samples)["evals"]] == [4]
    assert read_json(run.status)["step"] == 7
    sit(run)
    assert_equal(state_of(whole_speech), state_of(run))


def test_a_best_from_beyond_the_resumed_step_is_not_used(run: RunDir, whole_speech: RunDir) -> None:
    sit(run, until_step=4)
    kept = run.last.read_bytes()
    sit(run, until_step=8)
    value = {k: v for k, v in checkpoint.read(run.best).items() if k != "format"}
    checkpoint.write(run.best, {**value, "step": 8})
    run.last.write_bytes(kept)
    sit(run, until_step=5)
    # the validation that it was taken from at step 4 is made again
    assert checkpoint.read(run.best)["step"] == checkpoint.read(run.last)["progress"]["best_step"] == 4
    assert any("the best score begins anew" in note for note in started(run).notes)
    sit(run)
    one, other = checkpoint.read(whole_speech.last)["model"], checkpoint.read(run.last)["model"]
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_full_disk_costs_no_step(run: RunDir, whole_speech: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(run, monkeypatch)
    after_step(monkeypatch, 3, lambda: setattr(disk, "full", True))
    after_step(monkeypatch, 10, lambda: setattr(disk, "full", False))
    assert sit(run).kind == "finished"
    assert disk.refused > 10
    failed = {event.step for event in events_of(run) if isinstance(event, SaveFailed)}
    # the save of step 2 may be in flight when the disk fills up
    assert failed - {2} == set(range(3, 10))
    one, other = checkpoint.read(whole_speech.last)["model"], checkpoint.read(run.last)["model"]
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert lines(whole_speech) == lines(run)


def test_a_stop_on_a_full_disk_says_what_was_kept(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(run, monkeypatch)
    sit(run, until_step=3)
    after_step(monkeypatch, 4, lambda: setattr(disk, "full", True))
    real = train.loop.Fit._pause

    def space_again(*args: Any) -> Any:
        try:
            return real(*args)
        finally:
            disk.full = False

    monkeypatch.setattr(train.loop.Fit, "_pause", space_again)
    outcome = sit(run, until_step=4)
    assert (outcome.kind, outcome.exit_code, outcome.from_step, outcome.to_step) == ("crashed", 70, 3, 3)
    assert "could not save at step 4; the checkpoint of before stays" in outcome.reason


def test_a_crash_writes_no_checkpoint_and_the_next_session_goes_on(
    run: RunDir, whole_speech: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall() -> None:
        raise ZeroDivisionError("oh no")

    with monkeypatch.context() as patch:
        after_step(patch, 6, fall)
        outcome = sit(run)
    assert outcome == Outcome("crashed", 0, 5, "ZeroDivisionError: oh no")
    assert read_json(run.result)["resumable"] is True
    assert read_json(run.status)["phase"] == "crashed"
    assert sit(run).kind == "finished"
    assert_equal(state_of(whole_speech), state_of(run))


def test_clips_whose_gradient_breaks_are_skipped_and_counted(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from train.recipes.speech import SpeechRecipe

    real = SpeechRecipe.loss
    calls = iter(range(100))

    def broken(self: SpeechRecipe, model: Any, batch: Any) -> Any:
        loss = real(self, model, batch)
        return replace(loss, sum=loss.sum * float("nan")) if next(calls) in (2, 3) else loss

    monkeypatch.setattr(SpeechRecipe, "loss", broken)
    assert sit(run).kind == "finished"
    assert next(event.batch for event in events_of(run) if isinstance(event, Skipped)).endswith(" s")
    assert read_json(run.status)["skipped_batches"] == 2
    # a log line is never longer than the plan
    assert max(event.epoch for event in events_of(run) if isinstance(event, Trained)) == 3


def test_errno_of_a_full_disk_is_what_is_faked(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(run, monkeypatch)
    disk.full = True
    with pytest.raises(OSError, match="No space left") as caught:
        (run.path / "x").open("w")
    assert caught.value.errno == errno.ENOSPC


def test_while_a_session_runs_no_result_of_an_earlier_one_speaks_for_it(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    sit(run, until_step=2)
    assert run.result.exists()
    seen: list[bool] = []
    after_step(monkeypatch, 3, lambda: seen.append(run.result.exists()))
    sit(run, until_step=4)
    assert seen == [False]
