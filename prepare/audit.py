"""What preparation found, twice from the same figures: meta for programs, audit.md for people. No times, no machine's
paths: the bytes are a function of sources and configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from core.manifest import SPLITS, Row, data_id
from prepare.checks import Dropped, by_reason
from prepare.clip import REASONS
from prepare.splits import Leak, Splits

_EXAMPLES = 3
#: letters a second this many robust deviations from the median are worth a listen
_ODD_DEVIATIONS = 5.0
_MOST_LISTED = 20

SYNTHETIC = (
    "The speech of the source `sample` is synthetic: it shows that the pipeline works, and nothing about how well "
    "people are understood."
)


def summary(
    run: str, mode: str, splits: Splits, dropped: Sequence[Dropped], kept: Sequence[int], kinds: Sequence[str]
) -> dict[str, Any]:
    """The meta file's fields. kept, kinds: rows kept of each source and its kind, in the configuration's order."""
    everything = [row for split in SPLITS for row in splits.rows[split]]
    return {
        "run": run,
        "text": mode,
        "data_id": {split: data_id(splits.rows[split]) for split in SPLITS},
        "clips": {split: len(splits.rows[split]) for split in SPLITS},
        "hours": {split: _hours(splits.rows[split]) for split in SPLITS},
        "hours_by": {
            "source": _grouped(everything, lambda row: row.source),
            "riwaya": _grouped(everything, lambda row: row.riwaya),
            "reader": _grouped(everything, lambda row: row.reciter),
        },
        "sources": [
            {"kind": kind, "kept": kept[index], "dropped": sum(drop.source_index == index for drop in dropped)}
            for index, kind in enumerate(kinds)
        ],
        "dropped": {
            reason: {"count": len(names), "examples": names[:_EXAMPLES]} for reason, names in by_reason(dropped).items()
        },
        "left_out": {"unseen_verse": splits.left_out},
        # the next preparation reads this: who was placed once stays
        "split": {
            "named": sorted(splits.named),
            "by_recording": sorted(splits.by_recording),
            "moved": dict(sorted(splits.moved.items())),
            "could_train": splits.could_train,
        },
        "synthetic": "sample" in kinds,
    }


def _hours(rows: Iterable[Row]) -> float:
    return round(math.fsum(row.duration for row in rows) / 3600, 4)


def _grouped(rows: Iterable[Row], key_of: Callable[[Row], str | None]) -> dict[str, float]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key_of(row) or "", []).append(row)
    # rows without the column are no group of their own: the sum tells
    return {key: _hours(groups[key]) for key in sorted(groups) if key}


def audit_text(meta: dict[str, Any], splits: Splits, leaks: Sequence[Leak]) -> str:
    """audit.md."""
    parts = [
        [f"# Data of {meta['run']}"],
        [SYNTHETIC] if meta["synthetic"] else [],
        _table(("split", "clips", "hours"), [(s, f"{meta['clips'][s]:,}", _h(meta["hours"][s])) for s in SPLITS]),
        [f"**{moved_sentence(what, split)}**" for what, split in splits.moved.items()],
        [*splits.notes, *_left_out(meta["left_out"]["unseen_verse"])],
        ["## Kept and dropped"],
        _table(
            ("source", "kept", "dropped"),
            [(s["kind"], f"{s['kept']:,}", f"{s['dropped']:,}") for s in meta["sources"]],
        ),
        _table(
            ("reason", "clips", "meaning", "for example"),
            [(r, f"{d['count']:,}", REASONS[r], ", ".join(d["examples"])) for r, d in meta["dropped"].items()],
        ),
        ["## Hours"],
        *(_table((what, "hours"), [(k, _h(v)) for k, v in hours.items()]) for what, hours in meta["hours_by"].items()),
        ["## Readers"],
        _table(("split", "readers"), [(s, _readers(splits.rows[s])) for s in SPLITS if splits.rows[s]]),
        ["## Lengths"],
        _lengths([row for split in SPLITS for row in splits.rows[split]]),
        ["## Leaks"],
        _leak_lines(leaks),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def moved_sentence(what: str, split: str) -> str:
    """A reader or recording that is held out although it was in train before, for a person."""
    return (
        f"Warning: {what} was in train before and is in {split} now. A run that was trained meanwhile knows it, and "
        "its scores flatter until `layl reset` begins it anew."
    )


def _h(hours: float) -> str:
    return f"{hours:,.2f}"


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count:,} clips of train and valid readers are left out, because their verse is one of unseen_verse's."]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines]


def _readers(rows: Iterable[Row]) -> str:
    names = sorted({row.reciter for row in rows if row.reciter})
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more or "not named"


def _lengths(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    by_length = sorted(rows, key=lambda row: (row.duration, row.name))
    odd = odd_speeds(rows)
    lines = [
        *(f"- shortest: {row.duration:.2f} s {row.name}" for row in by_length[:_EXAMPLES]),
        *(f"- longest: {row.duration:.2f} s {row.name}" for row in by_length[: -_EXAMPLES - 1 : -1]),
        f"- letters a second: {statistics.median(map(letters_per_second, rows)):.1f} in the middle, {len(odd):,} odd",
    ]
    lines += [f"- odd: {letters_per_second(row):.1f} letters a second, {row.name}" for row in odd[:_MOST_LISTED]]
    return lines


def letters_per_second(row: Row) -> float:
    """Letters without spaces over seconds of audio."""
    return len(row.text.replace(" ", "")) / row.duration


def odd_speeds(rows: Sequence[Row]) -> list[Row]:
    """Rows read so fast or so slowly that text and audio may not belong together, the oddest first.

    Measured in logarithms against the median, in units of 1.4826 times the median deviation (a normal sigma).
    """
    logs = [math.log(max(letters_per_second(row), 1e-3)) for row in rows]
    middle = statistics.median(logs)
    sigma = 1.4826 * statistics.median(abs(value - middle) for value in logs)
    found = [
        (abs(value - middle), row)
        for value, row in zip(logs, rows, strict=True)
        if abs(value - middle) > _ODD_DEVIATIONS * sigma and abs(value - middle) > math.log(1.5)
    ]
    return [row for _, row in sorted(found, key=lambda pair: (-pair[0], pair[1].name))]


def _leak_lines(leaks: Sequence[Leak]) -> list[str]:
    if not leaks:
        return ["None: no reader, audio or recording stands in two splits."]
    more = [f"- and {len(leaks) - _MOST_LISTED:,} more"] if len(leaks) > _MOST_LISTED else []
    return [*(f"- {leak_sentence(leak)}" for leak in leaks[:_MOST_LISTED]), *more]


def leak_sentence(leak: Leak) -> str:
    """One leak for a person."""
    return f"{leak.kind} {leak.what} stands in {' and '.join(leak.splits)}"
