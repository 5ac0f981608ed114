from __future__ import annotations

import unicodedata
from functools import cache

import pytest

from core.speech.text import LETTERS, skeleton
from prepare.quran import Riwaya, verses
from prepare.spoken import OPENED, spoken

NAMES = {"أَلِفْ", "لَامْ", "مِيمْ", "صَادْ", "كَافْ", "عَيْنْ", "طَا", "سِينْ", "حَا", "قَافْ", "نُونْ"}


@cache
def said(riwaya: Riwaya) -> dict[tuple[int, int], str]:
    return {place: spoken(verse, *place) for place, verse in verses(riwaya).items()}


def marks_sorted(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("ٱلرَّحْمَـٰنِ", "الرَّحْمَانِ"),
        ("ٱلۡحَمۡدُ", "الْحَمْدُ"),
        ("ٱلصَّلَوٰةَ", "الصَّلَاةَ"),
        ("سَجَىٰ", "سَجَا"),
        ("لَهُۥٓ", "لَهُو"),
        ("إِۦلَـٰفِهِمْ", "إِيلَافِهِمْ"),
        ("إِبْرَٰهِـۧمَ", "إِبْرَاهِيمَ"),
        ("نُـۨجِى", "نُنجِي"),
        ("فِى", "فِي"),
        ("فِے", "فِي"),
        ("شَىْءٍ", "شَيْءٍ"),
        ("تُمْلَى", "تُمْلَى"),
        ("بِٱلْـَٔاخِرَةِ", "بِالْءَاخِرَةِ"),
        ("اَ۬لنَّبِيٓـِٕۧنَ", "النَّبِيءِينَ"),
        ("قَالُوا۟", "قَالُو"),
        ("قَالُوٓاْ", "قَالُو"),
        ("أُو۟لَـٰٓئِكَ", "أُلَائِكَ"),
        ("أَ۟ذَا", "أَذَا"),
        ("هُدىٗ", "هُدًى"),
        ("شَيْـًٔا", "شَيْءًا"),
        ("نَصِيرٖۖ", "نَصِيرٍ"),
        ("خَيْرٞ", "خَيْرٌ"),
        ("بَصِيرُۢ", "بَصِيرٌ"),
        ("شَهِيداَۢ", "شَهِيدًا"),
        ("مِنۢ", "مِن"),
        ("مَجْر۪ىٰهَا", "مَجْرَاهَا"),
        ("لِلهِ", "لِلاهِ"),
        ("ٱللَّهُمَّ", "اللَّاهُمَّ"),
        ("ٱللَّهْوِ", "اللَّهْوِ"),
        ("رَيْبَ ۛ فِيهِ ۛ", "رَيْبَ فِيهِ"),
    ],
)
def test_an_uthmani_sign_becomes_what_a_synthesiser_reads(written, said):
    assert marks_sorted(spoken(written, 1, 1)) == marks_sorted(said)


def test_a_shadda_comes_before_its_vowel():
    assert spoken("رَ\u0651", 1, 1) == "ر\u0651\u064e"


def test_an_alef_of_connection_has_a_vowel_only_where_the_reader_starts():
    assert spoken("اُ۪هْدِنَا اَ۬لصِّرَٰطَ", 1, 5) == "اِهْدِنَا الص\u0651\u0650رَاطَ"
    assert spoken("اُ۟عْبُدُواْ", 1, 1) == "اُعْبُدُو"
    assert spoken("يَٰقَوْمِ اِ۟عْبُدُواْ", 1, 1) == "يَاقَوْمِ اعْبُدُو"
    assert spoken("اِ۬لْحَمْدُ", 1, 1) == "الْحَمْدُ"


@pytest.mark.parametrize(
    ("written", "sura", "aya", "said"),
    [
        ("الٓمٓ", 2, 1, "أَلِفْ لَامْ مِيمْ"),
        ("أَلَٓمِّٓۖ ذَٰلِكَ", 2, 1, "أَلِفْ لَامْ مِيمْ ذَالِكَ"),
        ("عٓسٓقٓ", 42, 2, "عَيْنْ سِينْ قَافْ"),
        ("أَلَمْ نَشْرَحْ", 94, 1, "أَلَمْ نَشْرَحْ"),
        ("أَلَمْ", 2, 106, "أَلَمْ"),
    ],
)
def test_opening_letters_are_said_by_their_names(written, sura, aya, said):
    assert spoken(written, sura, aya) == said


@pytest.mark.parametrize("riwaya", ["hafs", "warsh"])
def test_twenty_nine_suras_and_no_others_open_with_names(riwaya):
    named = {place for place, words in said(riwaya).items() if NAMES & set(words.split()[:3])}

    assert len(OPENED) == 29
    assert {sura for sura, _ in named} == OPENED
    assert named - {(42, 2)} == {(sura, 1) for sura in OPENED}


@pytest.mark.parametrize("riwaya", ["hafs", "warsh"])
def test_what_is_said_has_no_sign_that_a_synthesiser_would_spell(riwaya):
    assert set(" ".join(said(riwaya).values())) <= {*LETTERS, *"\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652", " "}


@pytest.mark.parametrize(("riwaya", "small_noon"), [("hafs", {(21, 88)}), ("warsh", {(12, 110), (21, 87)})])
def test_no_consonant_is_lost_or_added_but_the_small_noon(riwaya, small_noon):
    changed = {
        (sura, aya)
        for (sura, aya), text in verses(riwaya).items()
        if not (sura in OPENED and aya <= 2) and skeleton(said(riwaya)[sura, aya]) != skeleton(text)
    }

    assert changed == small_noon
