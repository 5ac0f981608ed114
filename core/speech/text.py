"""How text becomes letters and letters become ids: two spellings that differ in marks alone are the same text here.

A text mode normalises; a vocabulary numbers what the mode leaves. Rows, references, hypotheses and tokens.txt all
go through these two, so that training, scoring and the phone mean the same by "a letter".
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from core.errors import DataError

#: The letters that both readings are written with once the marks are gone.
LETTERS = "ءأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي"
HAMZA = "ء"
BASMALA = "بسم الله الرحمن الرحيم"

#: How Quran texts write the disjoined letters that open twenty-nine suras; those with أ are the Warsh edition's.
MUQATTAAT = frozenset(
    ["الم", "المص", "الر", "المر", "كهيعص", "طه", "طسم", "طس", "يس", "ص", "حم", "عسق", "ق", "ن", "ألم", "ألر", "ألمر"]
)

BLANK = "<blk>"
SPACE_TOKEN = "\u2581"

# U+FDFD is a symbol without a decomposition: left alone it would vanish as an ornament.
_BASMALA_SIGN = "\ufdfd"
_SAME_LETTER = {
    "\u0671": "ا",  # alef wasla
    "\u06d2": "ي",  # yeh barree
    "\u06cc": "ي",  # Farsi yeh
    "\u06a9": "ك",  # keheh
    "\u06c1": "ه",  # heh goal
    "\u06be": "ه",  # heh doachashmee
}
_HAMZA_BELOW = "\u0655"
_HAMZA_MARKS = frozenset("\u0654\u0655\u0674")
_CARRIERS = {"ا": "أ", "و": "ؤ", "ي": "ئ", "ى": "ئ"}
# Small waw and small yeh are letters (Lm) to Unicode, but here they are marks that a hamza may follow.
_MARK_LETTERS = frozenset("\u06e5\u06e6")
_MARK_CATEGORIES = frozenset(("Mn", "Me", "Cf"))
_LETTER_SET = frozenset(LETTERS)

_SKELETON = str.maketrans({"ة": "ت", **dict.fromkeys("اويىءأإؤئ ", None)})


def letters(text: str) -> str:
    """The letters of Quranic text in either reading: at most 35 different ones and single spaces, no marks.

    A hamza written as a mark joins its carrier (alef, waw, yeh) or becomes a letter of its own; a madd sign on an
    alef is only a mark, which is why NFKD comes first and NFC never does. Any text is welcome, even one without
    a letter: "" comes back.
    """
    written: list[str] = []
    carrier = ""
    for ch in unicodedata.normalize("NFKD", text.replace(_BASMALA_SIGN, f" {BASMALA} ")):
        if ch in _HAMZA_MARKS:
            _write_hamza(written, carrier, ch)
            carrier = ""  # of several hamza marks the first one counts
            continue
        category = unicodedata.category(ch)
        if category in _MARK_CATEGORIES or ch in _MARK_LETTERS:
            continue
        letter = _SAME_LETTER.get(ch, ch)
        carrier = letter if category.startswith("L") else ""
        if letter in _LETTER_SET:
            written.append(letter)
        elif ch.isspace():
            written.append(" ")
    return " ".join("".join(written).split())


def _write_hamza(written: list[str], carrier: str, mark: str) -> None:
    if carrier in _CARRIERS:
        written[-1] = "إ" if carrier == "ا" and mark == _HAMZA_BELOW else _CARRIERS[carrier]
    elif carrier:
        # Also on a tatweel, which is not written itself: joining the letter before it would make شيءا into شئا.
        written.append(HAMZA)


def skeleton(text: str) -> str:
    """The consonants on which both readings and both spellings agree, without spaces.

    letters() with ة as ت and without alef, waw, yeh and every hamza.
    """
    return letters(text).translate(_SKELETON)


def is_muqattaat(text: str) -> bool:
    """Whether a text is nothing but disjoined letters (الم, طه, حم عسق): few letters on long audio.

    Decided by the letters and not by sura and aya, because Madani counting joins these openings to what follows,
    while folders of Warsh audio may well be numbered as Hafs. No other ayah is written like one; the single word
    أَلَمۡ is, if somebody cuts it out.
    """
    words = letters(text).split()
    return bool(words) and MUQATTAAT.issuperset(words)


def plain(text: str) -> str:
    """Any language's text as NFC, case-folded words of letters, marks and digits, with single spaces.

    Punctuation and symbols part words; control and format characters vanish; an apostrophe stays inside a word and
    is always U+0027.
    """
    kept: list[str] = []
    for ch in unicodedata.normalize("NFD", text).casefold():
        kind = unicodedata.category(ch)[0]
        if kind in "LMN":
            kept.append(ch)
        elif ch in "'\u2019":
            kept.append("'")
        elif ch.isspace() or kind != "C":
            kept.append(" ")
    words = (word.strip("'") for word in "".join(kept).split())
    return unicodedata.normalize("NFC", " ".join(word for word in words if word))


class TextMode(Protocol):
    """How a corpus writes. A new mode is one class and one entry in TEXT_MODES."""

    @property
    def name(self) -> str:
        """What ``data.text`` of a configuration calls it."""
        ...

    @property
    def alphabet(self) -> str | None:
        """Every letter it can write, without the space; None takes the letters from the data."""
        ...

    @property
    def skeleton(self) -> Callable[[str], str] | None:
        """Text to the letters that spelling cannot change; None if the mode knows no such thing."""
        ...

    def normalise(self, text: str) -> str:
        """Any text to letters and single spaces; normalising twice changes nothing."""
        ...


class QuranLetters:
    """Uthmani letters of Hafs and Warsh without marks."""

    name = "quran_letters"
    alphabet = LETTERS

    def normalise(self, text: str) -> str:
        return letters(text)

    def skeleton(self, text: str) -> str:
        return skeleton(text)


class Plain:
    """Any other corpus: its own letters, whatever they are."""

    name = "plain"
    alphabet = None
    skeleton = None

    def normalise(self, text: str) -> str:
        return plain(text)


TEXT_MODES: dict[str, TextMode] = {
    "quran_letters": QuranLetters(),
    "plain": Plain(),
}


@dataclass(frozen=True)
class Vocabulary:
    """What a model's output columns stand for: the CTC blank at 0, then single characters, the space among them.

    Raises DataError when made of anything else.
    """

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.symbols[:1] != (BLANK,):
            raise DataError(f"the first symbol is {self.symbols[:1]}; expected {BLANK}, the CTC blank, at id 0")
        for symbol in self.symbols[1:]:
            if len(symbol) != 1 or symbol == SPACE_TOKEN or (symbol.isspace() and symbol != " "):
                raise DataError(
                    f"{symbol!r} cannot be a symbol; expected single characters, the space as ' ' "
                    f"(tokens.txt writes it {SPACE_TOKEN}). Are these the tokens of another model?"
                )
        if len(set(self.symbols)) != len(self.symbols):
            twice = sorted({s for s in self.symbols if self.symbols.count(s) > 1})
            raise DataError(f"{twice} stand(s) twice in the vocabulary; expected each symbol once")

    @classmethod
    def of(cls, mode: TextMode, texts: Iterable[str]) -> Vocabulary:
        """Blank, space, then the mode's alphabet, or the sorted letters of ``texts`` where the mode has none."""
        found: Sequence[str] | None = mode.alphabet
        if found is None:
            found = sorted({letter for text in texts for letter in mode.normalise(text)} - {" "})
        if not found:
            raise DataError(f"no text holds a letter that {mode.name!r} keeps; check the sources' text column")
        return cls((BLANK, " ", *found))

    @classmethod
    def from_tokens_text(cls, text: str) -> Vocabulary:
        """The vocabulary of a tokens.txt, a byte order mark and CRLF included.

        Raises DataError for a line that is not "symbol id", for ids that do not count up from 0, and for symbols
        that a Vocabulary cannot hold.
        """
        symbols: list[str] = []
        # Not splitlines(): it also cuts at characters such as U+2028 that no writer of tokens.txt means as an end.
        lines = text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n").split("\n")
        for number, line in enumerate(lines):
            parts = line.split()
            if len(parts) != 2 or parts[1] != str(number):
                raise DataError(f'tokens.txt:{number + 1}: {line!r}; expected "symbol {number}", ids without a gap')
            symbols.append(" " if parts[0] == SPACE_TOKEN else parts[0])
        return cls(tuple(symbols))

    def tokens_text(self) -> str:
        """tokens.txt as sherpa-onnx reads it: one "symbol id" a line, the space as U+2581."""
        return "".join(f"{SPACE_TOKEN if s == ' ' else s} {i}\n" for i, s in enumerate(self.symbols))

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """The ids of normalised text. Raises DataError naming each letter that has none."""
        try:
            return [self._ids[letter] for letter in text]
        except KeyError:
            named = ", ".join(
                f"{letter!r} (U+{ord(letter):04X} {unicodedata.name(letter, 'without a name')})"
                for letter in sorted(self.unknown(text))
            )
            raise DataError(
                f"outside the vocabulary of {len(self)} symbols: {named} in {text[:60]!r}; "
                "expected text normalised by the run's text mode, with letters the vocabulary was made from"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids from 0 to len - 1; blanks write nothing. Raises IndexError for any other id."""
        written = []
        for i in ids:
            if i < 0:
                raise IndexError(f"id {i}; expected 0 to {len(self) - 1}")
            if i:
                written.append(self.symbols[i])
        return "".join(written)

    def unknown(self, text: str) -> set[str]:
        """The characters of a text that have no id."""
        return set(text) - self._ids.keys()

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}


def frames_needed(ids: Sequence[int]) -> int:
    """The fewest output frames in which CTC can write ``ids``: one each, and a blank between equal neighbours."""
    return len(ids) + sum(a == b for a, b in itertools.pairwise(ids))
