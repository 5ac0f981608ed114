"""``layl transcribe``: listens to files with the model that is shipped, never with a checkpoint."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from core.errors import DataError, LaylError

if TYPE_CHECKING:
    from export.client import Recogniser, SherpaRecogniser


class Client(StrEnum):
    """Which program runs the model."""

    onnx = "onnx"
    sherpa = "sherpa"


def transcribe(
    files: list[Path] = typer.Argument(..., metavar="FILE...", help="Recordings: wav, flac, mp3 or ogg, any rate."),
    run: str = typer.Option("quran", "--run", help="Whose exported model listens."),
    client: Client = typer.Option(Client.onnx, "--client", help="What runs the model; sherpa is what phones use."),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON list of {file, text} or {file, error}."),
) -> None:
    """Write down what recordings say.

    An exported model listens, never a checkpoint. One line a file. A file that cannot be read is
    said on stderr, the others are still transcribed, and the exit code is 65.

    \b
      layl transcribe fatiha.wav
      layl transcribe recordings/*.mp3 --run quran --json
    """
    from core.project import known_run
    from core.run_dir import find_root
    from core.speech.audio import AudioError, decode

    models = known_run(find_root(), run).models
    if not models.is_dir():
        raise DataError(f"{models} does not exist: run {run} has no exported model yet; `layl export {run}` makes it")
    recogniser = _recogniser(client, models)
    results: list[dict[str, str]] = []
    for file in files:
        try:
            results.append({"file": str(file), "text": recogniser.transcribe(decode(file))})
        except AudioError as error:
            results.append({"file": str(file), "error": str(error).removeprefix(f"{file}: ")})
        if not as_json:
            _print(results[-1], alone=len(files) == 1)
    if as_json:
        typer.echo(json.dumps(results, ensure_ascii=False, indent=1))
    if any("error" in result for result in results):
        raise typer.Exit(DataError.exit_code)


def _recogniser(client: Client, models: Path) -> Recogniser | SherpaRecogniser:
    from export.client import Recogniser, SherpaRecogniser

    kinds = {Client.onnx: Recogniser, Client.sherpa: SherpaRecogniser}
    try:
        return kinds[client](models)
    except ModuleNotFoundError as error:
        if error.name == "sherpa_onnx":
            raise LaylError("--client sherpa needs `pip install sherpa-onnx`; --client onnx does not") from None
        raise


def _print(result: dict[str, str], *, alone: bool) -> None:
    if "error" in result:
        typer.echo(f"{result['file']}: {result['error']}", err=True)
    else:
        typer.echo(result["text"] if alone else f"{result['file']}: {result['text']}")
