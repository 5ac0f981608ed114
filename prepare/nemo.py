"""A JSON-lines manifest: one row a clip with ``audio`` and ``text``, as NeMo and the tools around it write it.

A last line that a crash cut off is dropped and said; a line that is no JSON anywhere else stops preparation. What a
row says of its duration is not believed: durations come from decoded samples.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

from core.errors import DataError
from core.speech.config import Group, NemoSource
from prepare.clip import Clip, Rejected

_AUDIO = ("audio", "audio_filepath", "path")
_READER = ("reciter", "speaker")


class NemoReader:
    """The nemo source. ``where`` names it in the configuration, for messages.

    Audio paths are relative to ``config.root``, else to the manifest's folder, and must stay inside it as they are
    spelled; a link inside the folder may lead anywhere (DVC and annex link that way).
    """

    def __init__(self, config: NemoSource, root: Path, where: str = "data.sources[0]"):
        self.config = config
        self.manifest = root / config.manifest
        spelled = config.root if config.root is not None else os.path.dirname(config.manifest)
        #: as the configuration spells it, relative to the project's root where it lies inside
        self.folder = _spelled(spelled, root)
        self.root = root
        self._base = os.path.normpath(os.path.join(os.path.abspath(root), self.folder))
        self.where = where

    def fingerprint(self) -> str:
        stat = self._checked_manifest()
        seen = hashlib.sha256(json.dumps([str(self.folder), stat.st_size, stat.st_mtime_ns]).encode())
        for item in self._items:
            if isinstance(item, Clip) and item.audio is not None:
                seen.update(f"{item.audio}\0{_state(os.path.join(self.root, item.audio))}\n".encode())
        return seen.hexdigest()[:32]

    def clips(self) -> Iterator[Clip | Rejected]:
        self._checked_manifest()
        yield from self._items

    def _checked_manifest(self) -> os.stat_result:
        try:
            stat = self.manifest.stat()
        except OSError:
            raise DataError(
                f"{self.where}.manifest: {self.manifest} does not exist; expected a JSON-lines file, one row a clip "
                'like {"audio": "a.wav", "text": "..."}; correct the path (relative ones begin at the project)'
            ) from None
        if not (self.root / self.folder).is_dir():
            raise DataError(
                f"{self.where}.root: {self.root / self.folder} does not exist; expected the folder that the audio "
                f"paths of {self.manifest.name} are relative to"
            )
        return stat

    @cached_property
    def _items(self) -> list[Clip | Rejected]:
        # split as bytes: a line cut inside a letter is a torn line, not a file in another encoding
        lines = self.manifest.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        items: list[Clip | Rejected] = []
        for position, (number, line) in enumerate(numbered):
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError as error:
                if position < len(numbered) - 1:
                    raise DataError(
                        f"{self.manifest}:{number}: not JSON ({error}); only the last line may be torn. "
                        "Correct or remove the line"
                    ) from None
                items.append(Rejected(f"{self.manifest.name}:{number}", "torn_line"))
                continue
            items.append(self._item(row, f"{self.manifest.name}:{number}"))
        return items

    def _item(self, row: Any, line: str) -> Clip | Rejected:
        audio = _first(row, _AUDIO) if isinstance(row, dict) else None
        if not isinstance(audio, str) or not audio:
            return Rejected(line, "malformed_row")
        try:
            facts = _facts(row, self.config.group)
        except (TypeError, ValueError):
            return Rejected(audio, "malformed_row")
        if row.get("offset"):
            return Rejected(audio, "offset_unsupported")
        name = self._inside(audio)
        if name is None:
            return Rejected(audio, "outside_root")
        return Clip(name=name, audio=self.folder / name, **{"source": self.manifest.stem, **facts})

    def _inside(self, audio: str) -> str | None:
        """The path relative to the source's folder, or None if it is spelled to leave it."""
        if "\0" in audio:
            return None
        path = os.path.normpath(os.path.join(self._base, audio))
        if path == self._base or not _within(self._base, path):
            return None
        return _as_on_disk(path)[len(self._base) :].lstrip(os.sep).replace(os.sep, "/")


def _as_on_disk(path: str) -> str:
    """The path in whichever Unicode form the disk has it: systems disagree on how é or آ is stored."""
    if path.isascii() or os.path.exists(path):
        return path
    forms = (unicodedata.normalize("NFC", path), unicodedata.normalize("NFD", path))
    return next((form for form in forms if os.path.exists(form)), path)


def _spelled(folder: str, root: Path) -> Path:
    absolute, base = os.path.normpath(os.path.join(os.path.abspath(root), folder)), os.path.abspath(root)
    return Path(os.path.relpath(absolute, base) if os.path.isabs(folder) and _within(base, absolute) else folder)


def _within(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _state(path: str) -> str:
    try:
        stat = os.stat(path)
    except OSError:
        return "missing"
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _facts(row: dict[str, Any], group: Group) -> dict[str, Any]:
    """A Clip's fields out of a row; absent ones are left to their defaults. Raises ValueError, TypeError."""
    facts: dict[str, Any] = {"text": _text(row.get("text")) or "", "group": row.get("group") or group}
    if facts["group"] not in get_args(Group):
        raise ValueError(facts["group"])
    for name, keys in (("reciter", _READER), ("riwaya", ("riwaya",)), ("source", ("source",))):
        value = _text(_first(row, keys))
        if value:
            facts[name] = value
    for name in ("sura", "aya"):
        if row.get(name) is not None:
            facts[name] = _number(row[name])
    return facts


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str | int):
        raise TypeError(value)
    return "" if value is None else str(value).strip()


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    return int(cast("int | str", value))
