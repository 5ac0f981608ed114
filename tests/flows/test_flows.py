"""The flows in a real, temporary server: states, retries, and preparation by a task runner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.testing.utilities import prefect_test_harness

import tasks.train
from core.outcome import EXIT_CODES, Outcome
from core.project import read_run
from core.run_dir import RunDir, write_json
from flows.prepare import prepare
from flows.train import train
from prepare.pipeline import prepare as prepare_from_the_shell
from tests.test_dvc_real import CONFIG, Corpus

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


def project_in(root: Path) -> Path:
    (root / "configs").mkdir(parents=True)
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "configs/quran.yaml").write_text(json.dumps(CONFIG))
    Corpus(root / "data/raw/tones")
    return root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = project_in(tmp_path / "p")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def attempts(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Lets sessions come to the given outcomes, one an attempt; gives what each was asked for."""
    monkeypatch.setattr(tasks.train, "RETRY_DELAYS_SECONDS", [0.0, 0.0, 0.0])

    def come_to(*outcomes: Outcome) -> list[Any]:
        left, asked = list(outcomes), []

        def supervise(wanted: Any, *_: Any, **__: Any) -> Outcome:
            asked.append(wanted)
            outcome = left.pop(0)
            result = {"session": wanted.session, "outcome": outcome.kind, "exit_code": EXIT_CODES[outcome.kind]}
            steps = {"from_step": outcome.from_step, "to_step": outcome.to_step}
            write_json(wanted.run.result, {**result, **steps})
            write_json(wanted.run.last_facts, {"step": outcome.to_step, "planned": 100})
            return outcome

        monkeypatch.setattr(tasks.train, "supervise", supervise)
        return asked

    return come_to


def ends(**parameters: Any) -> tuple[str, str]:
    """Type and name, and message, of the state in which the flow ends."""
    state = train(**parameters, return_state=True)
    return f"{state.type.value} {state.name}", state.message or ""


def test_a_pause_is_completed_under_a_name_of_its_own_and_says_that_it_goes_on(attempts: Any) -> None:
    asked = attempts(Outcome("paused", 0, 40, "it is 06:30"))
    state, said = ends(until_step=40, overrides={"train.lr": 0.5}, on_cancel="discard")
    assert (state, said) == (
        "COMPLETED PausedAtDeadline",
        "saved at step 40 of 100 (it is 06:30); the next session continues",
    )
    (wanted,) = asked
    assert (wanted.until_step, wanted.overrides, wanted.on_cancel) == (40, ("train.lr=0.5",), "discard")
    assert wanted.frontend == "prefect" and wanted.flow_run and wanted.run.name == "quran"


def test_a_crash_is_tried_again_within_the_same_session(attempts: Any) -> None:
    asked = attempts(
        Outcome("crashed", 0, 0, "boom"), Outcome("crashed", 0, 9, "boom"), Outcome("finished", 9, 100, resumable=False)
    )
    assert ends()[0] == "COMPLETED Completed"
    assert len(asked) == 3 and len({wanted.session for wanted in asked}) == 1


def test_a_crash_that_gets_no_further_fails_with_the_trainers_words(attempts: Any) -> None:
    asked = attempts(*[Outcome("crashed", 7, 7, "boom at step 7")] * 3)
    state, said = ends()
    assert state == "FAILED Failed" and "boom at step 7" in said
    assert len(asked) == 2


def test_what_cannot_be_used_fails_at_once(attempts: Any) -> None:
    asked = attempts(Outcome("invalid", 0, 0, "train.lr: 'fast' is no number", resumable=False))
    state, said = ends()
    assert state == "FAILED Failed" and "'fast' is no number" in said and len(asked) == 1


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"run": "quram"}, "did you mean quran?"),
        ({"stop_at": 1410}, "YAML 1.1"),
        ({"stop_at": "25:00"}, "is no time of day"),
        ({"stop_after": "soon"}, "is no duration"),
        ({"overrides": {"train.lrr": 1}}, "train.lrr"),
    ],
)
def test_wrong_input_is_one_clear_sentence(attempts: Any, parameters: dict[str, Any], words: str) -> None:
    asked = attempts()
    state, said = ends(**parameters)
    assert state == "FAILED Failed" and words in said
    assert asked == []


def test_a_flow_prepares_the_very_bytes_that_the_shell_prepares(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.prepare.FILES_A_SHARD", 7)
    prepare()
    shell = project_in(tmp_path / "q")
    shutil.rmtree(shell / "data/raw")
    shutil.copytree(project / "data/raw", shell / "data/raw")
    prepare_from_the_shell(*read_run(shell, "quran"), report=lambda line: None)

    def published(root: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in RunDir(root, "quran").manifests.iterdir()}

    assert published(project) == published(shell) and "train.jsonl" in published(project)
