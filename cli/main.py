"""The commands of ``layl``, and what becomes of errors: those meant for people are printed without a traceback."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from cli.export import export
from cli.prepare import prepare
from cli.reset import reset
from cli.status import status
from cli.stop import stop
from cli.train import train
from cli.transcribe import transcribe
from core.errors import LaylError

INTERRUPTED = 130


class ErrorsForPeople(TyperGroup):
    """Ends with the exit code of a LaylError and its message on stderr; any other error keeps its traceback."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except LaylError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("\ninterrupted; what was complete before stays as it was", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=ErrorsForPeople,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"layl {version('layl')}")
    except PackageNotFoundError:
        typer.echo("layl (a checkout that is not installed)")
    raise typer.Exit


@app.callback()
def layl(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Train small models in nightly sessions on one machine, and ship them.

    A run is one configuration, configs/RUN.yaml. It goes through three stages:

    \b
      layl prepare quran    raw recordings -> manifests
      layl train quran      manifests -> checkpoints; stop it whenever you like,
                            the same command goes on exactly there
      layl export quran     checkpoints -> the model that phones run

    `layl COMMAND --help` explains a command.
    """


app.command()(prepare)
app.command()(train)
app.command()(stop)
app.command()(status)
app.command()(export)
app.command()(transcribe)
app.command()(reset)
