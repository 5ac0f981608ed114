from __future__ import annotations

import json
from dataclasses import dataclass

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError
from core.manifest import Row
from core.speech.scoring import Counts, count, greedy_decode, hear, letter_recall, score
from core.speech.text import BLANK, TEXT_MODES, Vocabulary

QURAN = TEXT_MODES["quran_letters"]
PLAIN = TEXT_MODES["plain"]
AHAD = "قُلۡ هُوَ ٱللَّهُ أَحَدٌ"

WORDS = st.lists(st.text("abcd", min_size=1, max_size=4), max_size=8).map(" ".join)
SAID = WORDS.filter(bool)


def row(
    text: str, *, riwaya: str | None = None, group: str = "professional", reciter: str | None = None, name: str = "x"
) -> Row:
    return Row(
        id=name, name=name, audio="a.wav", digest="d", duration=1.0, text=text, source="s", group=group,
        riwaya=riwaya, reciter=reciter,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hypothesis", "reference", "letters", "words", "skeleton"),
    [
        ("قل هو الله احد", AHAD, (1, 11), (1, 4), (0, 8)),
        ("الرحمن علم القرآن", "ٱلرَّحۡمَٰنُ عَلَّمَ ٱلۡقُرۡءَانَ", (1, 16), (1, 3), (0, 12)),
        ("الحمد لله رب العالمين", "ٱلۡحَمۡدُ لِلَّهِ رَبِّ ٱلۡعَٰلَمِينَ", (1, 17), (1, 4), (0, 14)),
        ("الذين يومنون بالغيب", "ٱلَّذِينَ يُؤۡمِنُونَ بِٱلۡغَيۡبِ", (1, 17), (1, 3), (0, 10)),
        ("غير المغذوب عليهم", "غَيۡرِ ٱلۡمَغۡضُوبِ عَلَيۡهِمۡ", (1, 15), (1, 3), (1, 11)),
        ("قل هو احد", AHAD, (4, 11), (2, 4), (3, 8)),
        ("قلهو الله احد", AHAD, (1, 11), (3, 4), (0, 8)),
        ("", AHAD, (11, 11), (4, 4), (8, 8)),
        ("قل", "", (2, 0), (1, 0), (2, 0)),
        ("بسم الله الرحمن الرحيم قل هو الله احد", AHAD, (20, 11), (5, 4), (15, 8)),
        ("والليل اذا يغشى", "وَٱلَّيۡلِ إِذَا يَغۡشَىٰ", (2, 12), (2, 3), (1, 5)),
        ("الف لام ميم", "الٓمٓ", (6, 3), (3, 1), (4, 2)),
    ],
)
def test_worked_errors(
    hypothesis: str, reference: str, letters: tuple[int, int], words: tuple[int, int], skeleton: tuple[int, int]
) -> None:
    counts = count(reference, hypothesis, QURAN)
    assert (counts.letter_errors, counts.letters) == letters
    assert (counts.word_errors, counts.words) == words
    assert (counts.skeleton_errors, counts.skeleton_letters) == skeleton


def test_a_lost_space_is_no_letter_error() -> None:
    counts = count("قل هو", "قلهو", QURAN)
    assert (counts.letter_errors, counts.spaced_errors, counts.spaced, counts.exact) == (0, 1, 5, 0)


def test_errors_are_told_apart_as_seen_from_what_was_said() -> None:
    kinds = [count(said, heard, PLAIN) for said, heard in (("abc", "abxc"), ("abc", "ac"), ("abc", "axc"))]
    assert [(c.insertions, c.deletions, c.substitutions) for c in kinds] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]


def test_a_clip_is_exact_when_its_normal_form_is() -> None:
    assert count(AHAD, " قل  هو الله أحد", QURAN).exact == 1
    assert count(AHAD, "قل هو الله احد", QURAN).exact == 0


def test_rates_of_nothing_are_none() -> None:
    nothing = Counts()
    rates = (nothing.cer, nothing.wer, nothing.skeleton, nothing.cer_spaces, nothing.exact_share)
    assert rates == (None,) * 5
    silent = count("", "قل", QURAN)
    assert (silent.cer, silent.wer, silent.exact_share) == (None, None, 0.0)


def test_a_mode_without_a_skeleton_has_no_skeleton_rate() -> None:
    assert count("one two", "one too", PLAIN).skeleton is None


@given(SAID, WORDS)
def test_rates_equal_those_of_jiwer(said: str, heard: str) -> None:
    counts = count(said, heard, PLAIN)
    words = jiwer.process_words(said, heard)
    spaced = jiwer.process_characters(said, heard)
    assert counts.wer == pytest.approx(words.wer)
    assert counts.cer_spaces == pytest.approx(spaced.cer)
    letters = jiwer.process_characters(said.replace(" ", ""), heard.replace(" ", ""))
    assert counts.cer == pytest.approx(letters.cer)
    assert (counts.insertions, counts.deletions, counts.substitutions) == (
        letters.insertions, letters.deletions, letters.substitutions,
    )  # fmt: skip


@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), st.integers(0, 6))
def test_counts_of_all_are_the_sum_over_parts(pairs: list[tuple[str, str]], cut: int) -> None:
    counted = [count(said, heard, PLAIN) for said, heard in pairs]
    assert sum(counted, Counts()) == sum(counted[:cut], Counts()) + sum(counted[cut:], Counts())
    whole = score([row(said) for said, _ in pairs], [heard for _, heard in pairs], PLAIN)
    errors, letters = sum(c.letter_errors for c in counted), sum(c.letters for c in counted)
    assert whole["cer"] == (round(errors / letters, 5) if letters else None)
    assert whole["insertions"] + whole["deletions"] + whole["substitutions"] == errors


def test_a_corpus_rate_is_no_mean_of_clips() -> None:
    assert score([row("ab"), row("abcdef")], ["", "abcdef"], PLAIN)["cer"] == 0.25


def test_every_group_is_scored_apart() -> None:
    long, middle = " ".join(["قل"] * 16), " ".join(["قل"] * 6)
    rows = [
        row("الٓمٓ", riwaya="hafs", reciter="husary"),
        row(middle, riwaya="warsh", reciter="aldosary"),
        row(long, riwaya="hafs", group="ordinary", reciter="husary"),
        row("", group="ordinary"),
    ]
    scores = score(rows, ["الم", middle[:-1], "قل", "قل"], QURAN)
    assert scores == json.loads(json.dumps(scores))
    assert {k: v for k, v in scores.items() if k not in ("letter_recall", "by_reader", "by_length")} == {
        "cer": round(33 / 47, 5),
        "wer": round(17 / 23, 5),
        "skeleton": round(33 / 46, 5),
        "cer_spaces": round(48 / 67, 5),
        "insertions": 2,
        "deletions": 31,
        "substitutions": 0,
        "exact": 0.25,
        "clips": 4,
        "letters": 47,
        "hafs_cer": round(30 / 35, 5),
        "warsh_cer": round(1 / 12, 5),
        "professional_cer": round(1 / 15, 5),
        "ordinary_cer": 1.0,
        "muqattaat_cer": 0.0,
    }
    assert scores["by_reader"] == {
        "aldosary": {"cer": round(1 / 12, 5), "wer": round(1 / 6, 5), "clips": 1, "letters": 12},
        "husary": {"cer": round(30 / 35, 5), "wer": round(15 / 17, 5), "clips": 2, "letters": 35},
    }
    assert scores["by_length"] == {
        "<=5": {"cer": round(2 / 3, 5), "wer": 1.0, "clips": 2, "letters": 3},
        "6-15": {"cer": round(1 / 12, 5), "wer": round(1 / 6, 5), "clips": 1, "letters": 12},
        ">15": {"cer": round(30 / 32, 5), "wer": round(15 / 16, 5), "clips": 1, "letters": 32},
    }


@pytest.mark.parametrize(("words", "bucket"), [(0, "<=5"), (5, "<=5"), (6, "6-15"), (15, "6-15"), (16, ">15")])
def test_length_is_the_number_of_words_said(words: int, bucket: str) -> None:
    by_length = score([row(" ".join(["a"] * words))], ["a a a a a a a"], PLAIN)["by_length"]
    assert [name for name in by_length if by_length[name]["clips"]] == [bucket]


def test_a_group_without_clips_is_null() -> None:
    scores = score([], [], QURAN)
    for name in ("cer", "wer", "skeleton", "cer_spaces", "exact", "hafs_cer", "warsh_cer", "professional_cer",
                 "ordinary_cer", "muqattaat_cer"):  # fmt: skip
        assert scores[name] is None
    assert scores["by_length"][">15"] == {"cer": None, "wer": None, "clips": 0, "letters": 0}
    assert scores["by_reader"] == {} and set(scores["letter_recall"].values()) == {None}


def test_a_dead_output_shows_in_the_recall_of_its_letter() -> None:
    recall = letter_recall(["رب قر", "بر"], ["ب ق", "برر"], QURAN)
    assert (recall["ر"], recall["ب"], recall["ق"], recall["ي"]) == (0.33333, 1.0, 1.0, None)
    assert len(recall) == 35
    assert letter_recall(["ab a"], ["xb a"], PLAIN) == {"a": 0.5, "b": 1.0}
    assert score([row("aab")], ["ab"], PLAIN)["letter_recall"] == {"a": 0.5, "b": 1.0}


def test_rows_and_hypotheses_of_different_number_are_refused() -> None:
    with pytest.raises(ValueError):
        score([row("a"), row("b")], ["a"], PLAIN)


def slow_decode(log_probs: np.ndarray, frames: np.ndarray, blank: int) -> list[list[int]]:
    decoded = []
    for clip, length in zip(log_probs, frames, strict=True):
        ids: list[int] = []
        before = None
        for frame in clip[:length]:
            best = int(np.argmax(frame))
            if best not in (blank, before):
                ids.append(best)
            before = best
        decoded.append(ids)
    return decoded


@given(st.integers(0, 5), st.integers(0, 12), st.integers(0, 2), st.integers(0, 10**6))
def test_greedy_decoding_equals_a_slow_loop(clips: int, length: int, blank: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    log_probs = random.normal(size=(clips, length, 3))
    frames = random.integers(0, length + 1, size=clips)
    assert greedy_decode(log_probs, frames, blank) == slow_decode(log_probs, frames, blank)


def one_hot(*clips: list[int], width: int = 4) -> np.ndarray:
    return np.eye(width, dtype=np.float32)[np.array(clips)]


def test_a_blank_parts_equal_neighbours() -> None:
    assert greedy_decode(one_hot([2, 2, 0, 2, 3, 3]), np.array([6])) == [[2, 2, 3]]


def test_padding_is_not_heard() -> None:
    assert greedy_decode(one_hot([2, 3, 1, 1], [1, 1, 1, 2]), np.array([2, 4])) == [[2, 3], [1, 2]]


def test_more_frames_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"frames \[5\]"):
        greedy_decode(one_hot([1, 1, 1, 1]), np.array([5]))


@dataclass(frozen=True)
class FakeBatch:
    indices: list[int]
    clips: list[list[int]]


def as_outputs(batch: FakeBatch) -> tuple[np.ndarray, np.ndarray]:
    return one_hot(*batch.clips), np.array([len(clip) for clip in batch.clips])


VOCABULARY = Vocabulary((BLANK, " ", "a", "b"))


def test_what_is_heard_goes_to_the_row_it_was_heard_on() -> None:
    batches = [FakeBatch([2, 0], [[2, 1, 3, 3], [0, 0, 3, 0]]), FakeBatch([1], [[1, 2, 0, 1]])]
    assert hear(as_outputs, batches, VOCABULARY) == {2: "a b", 0: "b", 1: "a"}


def test_a_vocabulary_of_another_model_is_refused() -> None:
    with pytest.raises(DataError, match="writes 4 symbols, the vocabulary has 3"):
        hear(as_outputs, [FakeBatch([0], [[1]])], Vocabulary((BLANK, " ", "a")))


def test_a_clip_without_an_output_is_refused() -> None:
    with pytest.raises(ValueError):
        hear(as_outputs, [FakeBatch([0, 1], [[1]])], VOCABULARY)
