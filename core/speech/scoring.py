"""How right a hearing is: error counts that add up, so a corpus rate is a quotient of sums and no mean of clips.

Here N is clips, T output frames, V symbols of the vocabulary. The live model and the exported file are both scored
through ``hear`` and ``score``; only the callable differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np
from rapidfuzz.distance import Levenshtein

from core.errors import DataError
from core.manifest import Row
from core.speech.text import TextMode, Vocabulary, is_muqattaat

LENGTHS = ("<=5", "6-15", ">15")
DECIMALS = 5


class Batch(Protocol):
    """Clips that go through a model together; ``indices`` says which rows they are."""

    @property
    def indices(self) -> Sequence[int]: ...


AnyBatch = TypeVar("AnyBatch", bound=Batch)


def greedy_decode(log_probs_NTV: np.ndarray, frames_N: np.ndarray, blank: int = 0) -> list[list[int]]:
    """The best symbol of each frame, repeats merged, blanks dropped: one list of ids a clip.

    ``frames_N`` says how many of the T frames belong to each clip; what lies behind them is padding and is not read.
    Raises ValueError if a clip claims more frames than there are.
    """
    best_NT = np.asarray(log_probs_NTV).argmax(axis=-1)
    count, length = best_NT.shape
    frames = np.asarray(frames_N)
    if frames.shape != (count,) or (frames > length).any():
        raise ValueError(f"frames {frames.tolist()} do not fit {count} clips of {length} frames")
    keep_NT = (best_NT != blank) & (np.arange(length) < frames[:, None])
    keep_NT[:, 1:] &= best_NT[:, 1:] != best_NT[:, :-1]
    ids = best_NT[keep_NT].tolist()
    ends = keep_NT.sum(axis=1).cumsum().tolist()
    return [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)] if count else []


def hear(
    outputs: Callable[[AnyBatch], tuple[np.ndarray, np.ndarray]],
    batches: Iterable[AnyBatch],
    vocabulary: Vocabulary,
) -> dict[int, str]:
    """What is heard on each clip, by the clip's place in the manifest.

    ``outputs`` turns a batch into (log_probs_NTV, frames_N). Raises DataError if the output is not as wide as the
    vocabulary, ValueError if it has not one line a clip.
    """
    heard: dict[int, str] = {}
    for batch in batches:
        log_probs_NTV, frames_N = outputs(batch)
        if log_probs_NTV.shape[-1] != len(vocabulary):
            raise DataError(
                f"the model writes {log_probs_NTV.shape[-1]} symbols, the vocabulary has {len(vocabulary)}; "
                "expected the tokens.txt that was made with this model"
            )
        for index, ids in zip(batch.indices, greedy_decode(log_probs_NTV, frames_N), strict=True):
            heard[int(index)] = " ".join(vocabulary.decode(ids).split())
    return heard


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Errors and what they are errors of, over any number of clips. Adding two gives the counts of both together.

    ``letters`` and its errors leave spaces out; ``spaced`` counts letters and spaces. Rates are fractions, and None
    where there was nothing to get wrong.
    """

    clips: int = 0
    exact: int = 0
    letters: int = 0
    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    spaced: int = 0
    spaced_errors: int = 0
    words: int = 0
    word_errors: int = 0
    skeleton_letters: int = 0
    skeleton_errors: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def letter_errors(self) -> int:
        return self.insertions + self.deletions + self.substitutions

    @property
    def cer(self) -> float | None:
        """Letter errors per reference letter, spaces left out; above 1 where much was heard that was not said."""
        return _rate(self.letter_errors, self.letters)

    @property
    def cer_spaces(self) -> float | None:
        """The same with spaces as letters."""
        return _rate(self.spaced_errors, self.spaced)

    @property
    def wer(self) -> float | None:
        """Word errors per reference word."""
        return _rate(self.word_errors, self.words)

    @property
    def skeleton(self) -> float | None:
        """Errors in the letters that spelling cannot change; None too where the text mode has no skeleton."""
        return _rate(self.skeleton_errors, self.skeleton_letters)

    @property
    def exact_share(self) -> float | None:
        """Part of the clips that are right to the last letter and space."""
        return _rate(self.exact, self.clips)


def _rate(errors: int, total: int) -> float | None:
    return errors / total if total else None


def count(reference: str, hypothesis: str, mode: TextMode) -> Counts:
    """The counts of one clip. Both texts go through the mode first; either may be empty."""
    said, heard = mode.normalise(reference), mode.normalise(hypothesis)
    letters = said.replace(" ", "")
    kinds = Counter(op.tag for op in Levenshtein.editops(letters, heard.replace(" ", "")))
    bones = (mode.skeleton(said), mode.skeleton(heard)) if mode.skeleton else ("", "")
    return Counts(
        clips=1,
        exact=int(said == heard),
        letters=len(letters),
        insertions=kinds["insert"],
        deletions=kinds["delete"],
        substitutions=kinds["replace"],
        spaced=len(said),
        spaced_errors=Levenshtein.distance(said, heard),
        words=len(said.split()),
        word_errors=Levenshtein.distance(said.split(), heard.split()),
        skeleton_letters=len(bones[0]),
        skeleton_errors=Levenshtein.distance(*bones),
    )


def letter_recall(references: Iterable[str], hypotheses: Iterable[str], mode: TextMode) -> dict[str, float | None]:
    """For each letter the part of its occurrences that was heard as itself: a dead output shows up as 0 here.

    Letters of the mode's alphabet that no reference holds are None.
    """
    spoken: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        said, heard = (mode.normalise(text).replace(" ", "") for text in (reference, hypothesis))
        spoken.update(said)
        missed.update(said[op.src_pos] for op in Levenshtein.editops(said, heard) if op.tag != "insert")
    names = sorted({*spoken, *(mode.alphabet or "")})
    return {name: _rounded(_rate(spoken[name] - missed[name], spoken[name])) for name in names}


def score(rows: Sequence[Row], hyps: Sequence[str], mode: TextMode) -> dict[str, Any]:
    """Everything a report says about hearings, ready for JSON. ``hyps`` is in the order of ``rows``.

    Rates are fractions with five decimals, insertions, deletions and substitutions are numbers of letters; a rate of
    a group without clips is None. Raises ValueError if the two lengths differ.
    """
    counted = [(row, count(row.text, hyp, mode)) for row, hyp in zip(rows, hyps, strict=True)]

    def among(belongs: Callable[[Row, Counts], bool]) -> Counts:
        return sum((counts for row, counts in counted if belongs(row, counts)), Counts())

    overall = among(lambda row, counts: True)
    readers: dict[str, Counts] = {}
    for row, counts in counted:
        if row.reciter is not None:
            readers[row.reciter] = readers.get(row.reciter, Counts()) + counts
    return {
        "cer": _rounded(overall.cer),
        "wer": _rounded(overall.wer),
        "skeleton": _rounded(overall.skeleton),
        "cer_spaces": _rounded(overall.cer_spaces),
        "insertions": overall.insertions,
        "deletions": overall.deletions,
        "substitutions": overall.substitutions,
        "exact": _rounded(overall.exact_share),
        "clips": overall.clips,
        "letters": overall.letters,
        "hafs_cer": _rounded(among(lambda row, _: row.riwaya == "hafs").cer),
        "warsh_cer": _rounded(among(lambda row, _: row.riwaya == "warsh").cer),
        "professional_cer": _rounded(among(lambda row, _: row.group == "professional").cer),
        "ordinary_cer": _rounded(among(lambda row, _: row.group == "ordinary").cer),
        "by_reader": {name: _brief(readers[name]) for name in sorted(readers)},
        "by_length": {name: _brief(among(lambda _, c, name=name: _length(c.words) == name)) for name in LENGTHS},
        "muqattaat_cer": _rounded(among(lambda row, _: is_muqattaat(row.text)).cer),
        "letter_recall": letter_recall((row.text for row in rows), hyps, mode),
    }


def _length(words: int) -> str:
    return LENGTHS[0] if words <= 5 else LENGTHS[1] if words <= 15 else LENGTHS[2]


def _brief(counts: Counts) -> dict[str, float | int | None]:
    return {
        "cer": _rounded(counts.cer),
        "wer": _rounded(counts.wer),
        "clips": counts.clips,
        "letters": counts.letters,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, DECIMALS)
