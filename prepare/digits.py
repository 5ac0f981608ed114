"""Connected digits of one speaker, composed from single spoken digits: a clip of 0.2 s cannot hold a word's letters.

The corpus is the Free Spoken Digit Dataset, ``{digit}_{speaker}_{take}.wav`` at 8 kHz. What a speaker says in a part
(train, valid, test) is a function of (seed, speaker, part, index) and the takes alone, never of who is held out, so
that runs which hold out different speakers share their packs.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from core.errors import DataError
from core.manifest import SAMPLE_RATE_HZ
from core.speech.config import DigitsSource
from prepare.clip import Clip, Rejected, Shard

VALID_UTTERANCES = 40
TEST_UTTERANCES = 300
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_VERSION = 1
_FILE = re.compile(r"([0-9])_(.+)_([0-9]+)\.wav")
_DIGITS = (2, 6)
_GAP_SECONDS = (0.05, 0.25)
_EDGE_SECONDS = (0.05, 0.15)


@dataclass(frozen=True, order=True, slots=True)
class Take:
    """One recording of one digit."""

    digit: int
    number: int
    name: str
    size: int
    mtime_ns: int


class DigitsReader:
    """The digits source. ``where`` names it in the configuration, for messages."""

    def __init__(self, config: DigitsSource, root: Path, where: str = "data.sources[0]"):
        self.config = config
        self.folder = root / config.folder()
        self.where = where

    def fingerprint(self) -> str:
        return _hash([self.config.test_speaker, [(s.name, s.fingerprint) for s in self.shards()]])

    def clips(self) -> Iterator[Clip | Rejected]:
        for shard in self.shards():
            yield from shard.clips()

    def shards(self) -> Iterator[Shard]:
        """One a speaker and part. Raises DataError when the folder or the held-out speaker is not there."""
        takes = self._takes
        if self.config.test_speaker not in takes:
            raise DataError(
                f"{self.where}.test_speaker: {self.config.test_speaker!r} is not among the speakers of "
                f"{self.folder}: {', '.join(sorted(takes))}"
            )
        for speaker in sorted(takes):
            if speaker == self.config.test_speaker:
                yield self._shard(speaker, "test", takes[speaker], TEST_UTTERANCES, seed=0)
                continue
            tenth = [take for take in takes[speaker] if take.number % 10 == 0]
            others = [take for take in takes[speaker] if take.number % 10]
            yield self._shard(speaker, "train", others, self.config.utterances, seed=self.config.seed)
            # the seed is for training alone: scores of two seeds are taken on the same clips
            yield self._shard(speaker, "valid", tenth, VALID_UTTERANCES, seed=0)

    @cached_property
    def _takes(self) -> dict[str, list[Take]]:
        found: dict[str, list[Take]] = {}
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except OSError:
            entries = []
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match:
                stat = entry.stat()
                take = Take(int(match[1]), int(match[3]), entry.name, stat.st_size, stat.st_mtime_ns)
                found.setdefault(match[2], []).append(take)
        if not found:
            state = "holds no {digit}_{speaker}_{take}.wav" if self.folder.is_dir() else "does not exist"
            raise DataError(
                f"{self.where}.path: {self.folder} {state}; expected the recordings of the Free Spoken Digit Dataset. "
                f"Name their folder in LAYL_FSDD or in {self.where}.path, or put them into data/raw/fsdd"
            )
        return {speaker: sorted(takes) for speaker, takes in found.items()}

    def _shard(self, speaker: str, part: str, takes: list[Take], count: int, *, seed: int) -> Shard:
        facts = [_VERSION, seed, speaker, part, count, [(t.name, t.size, t.mtime_ns) for t in takes]]

        def clips() -> Iterator[Clip | Rejected]:
            return self._compose(speaker, part, takes, count, seed)

        return Shard(f"digits-{speaker}-{part}", _hash(facts), clips)

    def _compose(self, speaker: str, part: str, takes: list[Take], count: int, seed: int) -> Iterator[Clip | Rejected]:
        sounds: dict[int, list[np.ndarray]] = {}
        for take in takes:
            sound = self._sound(take)
            if isinstance(sound, Rejected):
                yield sound
            else:
                sounds.setdefault(take.digit, []).append(sound)
        for index in range(count if sounds else 0):
            digits, pcm = utterance(sounds, _uniform(seed, speaker, part, index))
            yield Clip(
                name=f"{speaker}/{part}/{index:05d}",
                text=" ".join(WORDS[digit] for digit in digits),
                source="digits",
                group="ordinary",
                reciter=speaker,
                split=part,
                pcm=pcm,
                shard=f"digits-{speaker}-{part}",
            )

    def _sound(self, take: Take) -> np.ndarray | Rejected:
        from core.speech.audio import AudioError, decode, to_int16

        try:
            return to_int16(decode(self.folder / take.name))
        except AudioError as error:
            return Rejected(take.name, error.reason)


def utterance(sounds: dict[int, list[np.ndarray]], uniform: Callable[[], float]) -> tuple[list[int], np.ndarray]:
    """Two to six digits and their audio, int16 [samples] at 16 kHz, from ``sounds``: digit -> takes (not empty).

    ``uniform`` draws from [0, 1).
    """

    def below(count: int) -> int:
        return int(uniform() * count)

    def silence(seconds: tuple[float, float]) -> np.ndarray:
        low, high = seconds
        return np.zeros(round((low + (high - low) * uniform()) * SAMPLE_RATE_HZ), dtype="<i2")

    known = sorted(sounds)
    fewest, most = _DIGITS
    digits = [known[below(len(known))] for _ in range(fewest + below(most - fewest + 1))]
    pieces = [silence(_EDGE_SECONDS)]
    for position, digit in enumerate(digits):
        if position:
            pieces.append(silence(_GAP_SECONDS))
        pieces.append(sounds[digit][below(len(sounds[digit]))])
    pieces.append(silence(_EDGE_SECONDS))
    return digits, np.concatenate(pieces)


def _uniform(*key: object) -> Callable[[], float]:
    # random() is the one draw of Python's generator that is promised to stay the same in every version
    return random.Random(int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "big")).random


def _hash(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
