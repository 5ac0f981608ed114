"""Where a command works: the project's root, the named run, and the arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from core.run_dir import RunDir, find_root

if TYPE_CHECKING:
    from core.speech.config import SpeechRun


class Frontend(StrEnum):
    """Who asks."""

    shell = "shell"
    dvc = "dvc"


RUN = typer.Argument(..., metavar="RUN", help="The run: the name of a file in configs/, without .yaml.")
SET = typer.Option([], "--set", metavar="FIELD=VALUE", help="Change a field for once, e.g. train.epochs=3. Repeatable.")

FRONTEND = typer.Option(
    Frontend.shell, "--frontend", help="Who asks: dvc in a DVC stage, where other rules hold and sessions end with DVC."
)


def open_run(name: str, overrides: list[str]) -> tuple[RunDir, SpeechRun]:
    """The run of that name and its configuration; says which project it is if not the current folder."""
    from core.project import read_run

    root = find_root()
    say_root(root)
    return read_run(root, name, overrides)


def say_root(root: Path) -> None:
    """One line on stderr when the project is not where the person stands."""
    if root != Path.cwd().resolve():
        typer.echo(f"project: {root}", err=True)
