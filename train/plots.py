"""Curves of a run from log.csv, as SVG pictures that need no script to be looked at."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from core.run_dir import RunDir, write_text
from train.views import Rows, series

# the same numbers give the same bytes
matplotlib.rcParams["svg.hashsalt"] = "layl"
matplotlib.rcParams["svg.fonttype"] = "none"

BLUE, ORANGE, GREEN, GREY = "#2f6fb5", "#c7641d", "#3a8f5c", "#666666"


def _loss(axes: Axes, rows: Rows) -> None:
    axes.plot(*series(rows, "loss"), color=BLUE, linewidth=1.2)
    axes.set_ylabel("CTC loss per letter")
    axes.set_ylim(bottom=0)


def _errors(axes: Axes, rows: Rows) -> None:
    for column, name, colour in (
        ("valid_cer", "letters", BLUE),
        ("valid_wer", "words", ORANGE),
        ("valid_skeleton", "skeleton", GREEN),
    ):
        steps, values = series(rows, column, 100)
        if steps:
            axes.plot(
                steps, values, color=colour, marker="o", markersize=3, linewidth=1.2, label=f"{name} {values[-1]:.1f} %"
            )
    axes.set_ylabel("errors on validation, %")
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def _rate(axes: Axes, rows: Rows) -> None:
    axes.plot(*series(rows, "lr"), color=GREY, linewidth=1.2)
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)


PICTURES: dict[str, Callable[[Axes, Rows], None]] = {"loss": _loss, "errors": _errors, "lr": _rate}


def draw(run: RunDir, rows: Rows, title: str) -> None:
    """Write ``plots/loss.svg``, ``plots/errors.svg`` and ``plots/lr.svg`` of the run."""
    for name, paint in PICTURES.items():
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        paint(axes, rows)
        axes.set_xlabel("step")
        axes.set_title(title, loc="left", fontsize=9, color=GREY)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        write_text(run.plots / f"{name}.svg", text.getvalue())
