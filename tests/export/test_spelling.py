from __future__ import annotations

from core.speech.text import letters
from export.spelling import imlaei_spelling


def test_uthmani_words_become_what_people_type_and_equal_ones_are_left_out() -> None:
    spelling = imlaei_spelling()
    assert spelling["العلمين"] == "العالمين"
    assert spelling["القرءان"] == "القرآن"
    assert "الحمد" not in spelling and "قل" not in spelling
    assert all(letters(word) == word and word != imlaei for word, imlaei in spelling.items())
    assert list(spelling) == sorted(spelling) and 2000 < len(spelling) < 2600
