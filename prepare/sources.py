"""Which class reads which kind of source: a new corpus is one file, one configuration section, one entry here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepare.clip import SourceReader


def _sample(config: Any, root: Path, where: str) -> SourceReader:
    from prepare.sample import SampleReader

    return SampleReader(config, root)


def _digits(config: Any, root: Path, where: str) -> SourceReader:
    from prepare.digits import DigitsReader

    return DigitsReader(config, root, where)


def _nemo(config: Any, root: Path, where: str) -> SourceReader:
    from prepare.nemo import NemoReader

    return NemoReader(config, root, where)


#: kind -> (its section, the project's root, its key in the configuration) -> reader
SOURCES: dict[str, Callable[[Any, Path, str], SourceReader]] = {"sample": _sample, "digits": _digits, "nemo": _nemo}
