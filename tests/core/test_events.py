from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import events
from core.events import (
    EVENT_TYPES,
    TERMINAL,
    Crashed,
    Evaluated,
    Event,
    EventLog,
    Finished,
    Follower,
    Paused,
    Phase,
    Saved,
    Skipped,
    Started,
    Trained,
    from_line,
    read_events,
    to_line,
)

TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from(["\n", "\u2028", "\x85", "ب"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
VALUES: dict[Any, st.SearchStrategy] = {
    str: TEXT, int: st.integers(), float: FLOATS, bool: st.booleans(), type(None): st.none(),
    list[str]: st.lists(TEXT, max_size=3), dict[str, Any]: st.dictionaries(TEXT, JSON, max_size=3),
}  # fmt: skip


def values_of(annotation: Any) -> st.SearchStrategy:
    if isinstance(annotation, types.UnionType):
        return st.one_of([values_of(inner) for inner in typing.get_args(annotation)])
    return VALUES[annotation]


def events_of(kind: type) -> st.SearchStrategy[Event]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{f.name: values_of(hints[f.name]) for f in dataclasses.fields(kind)})


def trained(step: int, **changes: Any) -> Trained:
    values: dict[str, Any] = {
        "step": step, "planned": 100, "epoch": 1, "loss": 1.5, "lr": 1e-3, "grad_norm": 2.0, "units_seen": 60.0,
        "elapsed_seconds": 5.0, "units_per_second": 12.0, "gpu_peak_bytes": None, "skipped": 0, "eta_seconds": 40.0,
    }  # fmt: skip
    return Trained(**(values | changes))


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@given(data=st.data())
def test_every_event_survives_write_and_read(kind, data):
    event = data.draw(events_of(kind))
    at = data.draw(st.floats(0, 1e10).map(lambda t: round(t, 3)))
    line = to_line(event, at)
    assert line.count("\n") == 1 and line.endswith("\n")
    assert from_line(line.encode("utf-8").decode("utf-8")) == (event, at)


def test_every_event_of_the_module_is_known_by_its_name():
    defined = {
        name for name, value in vars(events).items()
        if dataclasses.is_dataclass(value) and getattr(value, "__module__", "") == events.__name__
    }  # fmt: skip
    assert set(EVENT_TYPES) == defined
    assert {kind.__name__ for kind in TERMINAL} == {"Paused", "Finished", "Crashed"} <= defined
    for kind in EVENT_TYPES.values():
        assert kind.__dataclass_params__.frozen and "step" in kind.__dataclass_fields__


def test_a_number_that_is_not_finite_becomes_null():
    scores = {"cer": math.nan, "parts": [math.inf, 1.0], "deep": {"x": -math.inf}, "pair": (math.nan, 2)}
    event = Evaluated(
        step=1, epoch=1, main=math.nan, scores=scores, is_best=False, elapsed_seconds=1.0, units_seen=1.0, valid_id="v"
    )
    said = json.loads(to_line(event, 1.0), parse_constant=lambda name: pytest.fail(name))
    assert said["main"] is None
    assert said["scores"] == {"cer": None, "parts": [None, 1.0], "deep": {"x": None}, "pair": [None, 2]}
    assert json.loads(to_line(trained(1, loss=math.inf, grad_norm=math.nan), 1.0))["loss"] is None


def test_a_line_says_event_and_time_first_and_arabic_as_it_is():
    line = to_line(Crashed(step=3, error="لا"), 12.3456)
    assert line == '{"event": "Crashed", "at": 12.346, "step": 3, "error": "لا"}\n'


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "3", "[]", "null", '"Saved"', '{"step": 3}',
        '{"event": "Saved", "step": 3, "file": "a", "seconds": 1}',
        '{"event": "Saved", "at": 1}', '{"event": "Danced", "at": 1, "step": 3}', '{"event": ["Saved"], "at": 1}',
        '{"event": "Phase", "at": null, "step": 3, "phase": "training"}',
        '{"event": "Phase", "at": "soon", "step": 3, "phase": "training"}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_event_is_none(line):
    assert from_line(line) is None


def test_a_field_of_a_later_layl_is_left_aside_and_one_of_an_earlier_may_be_missing():
    line = '{"event": "Finished", "at": 2, "step": 3, "planned": 3, "mood": "glad"}'
    assert from_line(line) == (Finished(step=3, planned=3), 2.0)


def test_half_a_character_of_a_file_name_can_be_written_and_comes_back(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 1.0)
    event = Crashed(step=3, error="caf\udce9.wav: \u2028 \x85")
    log(event)
    assert read_events(tmp_path / "events.jsonl") == ([(event, 1.0)], 0)


def ticking():
    return iter(range(1, 10_000)).__next__


EVENTS: list[Event] = [
    Phase(step=0, phase="preparing"),
    Started(step=0, planned=9, epoch=1, epochs=1.0, steps_per_epoch=9, session="s", frontend="shell", device="cpu"),
    trained(2),
    Skipped(step=2, reason="ذاكرة", batch="3 clips, 9 s"),
    Saved(step=3, file="last.pt", seconds=0.1),
    Paused(step=3, planned=9, kind="paused", reason="it is 06:30"),
]


def test_a_log_gives_back_what_was_appended_over_several_sessions(tmp_path):
    path = tmp_path / "run" / "events.jsonl"
    for part in (EVENTS[:2], EVENTS[2:]):
        log = EventLog(path, clock=ticking())
        for event in part:
            log(event)
        log.close()
    found, torn = read_events(path)
    assert [event for event, _ in found] == EVENTS and torn == 0
    assert [at for _, at in found] == [1, 2, 1, 2, 3, 4]


def test_an_event_can_be_read_as_soon_as_it_is_said(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    for count, event in enumerate(EVENTS, 1):
        log(event)
        assert len(read_events(tmp_path / "events.jsonl")[0]) == count


def test_sync_puts_the_log_on_the_disk(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "events.jsonl")
    log(EVENTS[0])
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    log.sync()
    assert synced == [(tmp_path / "events.jsonl").stat().st_size] and synced[0] > 0


def test_no_log_is_no_event(tmp_path):
    assert read_events(tmp_path / "events.jsonl") == ([], 0)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0, 1)), min_size=1, max_size=4))
def test_a_kill_costs_at_most_the_line_it_tore(tmp_path_factory, sessions):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    expected, torn_expected = [], 0
    for event, part in sessions:
        log = EventLog(path, clock=lambda: 1.0)
        log(event)
        log.close()
        expected.append(event)
        line = to_line(EVENTS[3], 1.0).encode()
        # what a kill in the middle of the next line leaves, also in the middle of a letter
        piece = line[: round(part * (len(line) - 2))]
        with path.open("ab") as file:
            file.write(piece)
        torn_expected += bool(piece)
    found, torn = read_events(path)
    assert [each for each, _ in found] == expected and torn == torn_expected


def test_a_line_that_lost_only_its_end_is_whole_again(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(EVENTS[0], 1.0).rstrip("\n"))
    EventLog(path, clock=lambda: 2.0)(EVENTS[2])
    assert read_events(path) == ([(EVENTS[0], 1.0), (EVENTS[2], 2.0)], 0)


def test_rubbish_anywhere_is_skipped_and_counted(tmp_path):
    path = tmp_path / "events.jsonl"
    lines = [to_line(event, 1.0).encode() for event in EVENTS]
    path.write_bytes(
        b"\x00\x00\xff\n" + lines[0] + b"\n\n" + lines[1][:20] + b"\n" + lines[2] + b'{"event": "Danced"}\n'
    )
    found, torn = read_events(path)
    assert [event for event, _ in found] == [EVENTS[0], EVENTS[2]] and torn == 3


def test_a_follower_gives_each_line_once_and_only_when_it_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    follower = Follower(path)
    assert list(follower.poll()) == []
    data = b"".join(to_line(event, 1.0).encode() for event in EVENTS)
    seen: list[tuple[int, Event]] = []
    with path.open("ab", buffering=0) as file:
        for place in range(0, len(data), 7):
            file.write(data[place : place + 7])
            seen += [(place + 7, event) for event, _ in follower.poll()]
    assert [event for _, event in seen] == EVENTS
    ends = [sum(len(to_line(e, 1.0).encode()) for e in EVENTS[: n + 1]) for n in range(len(EVENTS))]
    assert all(end <= place < end + 7 for end, (place, _) in zip(ends, seen, strict=True))
    assert list(follower.poll()) == []


def test_a_follower_skips_what_is_torn(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "Pha\n\n' + to_line(EVENTS[2], 1.0).encode())
    assert list(Follower(path).poll()) == [(EVENTS[2], 1.0)]


def test_a_follower_from_the_end_gives_only_what_comes(tmp_path):
    path = tmp_path / "events.jsonl"
    before = Follower(path, from_end=True)
    log = EventLog(path, clock=lambda: 1.0)
    log(EVENTS[0])
    after = Follower(path, from_end=True)
    log(EVENTS[2])
    assert [event for event, _ in before.poll()] == [EVENTS[0], EVENTS[2]]
    assert [event for event, _ in after.poll()] == [EVENTS[2]]


@pytest.mark.parametrize("how", ["archived", "written over"])
def test_a_follower_sees_a_run_that_begins_anew(tmp_path, how):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, clock=lambda: 1.0)
    for event in EVENTS:
        log(event)
    log.close()
    follower = Follower(path)
    assert len(list(follower.poll())) == len(EVENTS)
    if how == "archived":
        path.rename(tmp_path / "archived.jsonl")
        assert list(follower.poll()) == []
        EventLog(path, clock=lambda: 2.0)(EVENTS[0])
    else:
        # a purged run's inode may come back for the next run's log
        path.write_text("")
        list(follower.poll())
        EventLog(path, clock=lambda: 2.0)(EVENTS[0])
    assert list(follower.poll()) == [(EVENTS[0], 2.0)]
