from __future__ import annotations

import typing
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import DataError
from core.speech.config import DataSection
from core.speech.text import (
    BLANK,
    LETTERS,
    TEXT_MODES,
    Vocabulary,
    frames_needed,
    is_muqattaat,
    letters,
    plain,
    skeleton,
)

QURAN = TEXT_MODES["quran_letters"]
PLAIN = TEXT_MODES["plain"]

ARABIC = st.text(
    st.one_of(
        st.sampled_from([*LETTERS, *" \u0640\u0671\u06cc\u06d2\u06e5\u06e6\u0674\u06c0\u06d5\u06dd\u06de\ufdfd\ufdf2"]),
        st.characters(min_codepoint=0x0600, max_codepoint=0x06FF),
        st.characters(min_codepoint=0x064B, max_codepoint=0x065F),
    ),
    max_size=30,
)
ANY_TEXT = st.one_of(ARABIC, st.text(max_size=30))


def spelled(code_points: str) -> str:
    return "".join(chr(int(point, 16)) for point in code_points.split())


@pytest.mark.parametrize(
    ("code_points", "expected"),
    [
        ("0628 0650 0640 064E 0654 0627 064A 064E 0670 062A 0650 0646 064E 0627", "بءايتنا"),
        ("0621 064E 0627 0645 064E 0646 064F 0648 0627 0652", "ءامنوا"),
        ("0622 0645 064E 0646 064F 0648 0627", "امنوا"),
        ("0671 0644 0635 064E 0651 0644 064E 0648 0670 0629 064E", "الصلوة"),
        ("0627 0650 06EC 0644 0652 0639 064E 0670 0644 064E 0645 0650 064A 0646 064E", "العلمين"),
        ("0671 0644 06E1 0639 064E 0670 0644 064E 0645 0650 064A 0646 064E", "العلمين"),
        ("0671 0644 062F 064E 0651 0627 0631 0650 06DE 0020 06DD 0662 0665 0665", "الدار"),
        (
            "0643 064E 0644 064E 0651 0627 0020 06D6 0020 "
            "0644 064E 064A 064F 0646 06E2 0628 064E 0630 064E 0646 064E 0651",
            "كلا لينبذن",
        ),
        ("0645 064E 062C 06E1 0631 06EA 0649 0670 0647 064E 0627", "مجرىها"),
        ("0625 0650 0628 06E1 0631 064E 0670 0647 0650 0640 06E7 0645 064E", "إبرهم"),
        ("06A9 062A 0627 0628", "كتاب"),
        ("0628 0650 0647 0650 06E6", "به"),
        ("0627 06EC 0644 0646 064E 0651 0628 0650 064A 0653 0640 0650 0655 064A 0646 064E", "النبيءين"),
    ],
)
def test_letters_of_a_word(code_points: str, expected: str) -> None:
    assert letters(spelled(code_points)) == expected


def test_a_byte_order_mark_is_no_letter() -> None:
    assert letters("\ufeffبِسْمِ ٱللَّهِ ٱلرَّحْمَٰنِ ٱلرَّحِيمِ") == "بسم الله الرحمن الرحيم"


def test_digits_brackets_and_line_ends_are_no_letters() -> None:
    assert letters("(1) بسم الله\r\n") == "بسم الله"


def test_the_basmala_sign_is_the_basmala() -> None:
    assert letters("\ufdfdقل") == "بسم الله الرحمن الرحيم قل"
    assert letters("ب\ufdf2") == "بالله"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ا\u0654 ا\u0655 و\u0654 ي\u0654 ى\u0654", "أ إ ؤ ئ ئ"),
        ("\u0671\u0654 \u06cc\u0654 \u06d3", "أ ئ ئ"),
        ("ا\u0674 و\u0674", "أ ؤ"),
        ("و\u0655 ي\u0655", "ؤ ئ"),
        ("ر\u0654", "رء"),
        ("ش\u064eي\u06e1\u0640\u0654\u064bا", "شيءا"),
        ("ا\u0674\u0655", "أ"),
        ("ا\u064e\u0653\u06e6\u0654", "أ"),
        ("\u0654ا", "ا"),
        ("ا 1\u0654", "ا"),
    ],
)
def test_a_hamza_mark_joins_what_carries_it(text: str, expected: str) -> None:
    assert letters(text) == expected


def test_maqsura_and_marbuta_stay_themselves() -> None:
    assert letters("هُدًى رَحۡمَةٌ") == "هدى رحمة"


def test_other_letters_of_the_same_shape_are_written_as_ours() -> None:
    assert letters("\u0671\u06d2\u06cc\u06a9\u06c1\u06be") == "اييكهه"


def test_text_without_letters_is_empty() -> None:
    assert letters("Abc 123 ۞ \u0640 \u06dd") == ""


@given(ANY_TEXT)
def test_letters_of_letters_are_the_same(text: str) -> None:
    once = letters(text)
    assert letters(once) == once


@given(ANY_TEXT)
def test_letters_write_nothing_but_35_letters_and_single_spaces(text: str) -> None:
    once = letters(text)
    assert set(once) <= set(LETTERS) | {" "}
    assert once == " ".join(once.split())
    assert len(set(LETTERS)) == 35


@given(ANY_TEXT, st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
@example("\u0627\u064e\u0653", "NFC")
@example("\u0627\u0654\u0655", "NFC")
def test_letters_do_not_depend_on_the_normal_form(
    text: str, form: typing.Literal["NFC", "NFD", "NFKC", "NFKD"]
) -> None:
    assert letters(unicodedata.normalize(form, text)) == letters(text)


@given(ANY_TEXT)
def test_a_skeleton_holds_no_weak_letter_and_no_space(text: str) -> None:
    assert set(skeleton(text)) <= set(LETTERS) - set("اويىءأإؤئة")


def test_both_spellings_have_one_skeleton() -> None:
    assert skeleton("ٱلصَّلَوٰةَ") == skeleton("الصلاة") == "لصلت"
    assert skeleton("أَوۡ") == ""


@pytest.mark.parametrize(
    "text",
    ["الٓمٓ", "الٓمٓصٓ", "كٓهيعٓصٓ", "طه", "طسٓمٓ", "يسٓ", "حمٓ", "عٓسٓقٓ", "حمٓ عٓسٓقٓۖ", "الٓرۚ", "نٓۚ", "أَلَٓمِّٓۖ", "أَلَٓر۪ۖ", "أَلَٓمِّٓر۪ۖ"],
)
def test_disjoined_letters_are_known_in_either_reading(text: str) -> None:
    assert is_muqattaat(text)


@pytest.mark.parametrize("text", ["", "الٓمٓ ذَٰلِكَ ٱلۡكِتَٰبُ", "صٓۚ وَٱلۡقُرۡءَانِ", "قُلۡ", "hm"])
def test_other_text_is_not_taken_for_disjoined_letters(text: str) -> None:
    assert not is_muqattaat(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  One,  TWO\tthree.\r\n", "one two three"),
        ("Don\u2019t 'quote' the dogs' tail", "don't quote the dogs tail"),
        ("E\u0301te\u0301", "\u00e9t\u00e9"),
        ("e\u200d\u0301", "\u00e9"),
        ("Stra\u00dfe 24/7", "strasse 24 7"),
        ("well-known \u2014 fact", "well known fact"),
        ("\ufeffa\u00adb\x00c", "abc"),
        ("\u2581 $ ' -", ""),
    ],
)
def test_plain_text_keeps_words_and_drops_the_rest(text: str, expected: str) -> None:
    assert plain(text) == expected


@given(st.text(max_size=30))
def test_plain_text_stays_as_it_is(text: str) -> None:
    once = plain(text)
    assert plain(once) == once
    assert once == " ".join(once.split())


@given(st.text(max_size=30))
@example("\u03b1\u0345\u0301")
def test_plain_text_does_not_depend_on_composition(text: str) -> None:
    assert plain(unicodedata.normalize("NFD", text)) == plain(unicodedata.normalize("NFC", text)) == plain(text)


def test_every_mode_of_the_configuration_exists_under_its_name() -> None:
    assert set(TEXT_MODES) == set(typing.get_args(DataSection.model_fields["text"].annotation))
    assert all(name == mode.name for name, mode in TEXT_MODES.items())


def test_the_quran_vocabulary_has_37_symbols_whatever_the_texts() -> None:
    assert Vocabulary.of(QURAN, ["قل"]).symbols == (BLANK, " ", *LETTERS)
    assert len(Vocabulary.of(QURAN, [])) == 37


def test_a_plain_vocabulary_is_made_of_the_letters_of_the_texts() -> None:
    assert Vocabulary.of(PLAIN, ["Two, one", "ten"]).symbols == (BLANK, " ", *"enotw")


def test_texts_without_letters_make_no_vocabulary() -> None:
    with pytest.raises(DataError, match="'plain'"):
        Vocabulary.of(PLAIN, ["...", ""])


def test_tokens_are_written_as_sherpa_reads_them() -> None:
    assert Vocabulary((BLANK, " ", "a", "b")).tokens_text() == "<blk> 0\n\u2581 1\na 2\nb 3\n"


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5), st.booleans())
def test_a_vocabulary_survives_tokens_txt(texts: list[str], windows: bool) -> None:
    try:
        vocabulary = Vocabulary.of(PLAIN, texts)
    except DataError:
        return
    written = vocabulary.tokens_text()
    if windows:
        written = "\ufeff" + written.replace("\n", "\r\n")
    assert Vocabulary.from_tokens_text(written) == vocabulary


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ("", "tokens.txt:1"),
        ("a 0\nb 1\n", "first symbol"),
        ("<blk> 1\n", "tokens.txt:1"),
        ("<blk> 0\na 1\nb 3\n", "tokens.txt:3"),
        ("<blk> 0\na 0\n", "tokens.txt:2"),
        ("<blk> 0\na 1\na 2\n", "twice"),
        ("<blk> 0\n 1\n", "tokens.txt:2"),
        ("<blk> 0\n\na 1\n", "tokens.txt:2"),
        ("<blk> 0\n\u2581the 1\n", "another model"),
        ("<blk> 0\n<blk> 1\n", "another model"),
    ],
)
def test_tokens_of_another_kind_are_refused(tokens: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Vocabulary.from_tokens_text(tokens)


def test_a_symbol_that_tokens_txt_cannot_write_is_refused() -> None:
    for symbol in ("\u2581", "\u00a0", ""):
        with pytest.raises(DataError):
            Vocabulary((BLANK, " ", symbol))


@given(ANY_TEXT)
def test_text_survives_encoding(text: str) -> None:
    vocabulary = Vocabulary.of(QURAN, [])
    ids = vocabulary.encode(letters(text))
    assert vocabulary.decode(ids) == letters(text)
    assert all(1 <= i < len(vocabulary) for i in ids)


def test_a_letter_outside_the_vocabulary_is_named_with_its_code_point() -> None:
    vocabulary = Vocabulary.of(QURAN, [])
    with pytest.raises(DataError, match=r"'A' \(U\+0041 LATIN CAPITAL LETTER A\), .* \(U\+06DD ARABIC END OF AYAH\)"):
        vocabulary.encode("قل A\u06dd")
    assert vocabulary.unknown("قل A\u06dd") == {"A", "\u06dd"}
    assert vocabulary.unknown("قل هو") == set()


def test_blanks_write_nothing_and_strange_ids_are_refused() -> None:
    vocabulary = Vocabulary((BLANK, " ", "a"))
    assert vocabulary.decode([0, 2, 0, 1, 2]) == "a a"
    for strange in (-1, 3):
        with pytest.raises(IndexError):
            vocabulary.decode([strange])


@pytest.mark.parametrize(("ids", "frames"), [([], 0), ([5], 1), ([5, 5], 3), ([5, 6, 5], 3), ([5, 5, 5, 6], 6)])
def test_equal_neighbours_need_a_blank_between(ids: list[int], frames: int) -> None:
    assert frames_needed(ids) == frames
