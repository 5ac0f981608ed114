"""What a source yields before anything was checked, and the two shapes of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

#: Why a clip is left out. A fixed set, so that audits can be compared over years; the sentence is for people.
REASONS: dict[str, str] = {
    "malformed_row": "the manifest's row lacks its audio, or a field has the wrong type",
    "torn_line": "the manifest's last line was cut off while it was written",
    "offset_unsupported": "the row means a part of a longer file, which this reader does not cut",
    "outside_root": "the path leaves the source's folder",
    "missing_file": "named, but not on the disk",
    "unreadable": "on the disk, but the system refuses to read it",
    "empty_file": "zero bytes",
    "not_audio": "the content is no wav, flac, ogg or mp3",
    "truncated": "the stream ends before its own header says",
    "not_finite": "a sample is not a number",
    "silent": "no sample above -60 dB of full scale",
    "empty_text": "no letter is left of the text",
    "outside_vocabulary": "a letter that the run's vocabulary does not have",
    "text_too_long_for_audio": "more letters than the model has frames for at the fastest playing speed",
    "duplicate_audio": "the same samples as another clip",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """One utterance as its source tells it. Exactly one of ``audio`` and ``pcm`` is given.

    name: unique in its source, stable, for people: reader/sura/aya, or the file's path in the corpus.
    text: as the source writes it; normalising comes later.
    split: set only where the source itself decides who is held out.
    audio: a file; absolute, or relative to the project's root. Spelled as the configuration spells its folder.
    pcm: composed audio, int16 [samples] at 16 kHz.
    shard: the pack that composed audio goes to; clips of one shard come one after another.
    """

    name: str
    text: str
    source: str
    group: str
    reciter: str | None = None
    riwaya: str | None = None
    sura: int | None = None
    aya: int | None = None
    split: str | None = None
    audio: Path | None = None
    pcm: np.ndarray | None = field(default=None, compare=False, repr=False)
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A clip that is left out, and which of REASONS it is."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        assert self.reason in REASONS, self.reason


class SourceReader(Protocol):
    """One corpus."""

    def fingerprint(self) -> str:
        """Changes whenever ``clips`` might: options, and path, size and mtime_ns of the inputs. Decodes nothing."""
        ...

    def clips(self) -> Iterator[Clip | Rejected]:
        """Every utterance in a fixed order. Raises DataError naming the configuration's key for what is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a composed source that is kept when it was made before: ``fingerprint`` tells."""

    name: str
    fingerprint: str
    clips: Callable[[], Iterator[Clip | Rejected]]


@runtime_checkable
class ShardedReader(SourceReader, Protocol):
    """A source that composes its audio and can say of each shard beforehand whether it would come out the same.

    Preparation then resumes at the shard where it was killed, and other runs share the packs.
    """

    def shards(self) -> Iterator[Shard]:
        """The shards whose clips are, one after the other, ``clips()``."""
        ...
