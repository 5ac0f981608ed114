"""Prints the table of the digit runs: each row is scored on a speaker that its run never heard, on the int8 file.

``python benchmarks/digits_table.py metrics/digits-*.json``
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One run: the speaker it was tested on and two shares, both of the exported int8 file."""

    speaker: str
    words_right: float
    cer: float


def read_row(path: Path) -> Row:
    """The test scores of one ``metrics/<run>.json``. Raises ValueError when it has none."""
    try:
        test = json.loads(path.read_text(encoding="utf-8"))["test"]
        return Row(path.stem.removeprefix("digits-"), 1 - float(test["wer"]), float(test["cer"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: no test scores ({error}); run `layl export {path.stem}`") from None


def table(rows: list[Row]) -> str:
    """The rows as Markdown, then their mean and the worst speaker. ``rows`` must not be empty."""
    mean = Row("mean", sum(r.words_right for r in rows) / len(rows), sum(r.cer for r in rows) / len(rows))
    worst = min(rows, key=lambda row: row.words_right)
    shown = [*rows, mean, Row(f"worst: {worst.speaker}", worst.words_right, worst.cer)]
    lines = ["| speaker never heard | words right | CER |", "|---|---|---|"]
    lines += [f"| {row.speaker} | {row.words_right:.1%} | {row.cer:.1%} |" for row in shown]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Exit code 0, or 66 with one line for each file that is missing or holds no scores."""
    rows, problems = [], []
    for path in map(Path, arguments):
        try:
            rows.append(read_row(path))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    if rows:
        print(table(rows))
    for problem in problems or ([] if rows else ["name the metrics files: metrics/digits-*.json"]):
        print(problem, file=sys.stderr)
    return 66 if problems or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
