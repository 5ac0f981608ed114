"""Figures for programs and sentences for people, from the same rows."""

from __future__ import annotations

from core.manifest import Row
from prepare.audit import SYNTHETIC, audit_text, letters_per_second, odd_speeds, summary
from prepare.checks import Dropped
from prepare.splits import Leak, Splits


def row(name: str, seconds: float = 2.0, text: str = "abcd efgh", **more: str) -> Row:
    return Row(
        id=name, name=name, audio=name, digest=name, duration=seconds, text=text, source="s", group="ordinary", **more
    )


SPLITS = Splits(
    {
        "train": (row("a", 1800.0, reciter="ann", riwaya="warsh"), row("b", 900.0, reciter="bob")),
        "valid": (row("c|d", 900.0),),
        "test": (),
        "unseen_verse": (),
    },
    left_out=7,
    notes=("cem moved.",),
)
DROPPED = [Dropped(0, f"{i}.wav", "silent") for i in range(5)]


def test_the_meta_counts_hours_by_split_source_riwaya_and_reader() -> None:
    meta = summary("mine", "plain", SPLITS, DROPPED, [3], ["nemo"])

    assert meta["hours"] == {"train": 0.75, "valid": 0.25, "test": 0.0, "unseen_verse": 0.0}
    assert meta["hours_by"] == {"source": {"s": 1.0}, "riwaya": {"warsh": 0.5}, "reader": {"ann": 0.5, "bob": 0.25}}
    assert meta["dropped"] == {"silent": {"count": 5, "examples": ["0.wav", "1.wav", "2.wav"]}}
    assert meta["left_out"] == {"unseen_verse": 7} and meta["synthetic"] is False
    assert meta["sources"] == [{"kind": "nemo", "kept": 3, "dropped": 5}]
    assert len(set(meta["data_id"].values())) == 3


def test_the_audit_says_what_is_synthetic_what_moved_and_what_leaks() -> None:
    synthetic = audit_text(summary("r", "plain", SPLITS, [], [3], ["sample"]), SPLITS, [])
    real = audit_text(
        summary("r", "plain", SPLITS, DROPPED, [3], ["nemo"]), SPLITS, [Leak("reader", "ann", ("train", "test"))]
    )

    assert SYNTHETIC in synthetic and SYNTHETIC not in real
    assert "cem moved." in real and "7 clips of train and valid readers are left out" in real
    assert "reader ann stands in train and test" in real and "None: no reader" in synthetic
    assert "| silent | 5 |" in real and "c\\|d" not in real.split("## Lengths")[0]
    assert "longest: 1800.00 s a" in real


def test_a_clip_far_too_slow_for_its_text_is_odd_and_ordinary_ones_are_not() -> None:
    rows = [row(f"{i}", 2.0 + 0.01 * (i % 7)) for i in range(50)]
    strange = [row("slow", 20.0), row("fast", 0.3)]

    assert [r.name for r in odd_speeds([*rows, *strange])] == ["slow", "fast"]
    assert odd_speeds(rows) == []
    assert letters_per_second(rows[0]) == 4.0
