"""Who is held out: whole readers, so that a score is about voices the model never heard. A hash of the name decides and
whoever was placed once stays, so a reader who joins moves nobody else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from core.errors import DataError
from core.manifest import SPLITS, Row
from core.seen import person, reader_key
from core.speech.config import SplitSection
from core.speech.text import TextMode
from prepare.checks import Kept

_AUDIO_SUFFIX = re.compile(r"\.(wav|mp3|flac|ogg|opus|m4a)$", re.IGNORECASE)
#: from how many readers on whole ones are held out, and an empty valid or test is filled although the hash chose nobody
_ENOUGH = 3
_MOST_NAMED = 10


@dataclass(frozen=True)
class Before:
    """What the run's last publication says of who was where; empty where nothing can have been trained on.

    readers, recordings: key -> split (unseen_verse counts as test; whoever stood in train and elsewhere, as train).
    named: readers held out by name. by_recording: readers whose recordings were parted. moved: what was held out
    although it had been in train.
    """

    readers: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    by_recording: frozenset[str] = frozenset()
    moved: Mapping[str, str] = field(default_factory=dict)
    could_train: bool = False

    @staticmethod
    def of(rows: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> Before:
        """From the published rows by split and the meta file's ``split``.

        Without a row in valid, now and in every publication before, training refused: nobody is bound by that.
        """
        if not (facts.get("could_train") or rows.get("valid")):
            return Before()
        readers: dict[str, str] = {}
        recordings: dict[str, str] = {}
        for split in ("unseen_verse", "test", "valid", "train"):
            place = "test" if split == "unseen_verse" else split
            recordings.update((recording_key(row), place) for row in rows.get(split, ()))
            readers.update((key, place) for row in rows.get(split, ()) if (key := reader_key(row)))
        named, by_recording = frozenset(facts.get("named", ())), frozenset(facts.get("by_recording", ()))
        return Before(readers, recordings, named, by_recording, dict(facts.get("moved", {})), could_train=True)


@dataclass(frozen=True)
class Splits:
    """Rows by split, rows left out because their verse is unseen_verse's, and what a person should know.

    named: readers held out by name. by_recording: readers who stand in several splits on purpose. moved: ``reader ann``
    or ``recording a/b`` -> the split it is held out for although it was in train before.
    """

    rows: dict[str, tuple[Row, ...]]
    left_out: int = 0
    notes: tuple[str, ...] = field(default=())
    named: frozenset[str] = frozenset()
    by_recording: frozenset[str] = frozenset()
    moved: Mapping[str, str] = field(default_factory=dict)
    could_train: bool = False


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


def assign(kept: Sequence[Kept], config: SplitSection, mode: TextMode, before: Before | None = None) -> Splits:
    """Each row's split: what its source dictates, else its reader's, else its recording's.

    A reader is where the configuration names them, else where ``before`` had them (unless by a name that others have
    replaced), else where the hash puts them.
    Assigning again with ``before`` made of the result gives the same. Raises DataError when a reader named in the
    configuration is nowhere in the data, named twice, or put elsewhere by their source.
    """
    before = before or Before()
    named = _named(config, kept)
    draft = _Draft(kept, config, named, before)
    notes = [*draft.fill(), *draft.notes()]

    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    left_out = 0
    for each in kept:
        split = each.split or draft.split(each.row)
        if config.unseen_verse_share and _is_unseen(each.row, config, mode):
            if split != "test":
                left_out += 1
                continue
            split = "unseen_verse"
        rows[split].append(each.row)
    ordered = {split: tuple(sorted(rows[split], key=lambda row: (row.name, row.id))) for split in SPLITS}
    could_train = bool(ordered["valid"]) or before.could_train
    return Splits(
        ordered, left_out, tuple(notes), frozenset(named), frozenset(draft.by_recording), draft.moved(), could_train
    )


def _is_unseen(row: Row, config: SplitSection, mode: TextMode) -> bool:
    return fraction(f"verse:{verse_key(row.text, mode)}") < config.unseen_verse_share


def _named(config: SplitSection, kept: Sequence[Kept]) -> dict[str, str]:
    known = {key for each in kept if (key := reader_key(each.row))}
    named: dict[str, str] = {}
    for split, names in (("valid", config.valid), ("test", config.test)):
        for name in names:
            key = person(name)
            if named.setdefault(key, split) != split:
                raise DataError(f"data.split: {name!r} is named in valid and in test; a reader is held out for one")
            if key not in known:
                readers = ", ".join(sorted(known)) or "none of the rows names one"
                raise DataError(f"data.split.{split}: no clip is read by {name!r}; readers in the data: {readers}")
            elsewhere = [each for each in kept if each.split not in (None, split) and reader_key(each.row) == key]
            if elsewhere:
                source, place = elsewhere[0].row.source, elsewhere[0].split
                raise DataError(
                    f"data.split.{split}: {name!r} is in {place} by the source {source}, which decides its splits "
                    f"itself; remove the name here, or hold the reader out in that source's own settings"
                )
    return named


class _Draft:
    """Places while they are found: ``readers`` are whole, ``recordings`` everybody else's, both key -> split."""

    def __init__(self, kept: Sequence[Kept], config: SplitSection, named: Mapping[str, str], before: Before) -> None:
        self.config, self.named, self.before = config, named, before
        self.free = [each.row for each in kept if each.split is None]
        self.dictated: set[str] = {each.split for each in kept if each.split is not None}
        known = sorted({key for row in self.free if (key := reader_key(row))})
        holds_out = bool(config.valid_share or config.test_share)
        self.too_few = len(known) < _ENOUGH and not named and holds_out and "valid" not in self.dictated
        self.by_recording = {key for key in known if key not in named and self._parted(key)}
        self.readers = {key: self._reader(key) for key in known if key not in self.by_recording}
        loose = sorted({recording_key(row) for row in self.free if reader_key(row) not in self.readers})
        self.recordings = {key: before.recordings.get(key) or split_of(f"recording:{key}", config) for key in loose}

    def _parted(self, reader: str) -> bool:
        """Whether each recording of a reader has a place of its own. Who was held out whole stays whole."""
        was_whole = self.before.readers.get(reader) in ("valid", "test")
        return reader in self.before.by_recording or (self.too_few and not was_whole)

    def _reader(self, key: str) -> str:
        was = self.before.readers.get(key)
        # others are named in their stead: whoever was held out by name alone is free again
        let_go = key in self.before.named and was in self.named.values()
        return self.named.get(key) or (not let_go and was) or split_of(f"reader:{key}", self.config)

    def split(self, row: Row) -> str:
        """Where a row goes that its source leaves free."""
        key = reader_key(row)
        return self.readers[key] if key in self.readers else self.recordings[recording_key(row)]

    def fill(self) -> list[str]:
        """Give an empty valid or test the reader with the smallest hash, else a recording, and then a Warsh reader.

        Who was not in train before comes first, in every way. Returns what could not be done.
        """
        notes = []
        for fresh_only in (True, False):
            for what in ("reader", "recording", "Warsh reader"):
                # valid first: training needs it
                for split in ("valid", "test"):
                    notes += self._fill(what, split, fresh_only)
        return notes

    def _fill(self, what: str, split: str, fresh_only: bool) -> list[str]:
        share = self.config.valid_share if split == "valid" else self.config.test_share
        places = self.recordings if what == "recording" else self.readers
        pool, taken = self._pool(what)
        enough = len(pool) >= _ENOUGH or what == "recording"
        if share == 0 or not enough or split in taken:
            return []
        movable = {key for key in pool if places[key] == "train" and not (places is self.readers and key in self.named)}
        if len(movable) < 2:  # somebody has to be left to train on
            return []
        kind = what.rsplit(" ")[-1]
        chosen_from = {key for key in movable if f"{kind} {key}" not in self._trained}
        # only an empty valid, without which nothing can be trained, is worth a voice that was trained on
        if not fresh_only and split == "valid" and what != "Warsh reader":
            chosen_from = chosen_from or movable
        if chosen_from:
            places[min(chosen_from, key=lambda key: (fraction(f"{kind}:{key}"), key))] = split
        elif not fresh_only:
            return [
                f"No {what} is in {split}: whoever could be was in train before, and a score on them would flatter. "
                f"To hold one out, name a reader in data.split.{split} and begin the run anew."
            ]
        return []

    def _pool(self, what: str) -> tuple[set[str], set[str]]:
        """Who may fill a split, and the splits that need none of them."""
        if what != "Warsh reader":
            both = {*self.dictated, *self.readers.values(), *self.recordings.values()}
            return set(self.recordings if what == "recording" else self.readers), both
        warsh = [row for row in self.free if row.riwaya == "warsh"]
        pool = {key for row in warsh if (key := reader_key(row)) and key in self.readers}
        return pool, {self.split(row) for row in warsh}

    @cached_property
    def _trained(self) -> set[str]:
        """``reader ann`` and ``recording a/b`` of whatever was in train before, under this name or another."""
        before = self.before
        found = {f"recording {key}" for key in self.recordings if before.recordings.get(key) == "train"}
        found |= {f"reader {key}" for key in self.readers if before.readers.get(key) == "train"}
        heard = (row for row in self.free if before.recordings.get(recording_key(row)) == "train")
        return found | {f"reader {key}" for row in heard if (key := reader_key(row)) in self.readers}

    def moved(self) -> dict[str, str]:
        """What is held out although it was in train before, now or in an earlier preparation."""
        places = {f"reader {key}": split for key, split in self.readers.items()}
        places |= {f"recording {key}": split for key, split in self.recordings.items()}
        known = {label for label, split in self.before.moved.items() if places.get(label) == split}
        return {label: places[label] for label in sorted(known | self._trained) if places[label] != "train"}

    def notes(self) -> list[str]:
        """What a person should know, from the places alone: said the same the next time."""
        notes = []
        parted = _few(sorted(self.by_recording))
        if self.by_recording and self.too_few:
            notes.append(
                f"Readers are too few to hold one out: recordings are ({parted}). Scores are about voices that were "
                "trained on, not about new ones."
            )
        elif self.by_recording:
            notes.append(
                f"Recordings are held out, not the whole reader, for {parted}: readers were too few when they came, "
                "and what was trained on is not tested on."
            )
        elif self.too_few and self.recordings:
            notes.append("No row names its reader: recordings are held out, and a voice may be on both sides.")
        for kind, places in (("reader", self.readers), ("recording", self.recordings)):
            unlike: dict[tuple[str, str], list[str]] = {}
            for key, split in sorted(places.items()):
                hashed = split_of(f"{kind}:{key}", self.config)
                if split != hashed and not (kind == "reader" and key in self.named):
                    unlike.setdefault((split, hashed), []).append(key)
            notes += [
                f"In {split}, by the shares alone in {hashed}: {kind} {_few(keys)}. An empty split takes one, and what "
                "was placed once stays (to split anew, reset the run and remove its manifests)."
                for (split, hashed), keys in sorted(unlike.items())
            ]
        return notes


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that stands in two splits and must not."""

    kind: str
    what: str
    splits: tuple[str, ...]


def leaks(
    rows: dict[str, tuple[Row, ...]], dictated: Collection[str], mode: TextMode, by_recording: Collection[str] = ()
) -> list[Leak]:
    """Readers, audio, recordings and unseen verses that stand on both sides of a split.

    dictated: ids of rows whose source says who is held out. Such a source may validate on its training readers (it
    says so), never test on them. unseen_verse is test's readers on verses of its own. by_recording: readers whose
    recordings are parted because there was nobody else; the audit says so, and it is no leak.
    """
    found = [
        *_shared("reader", rows, reader_key, dictated, by_recording),
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
    by_recording: Collection[str] = (),
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
        ids = [row_id for some in by_split.values() for row_id in some]
        if kind == "reader" and splits == {"train", "valid"}:
            allowed = all(row_id in dictated for row_id in ids)
        if key in by_recording and not any(row_id in dictated for row_id in ids):
            allowed = True
        if not allowed:
            yield Leak(kind, key, tuple(split for split in SPLITS if split in splits))
