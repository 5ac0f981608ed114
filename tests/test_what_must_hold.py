"""docs/what-must-hold.md names tests and breaks that exist."""

from __future__ import annotations

import re

from tests.mutate import BREAKS, ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|\n ").split(" | ")]
    for line in (ROOT / "docs" / "what-must-hold.md").read_text(encoding="utf-8").splitlines()
    if "::test_" in line
]


def test_the_table_is_read() -> None:
    assert len(ROWS) > 25 and {len(row) for row in ROWS} == {4}


def test_every_test_in_the_table_exists() -> None:
    for _, _, named, _ in ROWS:
        file, name = named.split("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), named


def test_every_break_in_the_table_exists_and_runs_its_test() -> None:
    breaks = {one.name: one for one in BREAKS}
    assert len(breaks) == len(BREAKS)
    for _, _, named, broken in ROWS:
        assert broken in breaks, broken
        # a break runs whole files of tests, or the very test where the others would take too long
        assert {named, named.split("::")[0]} & set(breaks[broken].tests.split()), (broken, named)


def test_every_break_is_of_one_place_in_the_code_of_today() -> None:
    for one in BREAKS:
        assert (ROOT / one.file).read_text(encoding="utf-8").count(one.old) == 1, one.name
