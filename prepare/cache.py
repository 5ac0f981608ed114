"""What preparation remembers, so that nothing is decoded or composed twice. Losing it costs time, never a result."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.pack import SUFFIX
from core.run_dir import TEMPORARY, read_json, replacing, write_json
from prepare.clip import Clip, Rejected

#: Part of every key: a release that decodes or composes differently counts it up, and old memories mean nothing.
VERSION = 1
_ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A clip whose audio was decoded: SHA-256 of the int16 samples, their number at 16 kHz, and the loudest one.

    ``audio`` and ``offset`` are a manifest row's.
    """

    clip: Clip
    digest: str
    samples: int
    peak: int
    audio: str
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    """What a file decoded to when it had this size and mtime; ``reason`` if it did not. ``pack``: where samples lie."""

    path: str
    size: int
    mtime_ns: int
    digest: str = ""
    samples: int = 0
    peak: int = 0
    reason: str | None = None
    pack: str | None = None
    offset: int = 0


class Files:
    """The facts of files, by path: a JSON line each, appended as they come, so that a kill loses little."""

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, FileFact] = {}
        self._lines = 0
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        for line in lines:
            fact = _parsed(line)
            if fact is not None:
                self._known[fact.path] = fact
                self._lines += 1

    def get(self, path: str, size: int, mtime_ns: int) -> FileFact | None:
        """The fact, if the file is still the same by size and time."""
        fact = self._known.get(path)
        return fact if fact is not None and (fact.size, fact.mtime_ns) == (size, mtime_ns) else None

    def add(self, facts: Iterable[FileFact]) -> None:
        """Remember, on the disk too."""
        new = [fact for fact in facts if self._known.get(fact.path) != fact]
        if not new:
            return
        self._known.update((fact.path, fact) for fact in new)
        self._lines += len(new)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            # a kill may have left half a line
            file.write(("\n" + "".join(_line(fact) for fact in new)).encode())

    def compact(self) -> None:
        """Drop lines that newer ones replaced, once they are the larger part."""
        if self._lines > 2 * len(self._known):
            with replacing(self.path) as file:
                file.writelines(_line(fact).encode() for fact in self._known.values())
            self._lines = len(self._known)


@dataclass(frozen=True)
class Cache:
    """The project's memory of preparation, and the packs it speaks of."""

    folder: Path
    packs: Path

    def run(self, name: str) -> dict[str, Any]:
        """What the last whole preparation of a run remembered; {} if there was none."""
        record = read_json(self.folder / "runs" / f"{name}.json")
        return record if isinstance(record, dict) else {}

    def keep_run(self, name: str, record: dict[str, Any]) -> None:
        write_json(self.folder / "runs" / f"{name}.json", record)

    def files(self, source: str) -> Files:
        """Facts of all files that sources of a kind read, whichever manifest and run names them."""
        return Files(self.folder / "files" / f"v{VERSION}-{source}.jsonl")

    def shard(self, fingerprint: str) -> list[Heard | Rejected] | None:
        """The clips of a shard made before, if its packs are all there."""
        record = read_json(self._shard_file(fingerprint))
        if not isinstance(record, dict) or not self.has(record.get("packs", {})):
            return None
        items = [_item(values) for values in record.get("items", [])]
        known = [item for item in items if item is not None]
        return known if known and len(known) == len(items) else None

    def keep_shard(self, fingerprint: str, items: list[Heard | Rejected]) -> None:
        names = {pack_name(item.audio) for item in items if isinstance(item, Heard)}
        packs = {name: self.pack_bytes(name) for name in sorted(names)}
        write_json(self._shard_file(fingerprint), {"packs": packs, "items": [_plain(i) for i in items]}, indent=None)

    def has(self, packs: dict[str, int]) -> bool:
        """Whether these packs (name -> bytes) lie there whole; their names are their content."""
        return all(self.pack_bytes(name) == size for name, size in packs.items())

    def pack_bytes(self, name: str) -> int:
        """Size of a pack, -1 if it is not there."""
        try:
            return (self.packs / name).stat().st_size
        except OSError:
            return -1

    def sweep_packs(self, now: float) -> None:
        """Remove what killed writers left among the packs a day before ``now`` (seconds since 1970) or earlier.

        Packs are shared and only runs are locked: a younger one may be another run's that is being written.
        """
        for path in self.packs.glob(f".*{TEMPORARY}"):
            # the other run renames and removes its own while we look
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < now - _ABANDONED_SECONDS:
                    path.unlink()

    def _shard_file(self, fingerprint: str) -> Path:
        return self.folder / "shards" / f"v{VERSION}-{fingerprint}.json"


def pack_name(audio: str) -> str:
    """The file name of the pack that a row's ``audio`` means."""
    name = audio.rsplit("/", 1)[-1]
    assert name.endswith(SUFFIX), audio
    return name


def _parsed(line: str) -> FileFact | None:
    try:
        return FileFact(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _line(fact: FileFact) -> str:
    return json.dumps(asdict(fact), ensure_ascii=False) + "\n"


def _plain(item: Heard | Rejected) -> dict[str, Any]:
    if isinstance(item, Rejected):
        return asdict(item)
    clip = {name: value for name, value in asdict(item.clip).items() if value is not None}
    return {**asdict(item), "clip": clip}


def _item(values: Any) -> Heard | Rejected | None:
    try:
        if "clip" not in values:
            return Rejected(**values)
        return Heard(**{**values, "clip": Clip(**values["clip"])})
    except (TypeError, AssertionError):
        return None
