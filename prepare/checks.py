"""Which clips may be trained on and why the others may not. Pure: audio was decoded before, nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.errors import DataError
from core.manifest import SAMPLE_RATE_HZ, Row, row_id
from core.speech.text import TextMode, Vocabulary, frames_needed
from prepare.cache import Heard
from prepare.clip import REASONS, Rejected

#: -60 dB of full scale, in int16 steps
SILENT_PEAK = 32


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that passed, with the split that its source dictates (None: ours to choose) and its place in the config."""

    row: Row
    split: str | None
    source_index: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A clip that did not pass, and the source it came from."""

    source_index: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """Everything the sources gave, in two piles, and the vocabulary of what is kept."""

    kept: tuple[Kept, ...]
    dropped: tuple[Dropped, ...]
    vocabulary: Vocabulary


def frames_at_25_hz(samples: int, speed: float = 1.0) -> int:
    """Output frames for 16 kHz samples played ``speed`` times as fast: 10 ms features, halved twice, rounded up."""
    features = (int(samples / speed) + 80) // 160
    halved = (features + 1) // 2
    return (halved + 1) // 2


def judge(
    sources: Sequence[Sequence[Heard | Rejected]], mode: TextMode, known: Vocabulary | None, fastest: float
) -> Judged:
    """Every clip of every source as a manifest row or as dropped for one reason, in the order of names.

    known: the vocabulary of a run that has begun; None takes the letters from the data. fastest: the highest
    playing speed of the augmentation. Of equal audio the first by name stays.
    """
    dropped: list[Dropped] = []
    passed: list[tuple[int, Heard, str]] = []
    for index, items in enumerate(sources):
        for item in items:
            if isinstance(item, Rejected):
                dropped.append(Dropped(index, item.name, item.reason))
                continue
            text = mode.normalise(item.clip.text)
            reason = "empty_text" if not text else "silent" if item.peak <= SILENT_PEAK else None
            if reason:
                dropped.append(Dropped(index, item.clip.name, reason))
            else:
                passed.append((index, item, text))
    letters = known or _vocabulary(mode, (text for _, _, text in passed))
    kept = _fitting(passed, letters, fastest, dropped) if letters else []
    final = known or _vocabulary(mode, (each.row.text for each in kept)) or Vocabulary(("<blk>", " "))
    dropped.sort(key=lambda drop: (drop.source_index, list(REASONS).index(drop.reason), drop.name))
    return Judged(tuple(kept), tuple(dropped), final)


def _vocabulary(mode: TextMode, texts: Iterable[str]) -> Vocabulary | None:
    texts = list(texts)
    return Vocabulary.of(mode, texts) if texts else None


def _fitting(
    passed: list[tuple[int, Heard, str]], letters: Vocabulary, fastest: float, dropped: list[Dropped]
) -> list[Kept]:
    kept: list[Kept] = []
    digests: set[str] = set()
    # a stable order whatever order the sources yield in; the text decides between two rows about one file
    for index, heard, text in sorted(passed, key=lambda p: (p[1].clip.name, p[0], p[2], p[1].digest)):
        if letters.unknown(text):
            reason = "outside_vocabulary"
        elif frames_at_25_hz(heard.samples, fastest) < frames_needed(letters.encode(text)):
            reason = "text_too_long_for_audio"
        elif heard.digest in digests:
            reason = "duplicate_audio"
        else:
            digests.add(heard.digest)
            kept.append(Kept(_row(heard, text), heard.clip.split, index))
            continue
        dropped.append(Dropped(index, heard.clip.name, reason))
    return kept


def _row(heard: Heard, text: str) -> Row:
    clip = heard.clip
    return Row(
        id=row_id(heard.digest, text, clip.group),
        name=clip.name,
        audio=heard.audio,
        offset=heard.offset,
        digest=heard.digest,
        duration=round(heard.samples / SAMPLE_RATE_HZ, 6),
        text=text,
        source=clip.source,
        group=clip.group,
        riwaya=clip.riwaya,
        reciter=clip.reciter,
        sura=clip.sura,
        aya=clip.aya,
    )


def by_reason(dropped: Iterable[Dropped]) -> dict[str, list[str]]:
    """Reason -> names, reasons in their fixed order."""
    found: dict[str, list[str]] = {}
    for drop in dropped:
        found.setdefault(drop.reason, []).append(drop.name)
    return {reason: found[reason] for reason in REASONS if reason in found}


def refuse_bad_source(where: str, kept: int, dropped: Sequence[Dropped], max_drop_share: float) -> None:
    """Raise DataError, with every reason and an example, for a source that gave nothing or lost too much."""
    # a torn last line is a crash of whoever wrote the manifest, not a row
    lost = sum(drop.reason != "torn_line" for drop in dropped)
    if kept and lost <= max_drop_share * (kept + lost):
        return
    reasons = "".join(
        f"\n  {len(names):,} {reason} ({REASONS[reason]}), for example {names[0]}"
        for reason, names in by_reason(dropped).items()
    )
    if not kept:
        if not lost:
            raise DataError(f"{where}: holds no clip at all; expected at least one")
        raise DataError(f"{where}: not one clip is left of {lost:,}; expected at least one{reasons}")
    raise DataError(
        f"{where}: {lost:,} of {kept + lost:,} clips dropped, more than data.max_drop_share {max_drop_share:g}; "
        f"mend the source or raise the share{reasons}"
    )
