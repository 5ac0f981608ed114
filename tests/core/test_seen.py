"""What a run remembers of whom it trained on, and what of that is held out now."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.manifest import Manifest, Row
from core.seen import held_out_origins, names_of, origins_of


def row(name: str, reciter: str | None = "Ann", digest: str | None = None) -> Row:
    return Row(
        id=name, name=name, audio="a", digest=digest or name, duration=1.0, text="a", source="s", group="ordinary",
        reciter=reciter,
    )  # fmt: skip


def splits(**rows: list[Row]) -> dict[str, Manifest]:
    names = ("train", "valid", "test", "unseen_verse")
    return {name: Manifest(name, tuple(rows.get(name, ()))) for name in names}


def seen(before: list[Row], **now: list[Row]) -> list[str]:
    trained = set(origins_of(before).tolist())
    return sorted(name for origin, name in held_out_origins(splits(**now)).items() if origin in trained)


def test_a_reader_who_moves_out_of_training_is_known_by_name_with_other_clips_and_another_spelling() -> None:
    assert seen([row("1", "Ann  Lee")], test=[row("2", "ann lee")]) == ["reader ann lee"]
    assert seen([row("1", "Ann")], valid=[row("2", "Ann")]) == ["reader ann"]


def test_a_recording_that_moves_is_known_under_any_name_and_with_any_transcript() -> None:
    moved = replace(row("2", None, digest="1"), text="b")
    assert seen([row("1", None)], valid=[moved]) == ["clip 2"]


def test_who_never_trained_is_not_seen() -> None:
    assert seen([row("1", "Ann")], test=[row("2", "Ben")], valid=[row("3", None)]) == []
    assert seen([], test=[row("2", "Ben")]) == []


def test_a_reader_on_both_sides_is_there_on_purpose_and_their_recordings_are_not() -> None:
    assert seen([row("1"), row("2")], train=[row("1")], valid=[row("3")]) == []
    assert seen([row("1"), row("2")], train=[row("1")], valid=[row("2")]) == ["clip 2"]


def test_origins_are_few_sorted_and_the_same_in_any_order() -> None:
    rows = [row(str(i), f"reader {i % 3}") for i in range(50)]
    found = origins_of(rows)
    assert found.dtype == np.int64 and len(found) == 53 and (np.diff(found) > 0).all()
    assert np.array_equal(found, origins_of(rows[::-1]))


def test_many_names_are_counted() -> None:
    assert names_of(["a", "b"]) == "a, b"
    assert names_of([str(i) for i in range(12)]).endswith("8, 9 and 2 more")
