"""When a session of a flow may begin: late nights, short ones, both days on which clocks change."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from core.config import build, read_fields
from core.errors import ConfigError
from tasks.limits import as_overrides, limits

ZURICH = ZoneInfo("Europe/Zurich")
QUARTER = 15 * 60.0
TWO_HOURS = 2 * 3600.0


@pytest.fixture(autouse=True)
def in_zurich():
    with time_machine.travel(datetime(2026, 6, 1, tzinfo=ZURICH)):
        yield


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH)


@pytest.mark.parametrize(
    ("scheduled", "now", "late"),
    [
        ("2026-06-01 23:00", "2026-06-01 23:00", ""),
        ("2026-06-01 23:00", "2026-06-02 00:59", ""),
        ("2026-06-01 23:00", "2026-06-02 01:01", "2 h 01 min after its scheduled start at 23:00"),
        ("2026-06-02 05:30", "2026-06-02 06:14", ""),
        ("2026-06-02 05:30", "2026-06-02 06:16", "only 14 min are left until 06:30"),
        ("2026-06-02 05:30", "2026-06-02 06:31", "its end was at 06:30"),
        # the clocks go forward in that night, and back in this one
        ("2026-03-28 23:00", "2026-03-29 00:30", ""),
        ("2026-10-24 23:00", "2026-10-25 00:30", ""),
    ],
)
def test_a_session_that_is_late_or_too_short_does_not_begin(scheduled: str, now: str, late: str) -> None:
    found = limits(at(scheduled), at(now), stop_at="06:30", min_session_seconds=QUARTER, max_late_seconds=TWO_HOURS)
    assert found.late == late


@pytest.mark.parametrize(("night", "hours"), [("2026-03-28", 6.5), ("2026-06-01", 7.5), ("2026-10-24", 8.5)])
def test_the_end_is_that_time_of_day_after_the_scheduled_start_on_any_night(night: str, hours: float) -> None:
    scheduled = at(f"{night} 23:00")
    late = scheduled + timedelta(minutes=90)
    for now in (scheduled, late):
        end = limits(scheduled, now, stop_at="06:30").stop_at
        assert end == scheduled.timestamp() + hours * 3600


def test_a_night_that_begins_in_the_morning_does_not_train_through_the_day() -> None:
    """ "Tomorrow if already past" would end it a day later."""
    found = limits(at("2026-06-01 23:00"), at("2026-06-02 08:00"), stop_at="06:30", max_late_seconds=1e9)
    assert found.late == "its end was at 06:30" and found.stop_at == at("2026-06-02 06:30").timestamp()


def test_a_short_session_that_a_person_wants_begins() -> None:
    now = at("2026-06-02 06:25")
    assert not limits(now, now, stop_at="06:30").late


@given(st.integers(0, 5000), st.integers(1, 600))
def test_the_earlier_end_counts(late_seconds: int, minutes: int) -> None:
    scheduled = datetime(2026, 6, 1, 21, tzinfo=UTC)
    now = scheduled + timedelta(seconds=late_seconds)
    both = limits(scheduled, now, stop_at="06:30", stop_after=f"{minutes}m").stop_at
    ends = [limits(scheduled, now, stop_at="06:30").stop_at, limits(scheduled, now, stop_after=f"{minutes}m").stop_at]
    assert both == min(end for end in ends if end is not None)


def test_without_limits_there_is_no_end() -> None:
    now = datetime.now(UTC)
    assert limits(now, now).stop_at is None


@pytest.mark.parametrize(("stop_at", "said"), [("1410", "YAML 1.1"), ("25:00", "no time of day"), ("soon", "no time")])
def test_what_is_no_time_of_day_is_said(stop_at: str, said: str) -> None:
    now = datetime.now(UTC)
    with pytest.raises(ConfigError, match=said):
        limits(now, now, stop_at=stop_at)


def test_overrides_mean_what_the_command_line_means(tmp_path) -> None:
    values = {
        "train.lr": 5e-4,
        "train": {"num_workers": 2, "steps": None},
        "data.text": "plain",
        "augment.speed": [0.9, 1.1],
    }
    named = as_overrides(values)
    assert "train.lr=0.0005" in named and "train.num_workers=2" in named
    (tmp_path / "r.yaml").write_text(json.dumps({"data": {"sources": [{"kind": "sample"}]}}))
    from core.speech.config import SpeechRun

    config = build(SpeechRun, read_fields(tmp_path / "r.yaml", named), "r")
    assert (config.train.lr, config.train.num_workers, config.train.steps) == (5e-4, 2, None)
    assert config.data.text == "plain" and config.augment.speed == (0.9, 1.1)
    assert as_overrides(None) == ()


def test_an_override_without_a_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a field's name"):
        as_overrides({"": 1})
