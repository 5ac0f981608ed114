"""log.csv, status.json and the curves: each a view of the events."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.events import Evaluated, Event, Finished, Paused, Phase, Started, Trained
from core.run_dir import RunDir, read_json
from core.status import Status
from train.plots import draw
from train.views import COLUMNS, LogCsv, Plots, StatusFile, read_log, series

STARTED = Started(
    step=0, planned=100, epoch=1, epochs=2.0, steps_per_epoch=50, session="s", frontend="shell", device="cpu"
)
TRAINED = Trained(
    step=10, planned=100, epoch=1, loss=2.34567, lr=0.000123456, grad_norm=1.23456, units_seen=7200.4,
    elapsed_seconds=90.0, units_per_second=123.6, gpu_peak_bytes=int(1.5 * 2**30), skipped=0, eta_seconds=60.0,
)  # fmt: skip
EVALUATED = Evaluated(
    step=20, epoch=1, main=0.123456, is_best=True, elapsed_seconds=150.0, units_seen=9000.0, valid_id="v",
    scores={"cer": 0.123456, "wer": 0.5, "skeleton": 0.1, "hafs_cer": 0.12, "warsh_cer": None, "clips": 3},
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path, "r")
    run.path.mkdir(parents=True)
    return run


def log(run: RunDir, *events: Event) -> list[dict[str, str]]:
    view = LogCsv(run)
    for event in events:
        view(event)
    return list(csv.DictReader(run.log_csv.read_text(encoding="utf-8").splitlines()))


def filled(row: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if value}


def test_the_columns_stand_in_the_order_that_tools_rely_on(run: RunDir) -> None:
    log(run, STARTED)
    assert run.log_csv.read_text(encoding="utf-8") == (
        "step,epoch,loss,lr,valid_cer,valid_wer,hours_seen,elapsed_min,grad_norm,gpu_peak_gb,audio_h_per_h,"
        "valid_skeleton,valid_hafs_cer,valid_warsh_cer\n"
    )
    assert len(COLUMNS) == 14


def test_training_lines_and_validations_are_rows_of_their_own_rounded_as_agreed(run: RunDir) -> None:
    trained, evaluated = log(run, STARTED, TRAINED, EVALUATED, Phase(step=20, phase="training"))
    assert filled(trained) == {
        "step": "10", "epoch": "1", "loss": "2.3457", "lr": "0.0001235", "hours_seen": "2.00", "elapsed_min": "1.5",
        "grad_norm": "1.235", "gpu_peak_gb": "1.50", "audio_h_per_h": "124",
    }  # fmt: skip
    assert filled(evaluated) == {
        "step": "20", "epoch": "1", "valid_cer": "0.12346", "valid_wer": "0.50000", "hours_seen": "2.50",
        "elapsed_min": "2.5", "valid_skeleton": "0.10000", "valid_hafs_cer": "0.12000",
    }  # fmt: skip


def test_what_is_not_known_is_blank_never_zero(run: RunDir) -> None:
    unknown = replace(TRAINED, loss=None, grad_norm=None, gpu_peak_bytes=None, units_per_second=None)
    (row,) = log(run, STARTED, unknown)
    assert (row["loss"], row["grad_norm"], row["gpu_peak_gb"], row["audio_h_per_h"]) == ("", "", "", "")


def test_a_session_retracts_what_an_earlier_one_wrote_beyond_its_step(run: RunDir) -> None:
    log(run, STARTED, TRAINED, EVALUATED, replace(TRAINED, step=30))
    rows = log(run, replace(STARTED, step=20), replace(TRAINED, step=30, loss=9.0))
    assert [(row["step"], row["loss"]) for row in rows] == [("10", "2.3457"), ("20", ""), ("30", "9.0000")]


def test_a_row_that_a_kill_tore_is_left_out(run: RunDir) -> None:
    log(run, STARTED, TRAINED, EVALUATED)
    with run.log_csv.open("a", encoding="utf-8") as file:
        file.write("30,1,2.1")
    assert [row["step"] for row in read_log(run)] == ["10", "20"]
    assert [row["step"] for row in log(run, replace(STARTED, step=40), replace(TRAINED, step=50))] == ["10", "20", "50"]


def test_no_log_is_no_rows(run: RunDir) -> None:
    assert read_log(run) == []


def test_status_is_written_at_once_for_what_changes_the_phase_and_seldom_for_lines(run: RunDir) -> None:
    now = [100.0]
    status = StatusFile(run, Status(), clock=lambda: now[0])

    def step() -> Any:
        return read_json(run.status)["step"]

    status(STARTED)
    now[0] += 0.5
    status(TRAINED)
    assert step() == 0
    now[0] += 0.6
    status(replace(TRAINED, step=11))
    assert step() == 11
    status(replace(TRAINED, step=12))
    status(Paused(step=12, planned=100, kind="paused", reason="it is 06:30"))
    assert (step(), read_json(run.status)["phase"], status.status.ended) == (12, "paused", True)


ROWS = [
    {"step": "10", "loss": "2.0", "lr": "0.001", "valid_cer": ""},
    {"step": "20", "loss": "", "lr": "", "valid_cer": "0.5", "valid_wer": "0.75"},
    {"step": "30", "loss": "1.0", "lr": "0.0005"},
]


def test_a_series_leaves_out_rows_without_the_value() -> None:
    assert series(ROWS, "loss") == ([10, 30], [2.0, 1.0])
    assert series(ROWS, "valid_wer", 100) == ([20], [75.0])
    assert series([], "loss") == ([], [])


def test_curves_are_pictures_that_are_the_same_for_the_same_numbers(run: RunDir) -> None:
    draw(run, ROWS, "quran")
    pictures = {path.name: path.read_bytes() for path in run.plots.iterdir()}
    assert pictures.keys() == {"loss.svg", "errors.svg", "lr.svg"}
    assert all(data.startswith(b"<?xml") and b"<script" not in data for data in pictures.values())
    assert b"letters 50.0 %" in pictures["errors.svg"]
    draw(run, ROWS, "quran")
    assert {path.name: path.read_bytes() for path in run.plots.iterdir()} == pictures
    draw(run, ROWS[:2], "quran")
    assert (run.plots / "loss.svg").read_bytes() != pictures["loss.svg"]


def test_a_run_without_a_validation_has_empty_curves(run: RunDir) -> None:
    draw(run, [], "quran")
    assert len(list(run.plots.iterdir())) == 3


def test_curves_are_drawn_after_a_validation_and_at_the_end(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, str]] = []
    monkeypatch.setattr("train.plots.draw", lambda run, rows, title: drawn.append((len(rows), title)))
    log(run, STARTED, TRAINED)
    view = Plots(run, pytest.fail)
    for event in (STARTED, TRAINED, EVALUATED, TRAINED, Finished(step=100, planned=100)):
        view(event)
    assert drawn == [(1, run.name)] * 2


def test_curves_of_the_sample_say_that_its_speech_is_synthetic(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr("train.plots.draw", lambda run, rows, title: titles.append(title))
    view = Plots(run, pytest.fail)
    view(replace(STARTED, facts={"synthetic": True}))
    view(EVALUATED)
    assert titles == [f"{run.name}, synthetic speech"]


def test_without_the_plotting_library_there_are_no_curves_and_nothing_else_changes(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "train.plots", None)
    said: list[str] = []
    view = Plots(run, said.append)
    view(EVALUATED)
    view(EVALUATED)
    assert len(said) == 1
    assert said[0].startswith("no curves: ")
    assert not run.plots.exists()
