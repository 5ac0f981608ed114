"""The Quran as a plain Arabic synthesiser has to read it: Uthmani signs mean other things than it thinks.

U+06DF silences a letter in the Hafs text but starts a word in the Warsh one, and an alef that carries a
sukun is not said at all. What is written (the target) never changes here, only what is said.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from core.speech.text import MUQATTAAT

FATHATAN, DAMMATAN, KASRATAN, FATHA, DAMMA, KASRA, SHADDA, SUKUN = "\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652"
DAGGER_ALEF, TATWEEL, SMALL_MEEM, SILENT = "\u0670\u0640\u06e2\u06df"

_HARAKAT = {FATHA, DAMMA, KASRA}
_VOWELS = {FATHATAN, DAMMATAN, KASRATAN, *_HARAKAT}
#: what a synthesiser knows, in the order in which it wants it: a shadda behind its vowel costs the vowel
_ORDER = (SHADDA, *sorted(_VOWELS), SUKUN)
_SAID = set(_ORDER)
#: open tanwin of either text, the sukun of the other orthography: the sign that means the same to a synthesiser
_SAME = {
    "\u06e1": SUKUN,
    "\u0657": FATHATAN,
    "\u065e": DAMMATAN,
    "\u0656": KASRATAN,
    "\u08f0": FATHATAN,
    "\u08f1": DAMMATAN,
    "\u08f2": KASRATAN,
}
_LETTERS = {"\u0671": "ا", "\u06d2": "ي", "\u06cc": "ي"}
_SMALL_LETTERS = {"\u06e5": "و", "\u06e6": "ي", "\u06e7": "ي", "\u06e8": "ن"}
_HAMZA = {"\u0654", "\u0655"}
_ON_HAMZA = {
    ("ا", "\u0654"): "أ",
    ("ا", "\u0655"): "إ",
    ("و", "\u0654"): "ؤ",
    ("ي", "\u0654"): "ئ",
    ("ى", "\u0654"): "ئ",
}
#: Warsh marks an alef that is only said where one starts to read: the place of the mark tells that vowel, the
#: haraka on it only repeats how the word before ends
_STARTING = {"\u06ec": FATHA, "\u06ea": KASRA, "\u06df": DAMMA}
_TAQLIL = "\u06ea"
_TANWIN = {FATHA: FATHATAN, DAMMA: DAMMATAN, KASRA: KASRATAN}

#: suras that open with disjoined letters, which are said by their names
OPENED = frozenset((2, 3, 7, *range(10, 16), 19, 20, *range(26, 33), 36, 38, *range(40, 47), 50, 68))
_NAMES = {
    "ا": "أَلِفْ",
    "ل": "لَامْ",
    "م": "مِيمْ",
    "ص": "صَادْ",
    "ر": "رَا",
    "ك": "كَافْ",
    "ه": "هَا",
    "ي": "يَا",
    "ع": "عَيْنْ",
    "ط": "طَا",
    "س": "سِينْ",
    "ح": "حَا",
    "ق": "قَافْ",
    "ن": "نُونْ",
}


@dataclass
class _Sign:
    """One letter with the marks on it."""

    base: str
    marks: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return self.base + "".join(mark for mark in _ORDER if mark in self.marks)


def spoken(text: str, sura: int, aya: int) -> str:
    """Vocalised Arabic in the usual spelling for a verse in Uthmani script of either reading.

    ``sura`` and ``aya`` say where opening letters may stand (the first two verses, as Hafs splits those of sura 42).
    """
    said = []
    for word in text.split():
        signs = _signs(word)
        bare = "".join(sign.base for sign in signs).replace("أ", "ا")
        if not signs:
            continue
        if aya <= 2 and sura in OPENED and bare in MUQATTAAT:
            said += [_NAMES[letter] for letter in bare]
        else:
            said.append(_word(signs, first=not said))
    return " ".join(said)


def _signs(word: str) -> list[_Sign]:
    """Letters with their marks; hamza set upon its letter, small letters and tatweel resolved."""
    raw: list[_Sign] = []
    # canonical decomposition sorts the marks and takes hamza and madd off their letters: one case instead of three
    for character in unicodedata.normalize("NFD", word):
        kind = unicodedata.category(character)
        if kind == "Lo" or character == TATWEEL:
            raw.append(_Sign(_LETTERS.get(character, character)))
        elif raw and (kind == "Mn" or character in _SMALL_LETTERS):
            raw[-1].marks.add(_SAME.get(character, character))
    signs: list[_Sign] = []
    for sign in raw:
        signs += _resolved(sign, signs[-1] if signs else None)
    return signs


def _resolved(sign: _Sign, before: _Sign | None) -> list[_Sign]:
    hamza = min(sign.marks & _HAMZA, default=None)
    small = next((letter for mark, letter in _SMALL_LETTERS.items() if mark in sign.marks), None)
    if hamza:
        seat = _ON_HAMZA.get((sign.base, hamza))
        if seat is None and sign.base != TATWEEL:
            return [sign, _Sign("ء")]
        sign.base = seat or "ء"
    elif sign.base == TATWEEL:
        if small is None:
            if before is not None:
                before.marks |= sign.marks
            return []
        return [_Sign(small, sign.marks - _SMALL_LETTERS.keys())]
    return [sign, _Sign(small)] if small else [sign]


def _word(signs: list[_Sign], *, first: bool) -> str:
    signs[0].marks = _start(signs[0], first)
    kept: list[_Sign] = []
    for index, sign in enumerate(signs):
        if index and (SILENT in sign.marks or (sign.base == "ا" and SUKUN in sign.marks)):
            continue
        kept += _said(sign, kept[-1] if kept else None)
    return "".join(map(str, _long_name_of_god(kept)))


def _start(sign: _Sign, first: bool) -> set[str]:
    """Marks of a word's first letter. An alef of connection has a vowel only where the reader starts."""
    place = next((mark for mark in _STARTING if mark in sign.marks), None)
    if sign.base != "ا" or place is None:
        return sign.marks
    # a bare alef starts with a, and only a bare one is taken for the article
    return {_STARTING[place]} - {FATHA} if first else set()


def _said(sign: _Sign, before: _Sign | None) -> list[_Sign]:
    """One written letter as the letters that are said for it."""
    marks = sign.marks
    vowel = next(iter(marks & _HARAKAT), None)
    if vowel and SMALL_MEEM in marks:
        marks = marks - {vowel} | {_TANWIN[vowel]}
    if _TAQLIL in marks and not marks & _VOWELS:
        marks = marks | {FATHA}
    voiced = bool(marks & _SAID)
    if sign.base in "وىي" and DAGGER_ALEF in marks and not voiced:
        return [_Sign("ا")]
    if sign.base in "اى" and FATHATAN in marks and SHADDA not in marks and before is not None:
        before.marks.add(FATHATAN)
        before.marks.discard(FATHA)
        return [_Sign(sign.base)]
    base = sign.base
    if base == "ى" and (voiced or (before is not None and KASRA in before.marks)):
        base = "ي"
    said = _Sign(base, set(marks))
    return [said, _Sign("ا")] if DAGGER_ALEF in marks else [said]


def _long_name_of_god(signs: list[_Sign]) -> list[_Sign]:
    """The name of God is written without its long vowel, and a synthesiser would not know."""
    bases = "".join(sign.base for sign in signs)
    end = next((end for end in ("لله", "للهم") if bases.endswith(end)), "")
    if not end:
        return signs
    at = len(signs) - len(end)
    first, second, heh = signs[at : at + 3]
    # the same letters with other vowels are other words: amusement, in the midst of it
    if (first.marks - {KASRA}) & _SAID or second.marks & {SUKUN, KASRA, DAMMA} or SUKUN in heh.marks:
        return signs
    return [*signs[: at + 2], _Sign("ا"), *signs[at + 2 :]]
