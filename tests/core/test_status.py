from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import (
    Crashed,
    Evaluated,
    Event,
    Finished,
    Paused,
    Phase,
    Rewarmed,
    Saved,
    SaveFailed,
    Skipped,
    Started,
    Trained,
)
from core.status import ACTIVE_PHASES, Status, fold, rounded, status_json, step_status


def started(step: int, **changes: Any) -> Started:
    values: dict[str, Any] = {
        "step": step, "planned": 400, "epoch": 1, "epochs": 4.0, "steps_per_epoch": 100, "session": "night-1",
        "frontend": "shell", "device": "cpu",
    }  # fmt: skip
    return Started(**(values | changes))


def trained(step: int, **changes: Any) -> Trained:
    values: dict[str, Any] = {
        "step": step, "planned": 400, "epoch": 1, "loss": 100.0 / step, "lr": step * 1e-5, "grad_norm": step / 10,
        "units_seen": 60.0 * step, "elapsed_seconds": 6.0 * step, "units_per_second": 10.0, "gpu_peak_bytes": None,
        "skipped": 0, "eta_seconds": 6.0 * (400 - step),
    }  # fmt: skip
    return Trained(**(values | changes))


def evaluated(step: int, main: float, *, is_best: bool = True, **changes: Any) -> Evaluated:
    values: dict[str, Any] = {
        "epoch": 1, "scores": {"cer": main, "wer": main * 2}, "elapsed_seconds": 6.0 * step + 3,
        "units_seen": 60.0 * step, "valid_id": "v",
    }  # fmt: skip
    return Evaluated(step=step, main=main, is_best=is_best, **(values | changes))


def saved(step: int) -> Saved:
    return Saved(step=step, file="last.pt", seconds=0.2)


def status_of(*events: Event) -> Status:
    return fold((event, 1000.0 + i) for i, event in enumerate(events))


STEPS = st.integers(0, 6)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    STEPS.map(started),
    st.integers(1, 6).map(trained),
    st.builds(evaluated, STEPS, st.floats(0, 1), is_best=st.booleans()),
    STEPS.map(saved),
    st.builds(Phase, step=STEPS, phase=st.sampled_from(ACTIVE_PHASES)),
    st.builds(SaveFailed, step=STEPS, error=st.text()),
    st.builds(Skipped, step=STEPS, reason=st.text(), batch=st.text()),
    st.builds(Rewarmed, step=STEPS, reason=st.text()),
    st.builds(
        Paused,
        step=STEPS,
        planned=st.just(400),
        kind=st.sampled_from(["paused", "stopped", "discarded"]),
        reason=st.text(),
    ),
    st.builds(Finished, step=STEPS, planned=st.just(400)),
    st.builds(Crashed, step=STEPS, error=st.text()),
)


@given(st.lists(EVENTS, max_size=12))
def test_whatever_a_run_went_through_every_prefix_is_a_status_of_that_moment(events):
    status = Status()
    for count, event in enumerate(events, 1):
        status = step_status(status, event, 1000.0 + count - 1)
        assert status == status_of(*events[:count])
        assert status.step == event.step and status.updated_at == 1000.0 + count - 1
        assert status.best_step is None or status.best_step <= status.step
        assert status.ended == (status.phase not in ACTIVE_PHASES)
        assert all(save.step <= status.step for save in status.saves) and len(status.saves) <= 2
        json.dumps(status_json("quran", status), allow_nan=False)


def test_nothing_said_is_a_run_that_starts():
    assert fold([]) == Status() and Status().phase == "starting"


MEASURED = ("loss", "lr", "grad_norm", "units_seen", "elapsed_seconds", "skipped", "best_score", "best_step", "scores")


def measured(status: Status) -> dict[str, Any]:
    return {name: getattr(status, name) for name in MEASURED}


FIRST = (started(0), trained(50), evaluated(100, 0.5), saved(100))
SECOND = (trained(150), evaluated(200, 0.4), saved(200))
LOST = (
    Skipped(step=240, reason="memory", batch="b"),
    trained(250, skipped=1),
    evaluated(290, 0.3),
    Phase(step=299, phase="training"),
)


def test_a_session_that_goes_on_from_a_save_knows_what_was_known_then():
    then = status_of(*FIRST, *SECOND)
    now = status_of(*FIRST, *SECOND, *LOST, started(200, session="night-2"))
    assert measured(now) == measured(then)
    assert (now.step, now.best_step, now.best_score, now.loss) == (200, 200, 0.4, 100 / 150)
    assert (now.phase, now.session, now.session_started_at) == ("training", "night-2", 1000.0 + 11)


def test_a_session_that_falls_back_to_the_save_before_forgets_the_later_best():
    now = status_of(*FIRST, *SECOND, *LOST, started(100))
    assert measured(now) == measured(status_of(*FIRST))
    assert (now.best_step, now.best_score, now.scores["cer"]) == (100, 0.5, 0.5)


def test_a_run_that_begins_again_has_measured_nothing():
    assert measured(status_of(*FIRST, *SECOND, started(0))) == measured(Status())
    assert measured(status_of(*FIRST, *SECOND, started(50))) == measured(Status())


def test_a_session_after_a_pause_forgets_nothing():
    before = status_of(*FIRST, *SECOND, Paused(step=200, planned=400, kind="paused", reason="06:30"))
    assert measured(step_status(before, started(200), 2000.0)) == measured(before)


@pytest.mark.parametrize("event", [Phase(step=200, phase="training"), trained(200)])
def test_a_run_that_trains_has_not_ended_even_if_its_beginning_was_torn(event):
    assert not status_of(*FIRST, Paused(step=100, planned=400, kind="paused", reason="06:30"), event).ended


def test_only_the_two_saves_that_a_run_keeps_are_remembered():
    now = status_of(started(0), *(saved(step) for step in (10, 20, 30)))
    assert [save.step for save in now.saves] == [20, 30] and all(save.saves == () for save in now.saves)


def test_a_save_whose_line_was_torn_costs_nothing():
    before = status_of(*FIRST, trained(150))
    assert measured(step_status(before, started(180), 2000.0)) == measured(before)


@pytest.mark.parametrize(
    "end", [Crashed(step=200, error="x"), Paused(step=200, planned=400, kind="discarded", reason="x")]
)
def test_an_end_that_goes_back_to_the_last_save_takes_its_numbers_along(end):
    now = status_of(*FIRST, *SECOND, *LOST, end)
    assert measured(now) == measured(status_of(*FIRST, *SECOND)) and now.step == 200
    assert measured(step_status(now, started(200), 2000.0)) == measured(now)


def test_a_new_session_takes_nothing_of_the_old_but_what_was_learned():
    old = [
        started(0, stop_at=5.0, facts={"train_clips": 3}, notes=["old"]),
        trained(50, gpu_peak_bytes=2**30),
        saved(50),
        Paused(step=50, planned=400, kind="paused", reason="it is 06:30"),
    ]
    now = status_of(
        *old, started(50, facts={"train_clips": 4}, notes=["resumed at step 50", "data changed"], device="cuda")
    )
    assert (now.gpu_peak_bytes, now.eta_seconds, now.units_per_second, now.stop_at) == (None, None, None, None)
    assert (now.stop_reason, now.error, now.ended) == ("", "", False)
    assert (now.message, now.facts, now.device) == ("resumed at step 50; data changed", {"train_clips": 4}, "cuda")
    assert status_of(*old, Crashed(step=50, error="broke"), started(50)).error == ""


def test_the_memory_peak_is_the_highest_of_the_session():
    peaks = [trained(step, gpu_peak_bytes=peak) for step, peak in ((1, None), (2, 5), (3, 9), (4, 7), (5, None))]
    assert [status_of(started(0), *peaks[:n]).gpu_peak_bytes for n in range(1, 6)] == [None, 5, 9, 9, 9]


def test_a_worse_validation_shows_its_scores_and_keeps_the_best():
    now = status_of(*FIRST, evaluated(200, 0.6, is_best=False))
    assert (now.best_step, now.best_score, now.scores["cer"]) == (100, 0.5, 0.6)


@pytest.mark.parametrize(
    ("event", "phase", "field", "words"),
    [
        (Paused(step=9, planned=400, kind="paused", reason="it is 06:30"), "paused", "stop_reason", "it is 06:30"),
        (Paused(step=9, planned=400, kind="stopped", reason="asked"), "stopped", "stop_reason", "asked"),
        (Paused(step=9, planned=400, kind="discarded", reason="asked"), "stopped", "stop_reason", "asked"),
        (Finished(step=9, planned=9), "finished", "stop_reason", ""),
        (Crashed(step=9, error="ValueError: x"), "crashed", "error", "ValueError: x"),
    ],
)
def test_each_end_has_its_phase_and_words(event, phase, field, words):
    now = status_of(started(0), trained(8), event)
    assert (now.phase, getattr(now, field), now.step, now.ended) == (phase, words, 9, True)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Skipped(step=9, reason="out of memory", batch="b"), "out of memory"),
        (Rewarmed(step=9, reason="data changed"), "learning rate warms up again: data changed"),
        (SaveFailed(step=9, error="disk full"), "saving failed: disk full"),
    ],
)
def test_what_happened_on_the_way_is_a_message(event, words):
    now = status_of(started(0), trained(8), event)
    assert (now.message, now.phase, now.ended) == (words, "training", False)


def test_skipped_batches_are_counted_until_the_next_line_says_how_many():
    skips = [Skipped(step=8, reason="r", batch="b")] * 2
    assert status_of(started(0), trained(8, skipped=3), *skips).skipped == 5
    assert status_of(started(0), trained(8, skipped=3), *skips, trained(9, skipped=5)).skipped == 5


#: What dashboards and scripts read; a key that goes is a break.
KEYS = {
    "name", "phase", "message", "device", "params_m", "total_steps", "epochs", "steps_per_epoch", "train_clips",
    "valid_clips", "train_hours", "valid_hours", "hours_by_reciter", "model", "train", "session_started_at",
    "updated_at", "stop_at", "step", "epoch", "loss", "lr", "grad_norm", "audio_h_per_h", "hours_seen", "elapsed_min",
    "eta_h", "gpu_peak_gb", "skipped_batches", "best_score", "best_step", "best_cer", "valid", "stop_requested",
    "stop_reason", "seen_in_training",
    "error",
}  # fmt: skip


@pytest.mark.parametrize("status", [Status(), status_of(*FIRST, *SECOND, Finished(step=400, planned=400))])
def test_status_json_always_has_every_key(status):
    assert set(status_json("quran", status)) >= KEYS


def test_status_json_is_rounded_as_the_log_is():
    facts = {
        "params_m": 1.49, "train_clips": 12, "valid_clips": 3, "train_hours": 1.25, "valid_hours": 0.5,
        "hours_by_reciter": {"husary": 0.75}, "model": {"width": 96}, "train": {"lr": 1e-3, "weight_decay": 1.5e-7},
        "data_id": "d" * 64, "seen_in_training": [],
    }  # fmt: skip
    line = trained(
        123, loss=1.23456, lr=0.000123456, grad_norm=1.23456, units_seen=5000.0, elapsed_seconds=100.0,
        units_per_second=12.6, gpu_peak_bytes=3 * 2**29 + 2**25, eta_seconds=5000.0, skipped=2, epoch=2,
    )  # fmt: skip
    scores = {"cer": 0.123456789, "warsh_cer": None, "by_reciter": {"husary": 0.3333333}, "clips": 3}
    status = status_of(started(0, facts=facts, stop_at=2000.0), evaluated(100, 0.123456789, scores=scores), line)
    assert status_json("quran", status) == {
        "name": "quran", "phase": "training", "message": "", "device": "cpu", **facts, "total_steps": 400,
        "epochs": 4.0, "steps_per_epoch": 100, "session": "night-1", "session_started_at": 1000.0,
        "updated_at": 1002.0, "stop_at": 2000.0, "step": 123, "epoch": 2, "loss": 1.2346, "lr": 0.0001235,
        "grad_norm": 1.235, "audio_h_per_h": 13.0, "hours_seen": 1.39, "elapsed_min": 1.7, "eta_h": 1.39,
        "gpu_peak_gb": 1.53, "skipped_batches": 2, "best_score": 0.12346, "best_cer": 0.12346, "best_step": 100,
        "valid": {"cer": 0.12346, "warsh_cer": None, "by_reciter": {"husary": 0.33333}, "clips": 3},
        "stop_requested": None, "stop_reason": "", "error": "",
    }  # fmt: skip


def test_what_is_not_finite_is_null():
    broken = trained(
        5,
        loss=math.nan,
        lr=math.inf,
        grad_norm=math.inf,
        units_per_second=math.inf,
        eta_seconds=math.nan,
        units_seen=math.inf,
    )
    said = status_json(
        "quran", status_of(evaluated(4, math.nan, scores={"cer": math.nan, "parts": [math.inf]}), broken)
    )
    nulls = ("loss", "lr", "grad_norm", "audio_h_per_h", "eta_h", "hours_seen", "best_score", "best_cer")
    assert [said[key] for key in nulls] == [None] * len(nulls)
    assert said["valid"] == {"cer": None, "parts": [None]}
    assert (rounded(math.nan, 2), rounded(None, 2), rounded(1.239, 2)) == (None, None, 1.24)


def test_a_finished_run_has_no_time_left_and_one_without_a_best_has_null():
    assert status_json("q", status_of(trained(5), Finished(step=400, planned=400)))["eta_h"] == 0
    said = status_json("q", status_of(started(0), trained(5)))
    assert (said["best_score"], said["best_step"], said["best_cer"]) == (None, None, None)


def test_a_status_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Status().step = 3  # type: ignore[misc]
