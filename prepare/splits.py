"""Who is held out: whole readers, so that a score is about voices the model never heard. A hash of the name decides,
so a reader who joins moves nobody else."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from core.errors import DataError
from core.manifest import SPLITS, Row
from core.speech.config import SplitSection
from core.speech.text import TextMode
from prepare.checks import Kept

_AUDIO_SUFFIX = re.compile(r"\.(wav|mp3|flac|ogg|opus|m4a)$", re.IGNORECASE)
#: from how many readers on an empty valid or test is filled although the hash chose nobody
_ENOUGH = 3


@dataclass(frozen=True)
class Splits:
    """Rows by split, rows left out because their verse is unseen_verse's, and what a person should know."""

    rows: dict[str, tuple[Row, ...]]
    left_out: int = 0
    notes: tuple[str, ...] = field(default=())


def reader_key(row: Row) -> str | None:
    """One person under small differences of spelling; None for a row without a reader."""
    name = " ".join(unicodedata.normalize("NFC", row.reciter or "").split()).casefold()
    return name or None


def recording_key(row: Row) -> str:
    """One recording, whatever format it was copied to."""
    return f"{row.source}/{_AUDIO_SUFFIX.sub('', row.name)}"


def verse_key(text: str, mode: TextMode) -> str:
    """Equal for texts that are the same verse to a listener: their skeletons, or their letters without spaces."""
    bare = text.replace(" ", "")
    return (mode.skeleton(text) or bare) if mode.skeleton else bare


def fraction(key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:13], 16) / 16**13


def split_of(key: str, config: SplitSection) -> str:
    """test, valid or train for a name, by its hash against the shares."""
    place = fraction(key)
    if place < config.test_share:
        return "test"
    return "valid" if place < config.test_share + config.valid_share else "train"


def assign(kept: Sequence[Kept], config: SplitSection, mode: TextMode) -> Splits:
    """Each row's split: what its source dictates, else its reader's, else its recording's.

    Raises DataError when a reader named in the configuration is nowhere in the data, or named twice.
    """
    free = [each.row for each in kept if each.split is None]
    readers = sorted({key for row in free if (key := reader_key(row))})
    of_reader = _named(config, {key for each in kept if (key := reader_key(each.row))})
    named = set(of_reader)
    of_reader.update((key, split_of(f"reader:{key}", config)) for key in readers if key not in named)
    of_recording = {
        key: split_of(f"recording:{key}", config) for row in free if not reader_key(row) and (key := recording_key(row))
    }
    dictated = {each.split for each in kept if each.split is not None}
    notes = _fill_empty(of_reader, readers, free, named, dictated | set(of_recording.values()), config)

    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    left_out = 0
    for each in kept:
        key = reader_key(each.row)
        split = each.split or (of_reader[key] if key else of_recording[recording_key(each.row)])
        if config.unseen_verse_share and _is_unseen(each.row, config, mode):
            if split != "test":
                left_out += 1
                continue
            split = "unseen_verse"
        rows[split].append(each.row)
    ordered = {split: tuple(sorted(rows[split], key=lambda row: (row.name, row.id))) for split in SPLITS}
    return Splits(ordered, left_out, tuple(notes))


def _is_unseen(row: Row, config: SplitSection, mode: TextMode) -> bool:
    return fraction(f"verse:{verse_key(row.text, mode)}") < config.unseen_verse_share


def _named(config: SplitSection, known: Collection[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for split, names in (("valid", config.valid), ("test", config.test)):
        for name in names:
            key = " ".join(unicodedata.normalize("NFC", name).split()).casefold()
            if named.setdefault(key, split) != split:
                raise DataError(f"data.split: {name!r} is named in valid and in test; a reader is held out for one")
            if key not in known:
                readers = ", ".join(sorted(known)) or "none of the rows names one"
                raise DataError(f"data.split.{split}: no clip is read by {name!r}; readers in the data: {readers}")
    return named


def _fill_empty(
    of_reader: dict[str, str],
    readers: list[str],
    rows: list[Row],
    named: set[str],
    taken: set[str],
    config: SplitSection,
) -> list[str]:
    """Give an empty test or valid the reader with the smallest hash, then the same among Warsh readers."""
    notes = []
    warsh = sorted({key for row in rows if row.riwaya == "warsh" and (key := reader_key(row))})
    for pool, others, what in ((readers, taken, "reader"), (warsh, set(), "Warsh reader")):
        for split, share in (("test", config.test_share), ("valid", config.valid_share)):
            if share == 0 or len(pool) < _ENOUGH or split in others | {of_reader[key] for key in pool}:
                continue
            movable = [key for key in pool if of_reader[key] == "train" and key not in named]
            if len(movable) < 2:  # somebody has to be left to train on
                continue
            chosen = min(movable, key=lambda key: fraction(f"reader:{key}"))
            of_reader[chosen] = split
            notes.append(f"{chosen} moved from train to {split}: by the shares alone no {what} would be in {split}.")
    return notes


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that stands in two splits and must not."""

    kind: str
    what: str
    splits: tuple[str, ...]


def leaks(rows: dict[str, tuple[Row, ...]], dictated: Collection[str], mode: TextMode) -> list[Leak]:
    """Readers, audio, recordings and unseen verses that stand on both sides of a split.

    dictated: ids of rows whose source says who is held out. Such a source may validate on its training readers (it
    says so), never test on them. unseen_verse is test's readers on verses of its own.
    """
    found = [
        *_shared("reader", rows, reader_key, dictated),
        *_shared("audio", rows, lambda row: row.digest),
        *_shared("recording", rows, recording_key),
    ]
    unseen = {verse_key(row.text, mode) for row in rows["unseen_verse"]}
    for split in ("train", "valid"):
        heard = (row.text for row in rows[split] if verse_key(row.text, mode) in unseen)
        found += [Leak("verse", text, (split, "unseen_verse")) for text in heard]
    return found


def _shared(
    kind: str,
    rows: dict[str, tuple[Row, ...]],
    key_of: Callable[[Row], str | None],
    dictated: Collection[str] = (),
) -> Iterable[Leak]:
    places: dict[str, dict[str, list[str]]] = {}
    for split, some in rows.items():
        for row in some:
            key = key_of(row)
            if key:
                places.setdefault(key, {}).setdefault(split, []).append(row.id)
    for key, by_split in sorted(places.items()):
        splits = set(by_split)
        ours = {"test", "unseen_verse"} if kind == "reader" else set()
        allowed = splits <= ours or len(splits) < 2
        if kind == "reader" and splits == {"train", "valid"}:
            allowed = all(row_id in dictated for ids in by_split.values() for row_id in ids)
        if not allowed:
            yield Leak(kind, key, tuple(split for split in SPLITS if split in splits))
