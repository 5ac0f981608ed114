from __future__ import annotations

import pytest

from core.events import Crashed, Finished, Paused
from tasks.ending import Ending, tail, what_it_means

PAUSED = Paused(step=40, planned=100, kind="paused", reason="it is 06:30")
STOPPED = Paused(step=40, planned=100, kind="stopped", reason="asked to stop")
DONE = Finished(step=100, planned=100)


@pytest.mark.parametrize(
    ("left", "kind"),
    [
        # an exit code is a promise, with or without a request
        (dict(code=0), "finished"),
        (dict(code=75), "paused"),
        (dict(code=75, asked="save"), "stopped"),
        (dict(code=76), "discarded"),
        (dict(code=69), "busy"),
        (dict(code=65), "invalid"),
        # dead by a signal: somebody asked, or it crashed
        (dict(code=-15), "crashed"),
        (dict(code=-15, asked="save"), "stopped"),
        (dict(code=-2, asked="discard"), "discarded"),
        (dict(code=143, asked="save"), "stopped"),
        (dict(code=137), "crashed"),
        (dict(code=-9, asked="save"), "stopped"),
        # an error is an error, whoever asked for what
        (dict(code=1, asked="save"), "crashed"),
        (dict(code=70), "crashed"),
        # a save that landed counts, one that did not does not
        (dict(code=-9, last_event=PAUSED, saved_step=40), "paused"),
        (dict(code=-9, last_event=STOPPED, saved_step=40), "stopped"),
        (dict(code=-9, last_event=PAUSED, saved_step=30), "crashed"),
        (dict(code=1, last_event=DONE, saved_step=100), "finished"),
        (dict(code=1, last_event=DONE, saved_step=99), "crashed"),
        (dict(code=70, last_event=Crashed(step=40, error="x"), saved_step=40), "crashed"),
    ],
)
def test_without_a_result_the_death_tells(left, kind):
    assert what_it_means(Ending(**left)).kind == kind


def test_what_the_child_wrote_wins_over_its_exit_code():
    result = {"outcome": "paused", "from_step": 10, "to_step": 40, "reason": "06:30", "resumable": True}
    outcome = what_it_means(Ending(code=-9, result=result, from_step=1, saved_step=2))
    assert (outcome.kind, outcome.from_step, outcome.to_step, outcome.reason) == ("paused", 10, 40, "06:30")
    assert outcome.exit_code == 75


def test_an_outcome_of_another_layl_is_no_success():
    assert what_it_means(Ending(code=0, result={"outcome": "levitated"})).kind == "crashed"


def test_a_crash_says_how_it_died_and_its_last_words():
    outcome = what_it_means(Ending(code=-9, words="loading\nno room", from_step=3, saved_step=7))
    assert outcome.reason.startswith("killed by SIGKILL (the system does that when memory runs out)")
    assert outcome.reason.endswith("loading\nno room")
    assert (outcome.from_step, outcome.to_step, outcome.exit_code) == (3, 7, 70)
    assert what_it_means(Ending(code=1)).reason == "exit code 1, without a word"


def test_a_refusal_keeps_the_trainers_own_words():
    assert what_it_means(Ending(code=65, words="model.width: 96 -> 128")).reason == "model.width: 96 -> 128"


def test_a_stop_at_once_says_which_checkpoint_stays():
    assert "step 1,200 stays" in what_it_means(Ending(code=-15, asked="save", saved_step=1200)).reason
    assert "no checkpoint yet" in what_it_means(Ending(code=-15, asked="save")).reason


def test_a_tail_is_the_end_and_short():
    text = "\n".join(f"line {n}  " for n in range(1000))
    assert tail(text).splitlines()[-1] == "line 999"
    assert len(tail(text).splitlines()) == 40
    assert len(tail("x" * 10_000)) == 4000
