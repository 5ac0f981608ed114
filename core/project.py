"""From the name that a person types to a run: which file, which recipe, and what to say when there is none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.run_dir import RunDir, known_runs

if TYPE_CHECKING:
    from core.speech.config import SpeechRun

NAME = re.compile(r"[^\W_][\w-]*")
#: Folders of ``runs/`` that are no run.
RESERVED = ("archive", "history")


def named_run(root: Path, name: str) -> RunDir:
    """The run of that name, whether or not it exists. Raises ConfigError for a name that could leave ``runs/``."""
    if not NAME.fullmatch(name) or name.casefold() in RESERVED:
        raise ConfigError(
            f"run {name!r}",
            [f"no name for a run; letters, digits, - and _ only, none of {', '.join(RESERVED)}"],
            _known(root, name),
        )
    return RunDir(root, name)


def known_run(root: Path, name: str) -> RunDir:
    """The run of that name, which has a configuration or a directory. Raises ConfigError listing the known ones."""
    run = named_run(root, name)
    if not run.config_file.is_file() and not run.path.is_dir():
        raise ConfigError(f"run {name!r}", [f"there is no {run.config_file}"], _known(root, name))
    return run


def _known(root: Path, name: str) -> str:
    known = known_runs(root)
    if not known:
        return f"{root / 'configs'} holds no configuration yet"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"known runs: {', '.join(known)}{hint}"


def read_run(root: Path, name: str, overrides: Sequence[str] = ()) -> tuple[RunDir, SpeechRun]:
    """A run and its checked configuration, ``a.b=c`` overrides on top.

    The file's name decides where things lie; the field ``name`` is what people read, and is not taken over
    from a file that this one extends. Raises ConfigError with every problem.
    """
    from core.config import build, read_fields, read_yaml
    from core.speech.config import SpeechRun

    recipes = {"speech": SpeechRun}
    run = named_run(root, name)
    if not run.config_file.is_file():
        raise ConfigError(f"run {name!r}", [f"there is no {run.config_file}"], _known(root, name))
    fields = read_fields(run.config_file, tuple(overrides))
    if not any(override.partition("=")[0].strip() == "name" for override in overrides):
        fields["name"] = read_yaml(run.config_file).get("name") or name
    recipe = fields.get("recipe", "speech")
    if not isinstance(recipe, str) or recipe not in recipes:
        raise ConfigError(str(run.config_file), [f"recipe: {recipe!r}; known: {', '.join(recipes)}"])
    return run, build(recipes[recipe], fields, str(run.config_file))
