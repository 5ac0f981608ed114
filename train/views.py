"""What people and tools read of a run: status.json, log.csv and the curves, each a view of the events.

A ``Started`` at step n retracts what an earlier session wrote beyond n, so no chart shows a step twice.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from core.events import Evaluated, Event, Finished, Started, Trained
from core.run_dir import Lines, RunDir, write_json, write_text
from core.status import Status, rounded, status_json, step_status

COLUMNS: tuple[str, ...] = (
    "step", "epoch", "loss", "lr", "valid_cer", "valid_wer", "hours_seen", "elapsed_min", "grad_norm", "gpu_peak_gb",
    "audio_h_per_h", "valid_skeleton", "valid_hafs_cer", "valid_warsh_cer",
)  # fmt: skip


#: A cell that ends a torn row: a number that lost its last digits is a number, too.
TORN = "torn"

Rows = Sequence[Mapping[str, str]]


class StatusFile:
    """Keeps status.json: at once for what changes the phase, else at most once in ``every_seconds``."""

    def __init__(self, run: RunDir, status: Status, clock: Callable[[], float], every_seconds: float = 1.0):
        self._run = run
        self.status = status
        self._clock = clock
        self._every = every_seconds
        self._written = 0.0

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self.status = step_status(self.status, event, now)
        if not isinstance(event, Trained) or now - self._written >= self._every:
            self._written = now
            write_json(self._run.status, status_json(self._run.name, self.status))


class LogCsv:
    """Keeps log.csv: training lines and validations as separate rows, cells of the other kind blank."""

    def __init__(self, run: RunDir):
        self._run = run

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._retract(event.step)
        elif isinstance(event, Trained):
            self._append(training_cells(event))
        elif isinstance(event, Evaluated):
            self._append(validation_cells(event))

    def _append(self, cells: dict[str, Any]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, COLUMNS, lineterminator="\n").writerow(cells)
        with closing(Lines(self._run.log_csv, torn=f",{TORN}")) as lines:
            lines.write(line.getvalue())

    def _retract(self, step: int) -> None:
        kept = [row for row in read_log(self._run) if int(row["step"]) <= step]
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        write_text(self._run.log_csv, text.getvalue())


def read_log(run: RunDir) -> list[dict[str, str]]:
    """The whole rows of log.csv; a row that a kill tore is left out."""
    try:
        text = run.log_csv.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole, _, _ = text.rpartition("\n")
    return [row for row in csv.DictReader(whole.splitlines()) if _is_whole(row)]


def _is_whole(row: dict[Any, Any]) -> bool:
    """Whether a row has all its cells: what a kill or a full disk tore has fewer, or its end is marked."""
    return None not in row and None not in row.values() and TORN not in row.values() and row["step"].isdigit()


def series(rows: Rows, column: str, factor: float = 1.0) -> tuple[list[int], list[float]]:
    """Steps and values of a column, rows without it left out."""
    pairs = [(int(row["step"]), float(row[column]) * factor) for row in rows if row.get(column)]
    return [step for step, _ in pairs], [value for _, value in pairs]


def training_cells(event: Trained) -> dict[str, Any]:
    peak = None if event.gpu_peak_bytes is None else event.gpu_peak_bytes / 2**30
    return {
        "step": event.step,
        "epoch": event.epoch,
        "loss": _cell(event.loss, 4),
        "lr": f"{event.lr:.4g}",
        "hours_seen": f"{event.units_seen / 3600:.2f}",
        "elapsed_min": f"{event.elapsed_seconds / 60:.1f}",
        "grad_norm": _cell(event.grad_norm, 3),
        "gpu_peak_gb": _cell(peak, 2),
        "audio_h_per_h": _cell(event.units_per_second, 0),
    }


def validation_cells(event: Evaluated) -> dict[str, Any]:
    scores = event.scores
    return {
        "step": event.step,
        "epoch": event.epoch,
        "hours_seen": f"{event.units_seen / 3600:.2f}",
        "elapsed_min": f"{event.elapsed_seconds / 60:.1f}",
        **{f"valid_{name}": _cell(scores.get(name), 5) for name in ("cer", "wer", "skeleton", "hafs_cer", "warsh_cer")},
    }


def _cell(value: float | None, digits: int) -> str:
    rounded_value = rounded(value, digits)
    return "" if rounded_value is None else f"{rounded_value:.{digits}f}"


class Plots:
    """Draws the curves as SVG after a validation and at the end. Without matplotlib there are none."""

    def __init__(self, run: RunDir, warn: Callable[[str], None]):
        self._run = run
        self._warn = warn
        self._usable = True
        self._title = run.name

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started) and event.facts.get("synthetic"):
            self._title = f"{self._run.name}, synthetic speech"
        if not self._usable or not isinstance(event, Evaluated | Finished):
            return
        try:
            from train.plots import draw
        except ImportError as error:
            self._usable = False
            self._warn(f"no curves: {error}")
            return
        draw(self._run, read_log(self._run), self._title)
