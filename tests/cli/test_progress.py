from __future__ import annotations

import io
import time

import pytest

from cli.progress import TerminalProgress
from core.events import Evaluated, Rewarmed, SaveFailed, Skipped, Started, Trained
from core.status import Status
from core.telling import PlainProgress, progress_line, sentences
from core.words import duration


def started(**changes):
    values = dict(
        step=0, planned=12000, epoch=1, epochs=10, steps_per_epoch=1200, session="s", frontend="shell", device="cpu"
    )
    return Started(**{**values, **changes})


def trained(step, **changes):
    values = dict(
        step=step, planned=12000, epoch=2, loss=0.41234, lr=3.1e-4, grad_norm=1.0, units_seen=3600.0,
        elapsed_seconds=60.0, units_per_second=142.0, gpu_peak_bytes=None, skipped=0, eta_seconds=4800.0,
    )  # fmt: skip
    return Trained(**{**values, **changes})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59.4, "59 s"), (60, "1 m"), (3599, "59 m"), (3600, "1 h 00 m"), (11520, "3 h 12 m")],
)
def test_durations_read_like_speech(seconds, text):
    assert duration(seconds) == text


def test_the_line_says_step_loss_speed_time_and_the_pause():
    now = time.time()
    line = progress_line(
        Status(
            phase="training", step=1240, planned=12000, epoch=2, epochs=10, loss=0.41234, lr=3.1e-4,
            units_per_second=142.0, eta_seconds=4800.0, best_score=0.0321, stop_at=now + 11520,
        ),
        now,
    )  # fmt: skip
    for part in ("step 1,240/12,000", "epoch 2/10", "loss 0.4123", "lr 3.1e-04", "142 h/h", "1 h 20 m to go"):
        assert part in line
    assert "best 3.21 %" in line and line.endswith("in 3 h 12 m")
    assert "training" not in line


def test_other_phases_are_named_and_unknown_values_left_out():
    assert progress_line(Status(phase="validating"), 0.0) == "validating"


def test_plain_lines_come_at_most_every_few_seconds():
    now = 0.0
    lines: list[str] = []
    progress = PlainProgress(lines.append, lambda: now, every_seconds=10)
    progress(started())
    for second in range(0, 25):
        now = float(second)
        progress(trained(second + 1))
    assert [line.split()[1] for line in lines if line.startswith("step")] == ["1/12,000", "11/12,000", "21/12,000"]
    assert progress.status.step == 25


def test_what_matters_is_said_whenever_it_happens():
    now = 0.0
    lines: list[str] = []
    progress = PlainProgress(lines.append, lambda: now)
    progress(started(notes=["1,204 clips (2.0 h)", "resumed at step 40"]))
    progress(Evaluated(
        step=50, epoch=1, main=0.0321, scores={}, is_best=True, elapsed_seconds=1, units_seen=1, valid_id="v"
    ))  # fmt: skip
    assert lines[:2] == ["1,204 clips (2.0 h)", "resumed at step 40"]
    assert lines[2:] == ["step 50: error rate 3.21 % on the validation clips, the best so far"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "clips, the"),
        ({"synthetic": True}, "clips (synthetic speech), the"),
        ({"seen_in_training": ["reader ann"]}, "clips (seen in training), the"),
        ({"synthetic": True, "seen_in_training": ["a"]}, "clips (synthetic speech, seen in training), the"),
    ],
)
def test_a_score_is_never_told_without_its_caveat(facts, words):
    event = Evaluated(
        step=50, epoch=1, main=0.0321, scores={}, is_best=True, elapsed_seconds=1, units_seen=1, valid_id="v"
    )
    (line,) = sentences(event, facts)
    assert words in line


@pytest.mark.parametrize(
    "event",
    [
        Rewarmed(step=5, reason="data changed"),
        Skipped(step=5, reason="data changed", batch="3 clips"),
        SaveFailed(step=5, error="data changed"),
    ],
)
def test_trouble_is_told_with_step_and_reason(event):
    (line,) = sentences(event)
    assert line.startswith("step 5: ") and line.endswith("data changed")


def test_the_terminal_line_survives_brackets_and_an_unknown_plan(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    with TerminalProgress() as progress:
        progress.say("see [/x] and [red]")
        progress(started(planned=0))
        progress(trained(5))
    assert "see [/x] and [red]" in out.getvalue()
    assert progress.status.step == 5


def test_a_score_on_synthetic_speech_says_so():
    said = []
    progress = PlainProgress(write=said.append)
    started = Started(
        step=0, planned=9, epoch=1, epochs=1, steps_per_epoch=9, session="s", frontend="shell", device="cpu",
        facts={"synthetic": True},
    )  # fmt: skip
    scores = Evaluated(
        step=5, epoch=1, main=0.25, scores={}, is_best=True, elapsed_seconds=1, units_seen=1, valid_id="v"
    )
    progress(started)
    progress(scores)
    assert said[-1] == "step 5: error rate 25.00 % on the validation clips (synthetic speech), the best so far"
