"""On whom each split tests, told from the rows that are there: a split's name promises nothing about its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.manifest import Manifest, Row
from core.seen import reader_key
from core.speech.text import TextMode

TITLES = {"test": "test", "valid": "validation", "unseen_verse": "unseen verses"}


def sentences(splits: Mapping[str, Manifest], mode: TextMode) -> dict[str, str]:
    """A sentence for each split that has clips: how many of its readers, recordings and verses training heard."""
    train = splits["train"].rows
    told = {}
    for split, title in TITLES.items():
        if not (rows := splits[split].rows):
            continue
        parts = [*_readers(rows, train), *_recordings(rows, train)]
        if split == "unseen_verse":
            parts.append(_verses(rows, train, mode))
        if split == "valid":
            parts.append("the weights were chosen by it")
        told[split] = f"{title}: {'; '.join(parts)}"
    return told


def _readers(rows: Sequence[Row], train: Sequence[Row]) -> list[str]:
    ours, theirs = _names(rows), _names(train)
    known, unnamed = len(ours & theirs), sum(reader_key(row) is None for row in rows)
    if not ours:
        return ["readers not named"]
    parts = []
    if known:
        parts.append(f"{known} of {len(ours)} readers heard in training")
    else:
        parts.append(f"{_number(len(ours), 'reader')}, {'not' if len(ours) == 1 else 'none of them'} heard in training")
    if unnamed:
        parts.append(f"{unnamed:,} of {_number(len(rows), 'clip')} name no reader")
    if nameless := sum(reader_key(row) is None for row in train):
        parts.append(f"{nameless:,} of {_number(len(train), 'training clip')} name no reader")
    return parts


def _recordings(rows: Sequence[Row], train: Sequence[Row]) -> list[str]:
    digests, places = {row.digest for row in train}, {(row.source, row.name) for row in train}
    same = sum(row.digest in digests or (row.source, row.name) in places for row in rows)
    if same:
        return [f"{same:,} of {_number(len(rows), 'clip')} trained on"]
    return [] if _names(rows) else ["other recordings than in training"]


def _verses(rows: Sequence[Row], train: Sequence[Row], mode: TextMode) -> str:
    ours, theirs = ({_verse(row.text, mode) for row in some} for some in (rows, train))
    known = len(ours & theirs)
    return f"{known:,} of {_number(len(ours), 'text')} read in training" if known else "texts that training never reads"


def _names(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows if (name := reader_key(row))}


def _verse(text: str, mode: TextMode) -> str:
    # the same key as preparation's again: a verse is its skeleton, where there is one
    return (mode.skeleton(text) if mode.skeleton else "") or text.replace(" ", "")


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
