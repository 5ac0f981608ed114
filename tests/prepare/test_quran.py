from __future__ import annotations

import gzip
import importlib.util
from collections import Counter

import pytest

from core.errors import DataError
from core.speech.text import BASMALA, LETTERS, letters, skeleton
from prepare import quran
from prepare.quran import verses

# sura: (ayat in Hafs, ayat in Warsh), where they differ
DIFFERENT = {
    2: (286, 285),
    4: (176, 175),
    5: (120, 122),
    6: (165, 167),
    8: (75, 76),
    9: (129, 130),
    11: (123, 121),
    13: (43, 44),
    14: (52, 54),
    17: (111, 110),
    18: (110, 105),
    19: (98, 99),
    20: (135, 134),
    21: (112, 111),
    22: (78, 76),
    23: (118, 119),
    24: (64, 62),
    26: (227, 226),
    27: (93, 95),
    30: (60, 59),
    31: (34, 33),
    35: (45, 46),
    36: (83, 82),
    38: (88, 86),
    39: (75, 72),
    40: (85, 84),
    41: (54, 53),
    42: (53, 50),
    44: (59, 56),
    45: (37, 36),
    46: (35, 34),
    47: (38, 39),
    52: (49, 47),
    53: (62, 61),
    55: (78, 77),
    56: (96, 99),
    57: (29, 28),
    58: (22, 21),
    67: (30, 31),
    71: (28, 30),
    73: (20, 18),
    74: (56, 55),
    75: (40, 39),
    79: (46, 45),
    89: (30, 32),
    96: (19, 20),
    99: (8, 9),
    101: (11, 10),
    106: (4, 5),
    107: (7, 6),
}


def test_the_readings_have_their_own_numbers_of_verses():
    assert (len(verses("hafs")), len(verses("warsh"))) == (6236, 6214)


def test_fifty_suras_have_another_count():
    hafs, warsh = (Counter(sura for sura, _ in text) for text in map(verses, ("hafs", "warsh")))

    assert len(DIFFERENT) == 50
    assert {sura: (hafs[sura], warsh[sura]) for sura in range(1, 115) if hafs[sura] != warsh[sura]} == DIFFERENT


@pytest.mark.parametrize("riwaya", ["hafs", "warsh"])
def test_verses_come_in_order_and_without_a_gap(riwaya):
    text = verses(riwaya)
    counts = Counter(sura for sura, _ in text)

    assert list(text) == [(sura, aya) for sura in range(1, 115) for aya in range(1, counts[sura] + 1)]


@pytest.mark.parametrize(("riwaya", "words"), [("hafs", 77_434), ("warsh", 77_425)])
def test_stop_signs_are_no_words(riwaya, words):
    assert sum(len(letters(verse).split()) for verse in verses(riwaya).values()) == words


@pytest.mark.parametrize("riwaya", ["hafs", "warsh"])
def test_both_readings_need_every_letter_and_no_other(riwaya):
    assert set(letters(" ".join(verses(riwaya).values()))) == {*LETTERS, " "}


@pytest.mark.parametrize(
    ("riwaya", "place", "expected"),
    [
        ("hafs", (1, 4), "ملك يوم الدين"),
        ("hafs", (2, 1), "الم"),
        ("hafs", (112, 1), "قل هو الله أحد"),
        ("warsh", (1, 3), "ملك يوم الدين"),
        ("warsh", (103, 1), "والعصر إن الانسن لفي خسر"),
        ("warsh", (112, 4), "ولم يكن له كفؤا احد"),
    ],
)
def test_fixed_verses(riwaya, place, expected):
    assert letters(verses(riwaya)[place]) == expected


@pytest.mark.parametrize(
    ("hafs", "warsh"),
    [
        ([(1, 2)], [(1, 1)]),
        ([(1, 7)], [(1, 6), (1, 7)]),
        ([(2, 255)], [(2, 253), (2, 254)]),
        ([(2, 286)], [(2, 285)]),
        ([(9, 129)], [(9, 130)]),
    ],
)
def test_the_same_words_stand_under_other_numbers(hafs, warsh):
    said = [
        "".join(skeleton(verses(riwaya)[place]) for place in places)
        for riwaya, places in (("hafs", hafs), ("warsh", warsh))
    ]

    assert said[0] == said[1]


@pytest.mark.parametrize("sura", [2, 42])
def test_warsh_joins_opening_letters_with_what_follows(sura):
    hafs, joined = verses("hafs"), skeleton(verses("warsh")[sura, 1])

    assert joined.startswith(skeleton(hafs[sura, 1] + hafs[sura, 2]))


def test_warsh_leaves_a_word_out():
    def words(text):
        return [skeleton(word) for word in letters(text).split()]

    hafs, warsh = words(verses("hafs")[57, 24]), words(verses("warsh")[57, 23])

    he = skeleton("هو")
    at = len(hafs) - 3
    assert hafs[at] == he
    assert hafs[:at] + hafs[at + 1 :] == warsh


def test_the_words_of_27_20_and_40_26_differ():
    assert "ما لى لا" in letters(verses("hafs")[27, 20])
    assert "مالي لا" in letters(verses("warsh")[27, 20])
    assert "دينكم أو أن" in letters(verses("hafs")[40, 26])
    assert "دينكم وأن" in letters(verses("warsh")[40, 26])


@pytest.mark.parametrize(("riwaya", "starts"), [("hafs", [(1, 1)]), ("warsh", [])])
def test_no_first_verse_has_a_basmala_in_front(riwaya, starts):
    text = verses(riwaya)

    def bare(verse):
        return letters(verse).replace(" ", "")

    basmala = BASMALA.replace(" ", "")
    assert [place for place, verse in text.items() if bare(verse).startswith(basmala)] == starts
    assert [place for place, verse in text.items() if basmala in bare(verse)] == [*starts, (27, 30)]


def test_a_caller_cannot_change_the_text_of_the_next():
    verses("hafs").clear()

    assert len(verses("hafs")) == 6236


@pytest.fixture
def fresh():
    quran._verses.cache_clear()
    yield
    quran._verses.cache_clear()


def test_a_missing_package_is_named_with_its_version(fresh, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(DataError, match=r"pip install 'quranic-phonemizer==3\.0\.5'"):
        verses("warsh")


@pytest.mark.parametrize("riwaya", ["hafs", "warsh"])
def test_a_package_without_its_files_is_no_riddle(fresh, monkeypatch, tmp_path, riwaya):
    monkeypatch.setattr(quran, "_folder", lambda: tmp_path)

    with pytest.raises(DataError, match=f"the {riwaya} text cannot be read .FileNotFoundError.*3.0.5"):
        verses(riwaya)


HEADER = '{"schema_version": 1, "artifact": "king-fahd-warsh-v2"}\n'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"schema_version": 2}\n', "header"),
        (HEADER + '{"source": [{"ref": "1:1:2", "text": "x"}]}\n', "word 1:1:2 is number 1"),
        (HEADER + '{"source": [{"ref": "1:1:1", "text": "x"}]}\n', "1 verses, expected 6214"),
    ],
)
def test_another_text_than_the_checked_one_is_refused(fresh, monkeypatch, tmp_path, content, problem):
    folder = tmp_path / "warsh" / "corpus"
    folder.mkdir(parents=True)
    (folder / "alignment.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    monkeypatch.setattr(quran, "_folder", lambda: tmp_path)

    with pytest.raises(DataError, match=problem):
        verses("warsh")
