"""A corpus made on this machine: synthetic voices read short suras, so that everything can be tried without data.

Honest material for the pipeline and for nothing else: no score on it says anything about people. Every clip is a
function of its voice and its verse, whatever the number of processes that speak.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from core.errors import DataError
from core.manifest import SAMPLE_RATE_HZ
from core.speech.audio import from_int16, resample, to_int16
from core.speech.config import Group, SampleSource
from prepare.clip import Clip, Shard
from prepare.quran import Riwaya, verses
from prepare.spoken import spoken

#: to be raised when the same options shall make other audio
RECIPE = 1

#: what prepare.voice sends; not imported from there, see its first sentence
SPEECH_RATE_HZ = 22_050

INSTALL = "pip install 'layl[sample]'"
_PACKAGES = ("espeakng-loader", "quranic-phonemizer", "soxr", "numpy")
_AHEAD = 3  # requests a process has waiting: it never idles, and its pipe never fills
_MOST_PROCESSES = 8
_TELEPHONE_RATE_HZ = 8_000


@dataclass(frozen=True)
class Voice:
    """A reader: an espeak-ng voice, words a minute, pitch and its range (0 to 99), and what it counts as."""

    name: str
    voice: str
    rate: int
    pitch: int
    range: int
    group: Group = "professional"
    split: str = "train"


def _voices() -> tuple[Voice, ...]:
    table = (
        ("ar", 150, 50, 50),
        ("ar+f1", 155, 48, 55),
        ("ar+m1", 145, 42, 45),
        ("ar+f3", 160, 55, 50),
        ("ar+m3", 150, 60, 60),
        ("ar+klatt3", 150, 50, 50),
        ("ar+m6", 165, 38, 40),
        ("ar+f5", 150, 45, 45),
        ("ar+klatt4", 140, 45, 55),
        ("ar+f2", 145, 60, 60),
        ("ar+m2", 170, 52, 50),
        ("ar+m8", 150, 62, 55),
        ("ar+m5", 140, 46, 65),
        ("ar+Annie", 155, 40, 50),
        ("ar+klatt6", 160, 58, 45),
        ("ar+aunty", 150, 50, 40),
        ("ar+m7", 135, 44, 50),
        ("ar+rob", 150, 50, 55),
        ("ar+grandma", 145, 50, 50),
        ("ar+michel", 160, 54, 50),
        ("ar+quincy", 150, 48, 60),
    )
    # every third reader is an ordinary one
    return tuple(
        Voice(f"sample-{number:02}", *row, group="ordinary" if number % 3 == 2 else "professional")
        for number, row in enumerate(table, 1)
    )


#: In the order in which they join; the last three are always held out, so scores stay comparable when more train.
TRAINING_VOICES = _voices()
HELD_OUT_VOICES = (
    Voice("sample-22", "ar+m4", 150, 55, 50, split="valid"),
    Voice("sample-23", "ar+f4", 150, 52, 55, split="test"),
    Voice("sample-24", "ar+max", 155, 45, 45, group="ordinary", split="test"),
)


def readers(count: int) -> tuple[Voice, ...]:
    """``count`` voices, at least 4 and at most 24: the first of the training ones, then the three held out."""
    return (*TRAINING_VOICES[: count - len(HELD_OUT_VOICES)], *HELD_OUT_VOICES)


@dataclass(frozen=True)
class Verse:
    """A verse in the numbers of its own reading, as it is written."""

    riwaya: Riwaya
    sura: int
    aya: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.riwaya}/{self.sura:03}{self.aya:03}"


class SampleReader:
    """The source ``sample``: one shard a voice. ``root`` is not needed, for nothing is read from the disk."""

    def __init__(self, config: SampleSource, root: Path, *, processes: int | None = None) -> None:
        self.config = config
        # one process reads what all of them say; more than this would wait for it
        self.processes = processes or min(os.cpu_count() or 1, _MOST_PROCESSES)

    def fingerprint(self) -> str:
        """Changes with the options, the recipe and the packages that speak, write and resample."""
        return _digest([shard.fingerprint for shard in self.shards()])

    def clips(self) -> Iterator[Clip]:
        """All voices, each with its verses in order; pcm is int16 at 16 kHz, silence as it was spoken.

        Raises DataError when espeak-ng or the written Quran is missing.
        """
        for shard in self.shards():
            yield from cast(Iterator[Clip], shard.clips())

    def shards(self) -> Iterator[Shard]:
        """One a voice."""
        packages = {name: _version(name) for name in _PACKAGES}
        everything = chosen_verses(self.config)
        for voice in readers(self.config.voices):
            read = a_third(everything) if voice.split == "valid" else everything
            content = [RECIPE, packages, asdict(voice), [(verse.place, verse.text) for verse in read]]
            # bound now: the loop's names will mean the last voice when the shard is asked
            yield Shard(
                voice.name, _digest(content), lambda voice=voice, read=read: recite(voice, read, self.processes)
            )


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise DataError(f"source sample: {package} is not installed, and it makes the sample; {INSTALL}") from None


def chosen_verses(config: SampleSource) -> list[Verse]:
    """Every verse of the chosen suras, reading by reading. Raises DataError for a sura that does not exist."""
    wrong = [sura for sura in config.suras if not 1 <= sura <= 114]
    if wrong:
        raise DataError(f"source sample: suras: {wrong} do not exist; the Quran has suras 1 to 114")
    chosen = []
    for riwaya in dict.fromkeys(config.readings):
        text = verses(riwaya)
        for sura in dict.fromkeys(config.suras):
            chosen += [Verse(riwaya, sura, aya, words) for (of, aya), words in text.items() if of == sura]
    return chosen


def a_third(everything: list[Verse]) -> list[Verse]:
    """A third of each reading's verses, rounded up, in their order: validation has to be quick, and never empty."""
    kept: set[str] = set()
    for riwaya in {verse.riwaya for verse in everything}:
        places = sorted((_digest(["valid", v.place]), v.place) for v in everything if v.riwaya == riwaya)
        kept |= {place for _, place in places[: -(-len(places) // 3)]}
    return [verse for verse in everything if verse.place in kept]


def recite(voice: Voice, read: list[Verse], processes: int) -> Iterator[Clip]:
    """One voice's clips, in the order of ``read``."""
    requests = (_request(voice, verse) for verse in read)
    for verse, samples in zip(read, speak(requests, processes), strict=True):
        name = f"{voice.name}/{verse.place}"
        pcm = to_int16(_recorded(from_int16(samples), voice.group, name))
        yield Clip(
            name=name,
            text=verse.text,
            source="sample",
            group=voice.group,
            reciter=voice.name,
            riwaya=verse.riwaya,
            sura=verse.sura,
            aya=verse.aya,
            split=voice.split,
            pcm=pcm,
            shard=voice.name,
        )


def _request(voice: Voice, verse: Verse) -> dict[str, Any]:
    """How a voice says a verse: never twice alike, as the same words stand in both readings and return in 109."""
    return {
        "text": spoken(verse.text, verse.sura, verse.aya),
        "voice": voice.voice,
        "rate": voice.rate + (verse.sura + verse.aya) % 7 - 3,
        # even steps apart within a reading, one step between the readings: they never meet
        "pitch": voice.pitch + 2 * (verse.sura * verse.aya % 3) - 2 + (verse.riwaya == "warsh"),
        "range": voice.range,
    }


def _recorded(samples: np.ndarray, group: Group, name: str) -> np.ndarray:
    samples = resample(samples, SPEECH_RATE_HZ, SAMPLE_RATE_HZ)
    return samples if group == "professional" else as_at_home(samples, int(_digest(name)[:16], 16))


def as_at_home(samples: np.ndarray, seed: int) -> np.ndarray:
    """Float32 [samples] at 16 kHz as an ordinary recording, by ``seed`` alone.

    One of three things happens: noise at 10 to 25 dB below the speech, a telephone's band, or a level that
    wanders between two gains of -20 to +3 dB.
    """
    random = np.random.default_rng(seed)
    kind = random.integers(3)
    if kind == 0:
        noise = _noise(len(samples), random)
        ratio = 10 ** (-random.uniform(10, 25) / 20)
        worse = samples + noise * (np.sqrt(np.mean(samples**2)) * ratio)
    elif kind == 1:
        narrow = resample(samples, SAMPLE_RATE_HZ, _TELEPHONE_RATE_HZ)
        worse = resample(narrow, _TELEPHONE_RATE_HZ, SAMPLE_RATE_HZ)
    else:
        first, last = random.uniform(-20, 3, 2)
        worse = samples * 10 ** (np.linspace(first, last, len(samples)) / 20)
    return worse.astype(np.float32)


def _noise(length: int, random: np.random.Generator) -> np.ndarray:
    """Noise with a mean square of 1, from white to nearly pink."""
    spectrum = np.fft.rfft(random.standard_normal(length))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1) ** random.uniform(0, 0.5)
    noise = np.fft.irfft(spectrum, length)
    return noise / np.sqrt(np.mean(noise**2))


def speak(requests: Iterable[dict[str, Any]], processes: int) -> Iterator[np.ndarray]:
    """int16 [samples] at 22,050 Hz for each request of prepare.voice, in order, from that many processes.

    Clip i goes to process i modulo ``processes``, so the order needs no bookkeeping and little is held in memory.
    Raises DataError when one cannot be spoken.
    """
    speakers = [_start_speaker() for _ in range(processes)]
    waiting: deque[subprocess.Popen[bytes]] = deque()
    try:
        for number, request in enumerate(requests):
            if len(waiting) == _AHEAD * processes:
                yield _heard(waiting.popleft())
            speaker = speakers[number % processes]
            _ask(speaker, request)
            waiting.append(speaker)
        while waiting:
            yield _heard(waiting.popleft())
    finally:
        for speaker in speakers:
            speaker.kill()
            for pipe in (speaker.stdin, speaker.stdout):
                _close(pipe)
            speaker.wait()


def _start_speaker() -> subprocess.Popen[bytes]:
    # -P and an explicit path: the package beside this file speaks, not a folder `prepare` where we happen to stand
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "prepare.voice"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except BrokenPipeError:
        pass  # the speaker died before it read everything, which was said already


def _ask(speaker: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert speaker.stdin is not None
    try:
        speaker.stdin.write(json.dumps(request, ensure_ascii=False).encode() + b"\n")
        speaker.stdin.flush()
    except BrokenPipeError:
        raise _gone(speaker) from None


def _heard(speaker: subprocess.Popen[bytes]) -> np.ndarray:
    assert speaker.stdout is not None
    head = speaker.stdout.read(4)
    length = struct.unpack("<i", head)[0] if len(head) == 4 else 0
    data = speaker.stdout.read(abs(length))
    if len(head) < 4 or len(data) < abs(length):
        raise _gone(speaker)
    if length < 0:
        raise DataError(f"source sample: {data.decode()}; is the package whole? {INSTALL}")
    return np.frombuffer(data, dtype="<i2")


def _gone(speaker: subprocess.Popen[bytes]) -> DataError:
    return DataError(f"source sample: the speaking process ended with status {speaker.wait()}; {INSTALL}")
