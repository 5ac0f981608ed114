"""What a server hears of a session, and that nothing waits for it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Evaluated, Rewarmed, Started, Trained
from core.outcome import EXIT_CODES, Outcome
from core.run_dir import RunDir, write_json
from core.status import Status
from flows.train import STATE_NAMES, state_of
from tasks import report
from tasks.report import BLOCKS, Reporter, session_page, sparkline
from tasks.supervise import SessionRequest
from tasks.train import is_worth_another_try

STARTED = Started(
    step=0, planned=100, epoch=1, epochs=2, steps_per_epoch=50, session="s", frontend="prefect", device="cpu",
    notes=["new run: 100 steps, 50 an epoch"], facts={"synthetic": True},
)  # fmt: skip
SCORED = Evaluated(
    step=50, epoch=1, main=0.25, scores={"cer": 0.25, "clips": 7}, is_best=True, elapsed_seconds=1.0, units_seen=1.0,
    valid_id="v",
)  # fmt: skip


def trained(step: int) -> Trained:
    return Trained(
        step=step, planned=100, epoch=1, loss=2.0, lr=1e-3, grad_norm=1.0, units_seen=1.0, elapsed_seconds=1.0,
        units_per_second=100.0, gpu_peak_bytes=None, skipped=0, eta_seconds=9.0,
    )  # fmt: skip


class Server:
    """Takes artifacts and events; may be slow, or gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.said: list[tuple[str, Any]] = []
        self.answers = threading.Event()
        self.answers.set()
        self.gone = False
        monkeypatch.setattr(report, "create_progress_artifact", self._takes("progress", "0" * 32))
        monkeypatch.setattr(report, "update_progress_artifact", self._takes("update", None))
        monkeypatch.setattr(report, "create_table_artifact", self._takes("table", None))
        monkeypatch.setattr(report, "create_markdown_artifact", self._takes("page", None))
        monkeypatch.setattr(report, "emit_event", self._takes("event", None))

    def _takes(self, name: str, answer: Any) -> Any:
        def take(*given: Any, **named: Any) -> Any:
            if name != "event":
                assert self.answers.wait(20)
            if self.gone:
                raise ConnectionError("no server")
            self.said.append((name, given[0] if given else named))
            return answer

        return take

    def names(self) -> list[str]:
        return [name for name, _ in self.said]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


@pytest.fixture
def wanted(tmp_path) -> SessionRequest:
    return SessionRequest(run=RunDir(tmp_path, "my_run"), session="s")


def reporter(wanted: SessionRequest, clock: Any = time.time) -> Reporter:
    return Reporter(wanted, logging.getLogger("test"), clock)


def test_a_session_leaves_progress_scores_a_page_and_its_end(server: Server, wanted: SessionRequest) -> None:
    with reporter(wanted) as told:
        told(STARTED)
        told(trained(10))
        told(SCORED)
        told(Rewarmed(step=50, reason="data changed"))
        told.ended(Outcome("paused", 0, 60, "it is 06:30"))
    assert {"progress", "table", "page", "event"} <= set(server.names())
    events = [said for name, said in server.said if name == "event"]
    assert events == ["layl.session.rewarm", "layl.session.paused"]
    (rows,) = [said for name, said in server.said if name == "table"]
    assert rows == [{"step": 50, "best": "best", "error rate": "25.00 %", "cer": "25.00 %"}]
    (page,) = [said for name, said in server.said if name == "page"]
    assert "my_run: paused at step 60 of 100" in page.replace("/", " of ") and "it is 06:30" in page
    assert "new run: 100 steps" in page and "25.00 % (synthetic speech) at step 50" in page


def test_progress_is_told_at_most_every_ten_seconds_and_at_the_end(server: Server, wanted: SessionRequest) -> None:
    now = [0.0]
    with reporter(wanted, lambda: now[0]) as told:
        told(STARTED)
        for step in range(1, 26):
            now[0] += 1.0
            told(trained(step))
            time.sleep(0.01)
        told.ended(Outcome("finished", 0, 25, resumable=False))
    assert server.names().count("progress") == 1 and server.names().count("update") == 3


def test_a_slow_server_holds_nothing_up_and_hears_the_newest(server: Server, wanted: SessionRequest) -> None:
    now = [0.0]
    server.answers.clear()
    with reporter(wanted, lambda: now[0]) as told:
        began = time.monotonic()
        told(STARTED)
        for step in range(1, 50):
            now[0] += 11.0
            told(trained(step))
        assert time.monotonic() - began < 1
        server.answers.set()
        told.ended(Outcome("finished", 0, 49, resumable=False))
    assert server.names().count("update") <= 2


def test_a_server_that_is_gone_is_no_error(server: Server, wanted: SessionRequest) -> None:
    server.gone = True
    with reporter(wanted) as told:
        told(STARTED)
        told(trained(1))
        told(SCORED)
        told.ended(Outcome("stopped", 0, 1, "asked"))
    assert server.said == []


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 60))
def test_a_sparkline_is_short_and_of_blocks(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values)) and set(line) <= set(BLOCKS)


def test_a_sparkline_falls_as_its_values_do() -> None:
    assert sparkline([4.0, 3.0, 2.0, 1.0]) == "█▆▃▁"
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_a_page_of_a_session_that_never_trained_has_no_empty_lines_of_its_own(wanted: SessionRequest) -> None:
    page = session_page(wanted, Outcome("busy", 0, 0, "run is in use"), Status(), [], "")
    assert "None" not in page and "Loss" not in page and "Best" not in page


@pytest.mark.parametrize("kind", [kind for kind in EXIT_CODES if kind not in ("crashed", "invalid")])
def test_every_outcome_that_is_no_failure_has_a_state_of_its_own_name(kind: str, wanted: SessionRequest) -> None:
    wanted.run.path.mkdir(parents=True)
    write_json(wanted.run.last_facts, {"step": 1200, "planned": 3000})
    state = state_of(Outcome(kind, 0, 1200, "because"), wanted.run)  # type: ignore[arg-type]
    assert state.is_completed() and state.name == STATE_NAMES[kind]
    assert ("saved at step 1,200 of 3,000" in state.message) == (kind in ("paused", "stopped", "discarded"))
    assert kind == "discarded" or "because" in state.message


def test_state_names_differ_so_that_automations_can_tell_them() -> None:
    assert len(set(STATE_NAMES.values())) == len(STATE_NAMES)


@pytest.mark.parametrize(
    ("result", "attempts", "again"),
    [
        (None, 1, False),
        ({"session": "s", "outcome": "crashed", "from_step": 0, "to_step": 0}, 1, True),
        ({"session": "s", "outcome": "crashed", "from_step": 0, "to_step": 0}, 2, False),
        ({"session": "s", "outcome": "crashed", "from_step": 5, "to_step": 9}, 3, True),
        ({"session": "s", "outcome": "invalid", "from_step": 0, "to_step": 9}, 1, False),
        ({"session": "another", "outcome": "crashed", "from_step": 0, "to_step": 9}, 1, False),
    ],
)
def test_a_crash_is_tried_again_if_it_got_further_or_was_the_first(
    wanted: SessionRequest, result: Any, attempts: int, again: bool
) -> None:
    wanted.run.path.mkdir(parents=True)
    if result is not None:
        write_json(wanted.run.result, result)
    assert is_worth_another_try(wanted.run, "s", attempts) == again
