"""Whom and what a run has trained on: hashes of readers and recordings, small enough for every checkpoint.

A reader who moves from training into validation or test makes their scores worthless without a trace in the data
that is there now; only the run itself can remember.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from core.manifest import Manifest, Row

#: More names than these are counted, not told.
MOST_NAMED = 10


def reader_key(row: Row) -> str | None:
    """One person under small differences of spelling; None for a row without a reader."""
    return person(row.reciter or "") or None


def person(name: str) -> str:
    """A reader's name as it is compared: composed, in one case, single spaces."""
    return " ".join(unicodedata.normalize("NFC", name).split()).casefold()


def origins_of(rows: Iterable[Row]) -> np.ndarray:
    """Sorted hashes (int64) of the readers of ``rows`` and of their recordings, by sound and not by name."""
    hashes = {value for row in rows for value, _ in _origins(row)}
    return np.array(sorted(hashes), dtype=np.int64)


def held_out_origins(splits: Mapping[str, Manifest]) -> dict[int, str]:
    """Hash -> name of who and what is held out and not in training too.

    A reader who stands on both sides does so on purpose, or preparation has warned of it.
    """
    trained = set(origins_of(splits["train"].rows).tolist())
    held = (row for split in ("valid", "test") for row in splits[split].rows)
    return {value: name for row in held for value, name in _origins(row) if value not in trained}


def names_of(seen: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(seen) - MOST_NAMED
    return ", ".join(seen[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _origins(row: Row) -> list[tuple[int, str]]:
    found = [(_hash(f"recording\x1f{row.digest}"), f"clip {row.name}")]
    if (reader := reader_key(row)) is not None:
        found.append((_hash(f"reader\x1f{reader}"), f"reader {reader}"))
    return found


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
