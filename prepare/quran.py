"""The written Quran in both readings, each in its own verse numbers: Hafs 2:255 is Warsh 2:253 and 2:254.

The only module that knows quranic-phonemizer. Its public call analyses every word and its aligned corpus takes
seven seconds to bind, so the packed files are read directly (0.4 s); that is why the version is pinned.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Literal

from core.errors import DataError

Riwaya = Literal["hafs", "warsh"]

PACKAGE = "quranic-phonemizer"
VERSION = "3.0.5"
#: verses of each reading: the Kufi count for Hafs, the Madani one for Warsh
AYAT: dict[str, int] = {"hafs": 6236, "warsh": 6214}

_WARSH_HEADER = {"schema_version": 1, "artifact": "king-fahd-warsh-v2"}


def verses(riwaya: Riwaya) -> dict[tuple[int, int], str]:
    """(sura, aya) -> Uthmani text of every verse, in order and in the reading's own numbers.

    Words are parted by one space; in Hafs the stop signs stand as words of their own, in Warsh they are part of
    the word before. No verse carries an optional basmala: it is 1:1 in Hafs, no verse in Warsh, and inside 27:30.
    Raises DataError when the package is missing or holds another text than the one that was checked.
    """
    return dict(_verses(riwaya))


@cache
def _verses(riwaya: Riwaya) -> dict[tuple[int, int], str]:
    read = {"hafs": _hafs, "warsh": _warsh}[riwaya]
    try:
        found = read(_folder() / riwaya / "corpus")
    # one sentence for whatever another version may do to files that are not its public interface
    except (ImportError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
        raise DataError(f"the {riwaya} text cannot be read ({type(error).__name__}: {error}); {_install()}") from error
    if len(found) != AYAT[riwaya]:
        raise DataError(f"the {riwaya} text has {len(found)} verses, expected {AYAT[riwaya]}; {_install()}")
    return found


def _install() -> str:
    return f"install the version this was made for: pip install '{PACKAGE}=={VERSION}'"


def _folder() -> Path:
    spec = importlib.util.find_spec("quranic_phonemizer")
    if spec is None or spec.origin is None:
        raise DataError(f"{PACKAGE} is not installed, and the written Quran comes from it; {_install()}")
    return Path(spec.origin).parent / "data" / "riwayat"


def _hafs(folder: Path) -> dict[tuple[int, int], str]:
    from quranic_phonemizer.corpus import load_corpus

    corpus = load_corpus(folder / "quran_db.bin", folder / "surah_info.json")
    found = {}
    for (sura, aya), start in corpus.verse_starts.items():
        count = corpus.surah_info[str(sura)][aya - 1]
        found[sura, aya] = " ".join(corpus.texts[index] for index in corpus.word_indices[start : start + count])
    return found


def _warsh(folder: Path) -> dict[tuple[int, int], str]:
    words: dict[tuple[int, int], list[str]] = {}
    with gzip.open(folder / "alignment.jsonl.gz", "rt", encoding="utf-8") as lines:
        header = json.loads(next(lines))
        if header != _WARSH_HEADER:
            raise ValueError(f"header {header}, expected {_WARSH_HEADER}")
        for line in lines:
            for word in json.loads(line)["source"]:
                sura, aya, number = map(int, word["ref"].split(":"))
                verse = words.setdefault((sura, aya), [])
                verse.append(word["text"])
                if number != len(verse):
                    raise ValueError(f"word {word['ref']} is number {len(verse)} of its verse")
    return {place: " ".join(verse) for place, verse in words.items()}
