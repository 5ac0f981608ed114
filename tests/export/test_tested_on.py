from __future__ import annotations

from core.manifest import SPLITS, Manifest, Row
from core.speech.text import TEXT_MODES
from export.tested_on import sentences


def clip(number: int, reciter: str | None = None, text: str = "قل هو الله أحد") -> Row:
    return Row(
        id=f"{number:016}",
        name=f"clip {number}",
        audio="x.wav",
        digest=f"{number:064}",
        duration=1.0,
        text=text,
        source="here",
        group="ordinary",
        reciter=reciter,
    )


def told(train: list[Row], **splits: list[Row]) -> dict[str, str]:
    rows = {"train": train, **splits}
    return sentences({s: Manifest(s, tuple(rows.get(s, []))) for s in SPLITS}, TEXT_MODES["quran_letters"])


def test_unheard_readers_are_called_unheard_and_a_split_without_clips_is_not_told_of() -> None:
    train = [clip(1, "Ali"), clip(2, "Omar")]
    assert told(train, test=[clip(3, "Zayd"), clip(4, "Anas")]) == {
        "test": "test: 2 readers, none of them heard in training"
    }
    assert told(train, test=[clip(3, "Zayd")])["test"] == "test: 1 reader, not heard in training"


def test_validation_on_training_readers_says_so() -> None:
    found = told([clip(1, "Ali"), clip(2, "Omar")], valid=[clip(3, "Ali"), clip(4, "Zayd"), clip(5, "Zayd")])
    assert found["valid"] == "validation: 1 of 2 readers heard in training; the weights were chosen by it"


def test_one_reader_in_two_spellings_is_one_reader() -> None:
    assert "1 of 1 readers heard" in told([clip(1, "Abd  al-Bāsit")], test=[clip(2, "abd al-ba\u0304sit")])["test"]


def test_nothing_is_claimed_of_readers_without_a_name() -> None:
    assert told([clip(1, "Ali")], test=[clip(2), clip(3)])["test"] == (
        "test: readers not named; other recordings than in training"
    )
    found = told([clip(1, "Ali"), clip(2)], test=[clip(3, "Zayd"), clip(4)])["test"]
    assert found == (
        "test: 1 reader, not heard in training; 1 of 2 clips name no reader; 1 of 2 training clips name no reader"
    )


def test_clips_that_were_trained_on_are_counted() -> None:
    assert told([clip(1), clip(2)], test=[clip(2), clip(3)])["test"] == (
        "test: readers not named; 1 of 2 clips trained on"
    )


def test_verses_are_unseen_only_if_training_does_not_hold_them() -> None:
    train, unseen = [clip(1, "Ali", "الله الصمد")], [clip(2, "Zayd", "لم يلد"), clip(3, "Zayd", "ولم يولد")]
    assert told(train, unseen_verse=unseen)["unseen_verse"] == (
        "unseen verses: 1 reader, not heard in training; texts that training never reads"
    )
    # in another spelling, it is the same verse
    leaked = told(
        [*train, clip(4, "Ali", "لم يالد")], unseen_verse=[clip(2, "Zayd", "لم يلد"), clip(5, "Zayd", "كفوا")]
    )
    assert leaked["unseen_verse"].endswith("1 of 2 texts read in training")
