"""Connected digits: who is held out, what is said, and that both depend on names and takes alone."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile

from core.errors import DataError
from core.speech.config import DigitsSource
from core.speech.text import Plain, Vocabulary, frames_needed
from prepare.checks import frames_at_25_hz
from prepare.clip import Clip, Rejected, ShardedReader
from prepare.digits import TEST_UTTERANCES, VALID_UTTERANCES, WORDS, DigitsReader, utterance

SPEAKERS = ("ann", "bob", "cem")


def say(folder: Path, digit: int, speaker: str, take: int) -> None:
    """A digit of a speaker: a tone that no other has, 0.3 s at 8 kHz."""
    hz = 200 + 150 * digit + 30 * SPEAKERS.index(speaker) + take
    wave = 0.3 * np.sin(2 * np.pi * hz * np.arange(2400) / 8000)
    soundfile.write(folder / f"{digit}_{speaker}_{take}.wav", wave, 8000, subtype="PCM_16")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdd")
    for speaker in SPEAKERS:
        for digit in range(10):
            for take in (0, 1, 2, 10):
                say(folder, digit, speaker, take)
    (folder / "README.md").write_text("no clip")
    return folder


def reader(folder: Path, held_out: str = "cem", **options: int) -> DigitsReader:
    return DigitsReader(DigitsSource(path=str(folder), test_speaker=held_out, **{"utterances": 12, **options}), folder)


def clips(reader: DigitsReader, shard: str = "") -> list[Clip]:
    found = [c for s in reader.shards() if shard in ("", s.name) for c in s.clips()]
    return [clip for clip in found if isinstance(clip, Clip)]


def same(a: list[Clip], b: list[Clip]) -> bool:
    return a == b and all(np.array_equal(x.pcm, y.pcm) for x, y in zip(a, b, strict=True))  # type: ignore[arg-type]


def test_one_speaker_is_test_and_the_others_train_and_validate(corpus: Path) -> None:
    counts: dict[tuple[str | None, str | None], int] = {}
    for clip in clips(reader(corpus)):
        counts[clip.reciter, clip.split] = counts.get((clip.reciter, clip.split), 0) + 1

    assert counts == {
        ("ann", "train"): 12,
        ("ann", "valid"): VALID_UTTERANCES,
        ("bob", "train"): 12,
        ("bob", "valid"): VALID_UTTERANCES,
        ("cem", "test"): TEST_UTTERANCES,
    }


def test_an_utterance_is_two_to_six_words_with_gaps_and_int16_at_16_khz(corpus: Path) -> None:
    lengths = set()
    for clip in clips(reader(corpus), "digits-cem-test"):
        words = clip.text.split()
        lengths.add(len(words))
        assert set(words) <= set(WORDS) and clip.pcm is not None and clip.pcm.dtype == np.int16
        speech, silence = 0.3 * len(words), len(clip.pcm) / 16_000 - 0.3 * len(words)
        assert 0.1 + 0.05 * (len(words) - 1) - 0.001 <= silence <= 0.3 + 0.25 * (len(words) - 1) + 0.001, speech
    assert lengths == {2, 3, 4, 5, 6}


def test_the_text_is_what_is_heard() -> None:
    sounds = {digit: [np.full(1000, 100 + digit, np.int16)] for digit in (3, 7, 8)}
    for seed in range(30):
        digits, pcm = utterance(sounds, random.Random(seed).random)
        heard = [int(v) - 100 for v in pcm if v]
        assert heard[::1000] == digits


def test_validation_uses_takes_that_training_never_hears(corpus: Path) -> None:
    one = reader(corpus)
    parts = {part: clips(one, f"digits-ann-{part}") for part in ("train", "valid")}
    for part, takes in (("train", (1, 2)), ("valid", (0, 10))):
        sounds = [one._sound(take) for take in one._takes["ann"] if take.number in takes]
        pieces = {sound[100:140].tobytes() for sound in sounds if isinstance(sound, np.ndarray)}
        for clip in parts[part]:
            assert clip.pcm is not None
            assert any(piece in clip.pcm.tobytes() for piece in pieces)
        other = "valid" if part == "train" else "train"
        assert not any(p in c.pcm.tobytes() for c in parts[other] for p in pieces if c.pcm is not None)


def test_what_a_speaker_says_does_not_depend_on_who_is_held_out(corpus: Path) -> None:
    for shard in ("digits-ann-train", "digits-ann-valid"):
        assert same(clips(reader(corpus, "cem"), shard), clips(reader(corpus, "bob"), shard))
    fingerprints = [{s.name: s.fingerprint for s in reader(corpus, who).shards()} for who in ("cem", "bob")]
    assert fingerprints[0]["digits-ann-train"] == fingerprints[1]["digits-ann-train"]
    assert reader(corpus, "cem").fingerprint() != reader(corpus, "bob").fingerprint()


def test_the_seed_moves_training_and_neither_validation_nor_test(corpus: Path) -> None:
    one, two = reader(corpus, seed=1), reader(corpus, seed=2)

    assert not same(clips(one, "digits-ann-train"), clips(two, "digits-ann-train"))
    assert same(clips(one, "digits-ann-valid"), clips(two, "digits-ann-valid"))
    assert same(clips(one, "digits-cem-test"), clips(two, "digits-cem-test"))


def test_more_utterances_leave_the_first_as_they_were(corpus: Path) -> None:
    few, many = clips(reader(corpus), "digits-ann-train"), clips(reader(corpus, utterances=20), "digits-ann-train")

    assert same(few, many[:12]) and len({clip.text for clip in many}) > 10


def test_shards_are_the_clips_and_are_told_apart_before_they_are_made(corpus: Path) -> None:
    one = reader(corpus)

    assert isinstance(one, ShardedReader)
    assert [c.name for c in clips(one)] == [c.name for c in one.clips() if isinstance(c, Clip)]
    assert {c.shard for c in clips(one)} == {s.name for s in one.shards()}
    assert len({s.fingerprint for s in one.shards()}) == 5


def test_a_changed_take_changes_the_shards_that_hear_it_and_no_other(tmp_path: Path) -> None:
    for speaker in SPEAKERS:
        for digit in range(3):
            for take in (0, 1):
                say(tmp_path, digit, speaker, take)
    before = {s.name: s.fingerprint for s in reader(tmp_path).shards()}
    os.utime(tmp_path / "1_ann_1.wav", ns=(1, 1))
    after = {s.name: s.fingerprint for s in reader(tmp_path).shards()}

    assert {name for name in before if before[name] != after[name]} == {"digits-ann-train"}


def test_a_take_that_does_not_decode_is_dropped_and_the_rest_is_composed(tmp_path: Path) -> None:
    for digit in range(3):
        for take in (0, 1):
            say(tmp_path, digit, "ann", take)
            say(tmp_path, digit, "bob", take)
    (tmp_path / "0_ann_1.wav").write_bytes(b"")
    items = list(reader(tmp_path, "bob").clips())

    assert [i for i in items if isinstance(i, Rejected)] == [Rejected("0_ann_1.wav", "empty_file")]
    train = [i for i in items if isinstance(i, Clip) and i.split == "train"]
    assert len(train) == 12 and not any("zero" in clip.text for clip in train)


def test_a_missing_corpus_says_what_it_is_and_where_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)data.sources\[0\].path.*Free Spoken Digit Dataset.*LAYL_FSDD"):
        reader(tmp_path / "nowhere").fingerprint()
    with pytest.raises(DataError, match="holds no"):
        reader(tmp_path).fingerprint()


def test_an_unknown_held_out_speaker_is_told_who_there_is(corpus: Path) -> None:
    with pytest.raises(DataError, match=r"test_speaker.*'zoe'.*ann, bob, cem"):
        list(reader(corpus, "zoe").clips())


@pytest.mark.skipif(not os.environ.get("LAYL_FSDD"), reason="LAYL_FSDD names no corpus")
def test_the_real_corpus_has_six_speakers_whose_utterances_hold_their_letters() -> None:
    real = DigitsReader(DigitsSource(utterances=5), Path.cwd())
    names = {shard.name for shard in real.shards()}
    spoken = [*clips(real, "digits-theo-test"), *clips(real, "digits-nicolas-train")]
    letters = Vocabulary.of(Plain(), [clip.text for clip in spoken])

    assert len(names) == 11 and "digits-theo-test" in names
    assert len(spoken) == 305
    for clip in spoken:
        assert clip.pcm is not None and np.abs(clip.pcm).max() > 500
        assert frames_at_25_hz(len(clip.pcm), 1.1) >= frames_needed(letters.encode(clip.text))
