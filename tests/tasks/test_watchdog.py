"""A child that will not end is ended, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.watchdog import Patience, Seen, patience, verdict

DEFAULT = Patience()


@pytest.mark.parametrize(
    ("seen", "now", "expected"),
    [
        # nobody asked and nothing ended: it may train for ever
        ({}, 1e12, "wait"),
        ({"saved_at": 5.0}, 1e12, "wait"),
        # it said that it ended
        ({"ended_at": 100.0}, 114.9, "wait"),
        ({"ended_at": 100.0}, 115.0, "terminate"),
        # asked to save: a save of a large model, or the end of a validation, takes minutes
        ({"asked": "save", "asked_at": 100.0}, 699.9, "wait"),
        ({"asked": "save", "asked_at": 100.0}, 700.0, "terminate"),
        # a save of before the request is not the one that was asked for
        ({"asked": "save", "asked_at": 100.0, "saved_at": 99.0}, 699.9, "wait"),
        # it has saved since
        ({"asked": "save", "asked_at": 100.0, "saved_at": 130.0}, 249.9, "wait"),
        ({"asked": "save", "asked_at": 100.0, "saved_at": 130.0}, 250.0, "terminate"),
        # but never later than without a save
        ({"asked": "save", "asked_at": 100.0, "saved_at": 690.0}, 700.0, "terminate"),
        # asked to leave everything
        ({"asked": "discard", "asked_at": 100.0}, 219.9, "wait"),
        ({"asked": "discard", "asked_at": 100.0}, 220.0, "terminate"),
        # asked, and ended since: the nearer limit
        ({"asked": "save", "asked_at": 100.0, "ended_at": 110.0}, 125.0, "terminate"),
        ({"asked": "discard", "asked_at": 100.0, "ended_at": 219.0}, 221.0, "terminate"),
        # told to end
        ({"asked": "discard", "asked_at": 100.0, "terminated_at": 220.0}, 224.9, "wait"),
        ({"asked": "discard", "asked_at": 100.0, "terminated_at": 220.0}, 225.0, "kill"),
        ({"ended_at": 100.0, "terminated_at": 115.0}, 120.0, "kill"),
    ],
)
def test_how_long_a_child_may_live(seen: dict[str, Any], now: float, expected: str) -> None:
    assert verdict(Seen(**seen), now, DEFAULT) == expected


TIMES = st.none() | st.floats(0, 1000)


@given(st.sampled_from([None, "save", "discard"]), TIMES, TIMES, TIMES, st.floats(0, 5000))
def test_nobody_is_killed_who_was_not_told_to_end_first(
    asked: Any, at: Any, saved: Any, ended: Any, now: float
) -> None:
    seen = Seen(asked=asked, asked_at=at, saved_at=saved, ended_at=ended)
    assert verdict(seen, now, DEFAULT) in ("wait", "terminate")
    if ended is None and (asked is None or at is None):
        assert verdict(seen, now, DEFAULT) == "wait"
    # later is never more patient
    order = ("wait", "terminate")
    assert order.index(verdict(seen, now, DEFAULT)) <= order.index(verdict(seen, now + 100, DEFAULT))


def test_the_figures_come_from_the_environment_and_a_bad_one_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    assert patience({}) == DEFAULT
    wanted = {"LAYL_WATCHDOG_ENDED": "1.5", "LAYL_WATCHDOG_SAVE": "2", "LAYL_WATCHDOG_DISCARD": "3"}
    assert patience({**wanted, "LAYL_WATCHDOG_TERMINATED": "4"}) == Patience(ended=1.5, save=2, discard=3, terminated=4)
    for bad in ("", "soon", "-1", "0", "nan", "inf"):
        caplog.clear()
        assert patience({"LAYL_WATCHDOG_SAVE": bad}) == DEFAULT
        assert "LAYL_WATCHDOG_SAVE" in caplog.text and "600 holds" in caplog.text
