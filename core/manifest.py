"""Manifests: the rows of a split in order, the identity of what they say, and how they are published and read.

A manifest folder holds ``train``, ``valid``, ``test`` and ``unseen_verse.jsonl``, ``tokens.txt``, ``audit.md``
and, written last, ``manifest.meta.json`` with the SHA-256 of each other file: a reader whose digests disagree
has met a writer at work, or damage.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from core.errors import DataError
from core.run_dir import json_bytes, read_json, replacing

SCHEMA = 1
META = "manifest.meta.json"
SPLITS = ("train", "valid", "test", "unseen_verse")
SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One clip. ``audio`` is a path relative to the project's root; with ``offset`` it is a pack and a first sample."""

    id: str
    name: str
    audio: str
    digest: str
    duration: float
    text: str
    source: str
    group: str
    offset: int | None = None
    riwaya: str | None = None
    reciter: str | None = None
    sura: int | None = None
    aya: int | None = None

    @property
    def samples(self) -> int:
        """Length in samples at 16 kHz; durations keep six decimals, so this is exact."""
        return round(self.duration * SAMPLE_RATE_HZ)


def row_id(digest: str, text: str, group: str) -> str:
    """Sixteen hex digits of SHA-256 over what makes a row this row and no other."""
    return hashlib.sha256("\x1f".join((digest, text, group)).encode()).hexdigest()[:16]


def data_id(rows: Iterable[Row]) -> str:
    """SHA-256 over the content that training reads, sorted by id: not over paths, order or times."""
    content = sorted((r.id, r.digest, r.text, round(r.duration * 1000), r.group, r.riwaya or "") for r in rows)
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """The rows of one split, frozen and in order."""

    split: str
    rows: tuple[Row, ...]

    @property
    def data_id(self) -> str:
        return data_id(self.rows)

    @property
    def hours(self) -> float:
        return sum(row.duration for row in self.rows) / 3600

    def __len__(self) -> int:
        return len(self.rows)


def manifest_text(rows: Iterable[Row]) -> str:
    """JSON lines, one row each, fields in a fixed order, missing ones as null."""
    return "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)


def parse_manifest(text: str, where: str) -> tuple[Row, ...]:
    """The rows of a published manifest. Raises DataError naming file and line."""
    names = {f.name for f in fields(Row)}
    rows = []
    # not splitlines: JSON leaves U+2028 and U+0085 as they are
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        try:
            values = json.loads(line)
            rows.append(Row(**{k: v for k, v in values.items() if k in names}))
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{where}:{number}: not a manifest row ({error}); run `layl prepare` again") from None
    return tuple(rows)


def publish(folder: Path, files: Mapping[str, str], meta: dict[str, Any]) -> dict[str, Any]:
    """Write ``files`` (name -> text) one by one and the meta file with their digests last; returns the meta.

    Bytes are a function of the arguments alone. Files that already say the same are left alone.
    """
    digests = {}
    for name, text in sorted(files.items()):
        data = text.encode("utf-8", "backslashreplace")
        digests[name] = hashlib.sha256(data).hexdigest()
        _write_changed(folder / name, data)
    full = {"schema": SCHEMA, **meta, "files": digests}
    _write_changed(folder / META, json_bytes(full))
    for stale in set(p.name for p in folder.glob("*") if p.is_file()) - set(files) - {META}:
        if not stale.startswith("."):
            (folder / stale).unlink()
    return full


def _write_changed(path: Path, data: bytes) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    with replacing(path) as file:
        file.write(data)


@dataclass(frozen=True)
class Prepared:
    """A whole published manifest folder, verified."""

    folder: Path
    meta: dict[str, Any]
    splits: dict[str, Manifest]
    tokens: str

    @property
    def train(self) -> Manifest:
        return self.splits["train"]

    @property
    def valid(self) -> Manifest:
        return self.splits["valid"]


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The meta file alone (counts, ids, hours), or None."""
    meta = read_json(folder / META)
    return meta if isinstance(meta, dict) else None


def read_prepared(folder: Path, *, wait: Callable[[float], None] = time.sleep) -> Prepared:
    """All splits of a manifest folder. Digests that disagree are read again after 2 s, then a DataError."""
    problem = ""
    for attempt in range(2):
        if attempt:
            wait(2.0)
        meta = read_meta(folder)
        if meta is None:
            problem = f"{folder / META} is missing or torn"
            continue
        if meta.get("schema") != SCHEMA:
            problem = f"{folder / META} has schema {meta.get('schema')!r}, this layl reads {SCHEMA}"
            continue
        texts, problem = _verified(folder, meta.get("files"))
        if not problem:
            splits = {
                s: Manifest(s, parse_manifest(texts.get(f"{s}.jsonl", ""), str(folder / f"{s}.jsonl"))) for s in SPLITS
            }
            return Prepared(folder, meta, splits, texts.get("tokens.txt", ""))
    raise DataError(f"{problem}; run `layl prepare {folder.name}` and do not edit what it publishes")


def _verified(folder: Path, digests: Any) -> tuple[dict[str, str], str]:
    if not isinstance(digests, dict):
        return {}, f"{folder / META} names no files"
    texts = {}
    for name, digest in digests.items():
        try:
            data = (folder / name).read_bytes()
        except OSError:
            return {}, f"{folder / name} is missing"
        if hashlib.sha256(data).hexdigest() != digest:
            return {}, f"{folder / name} is not what {META} says it is"
        texts[name] = data.decode("utf-8")
    return texts, ""
