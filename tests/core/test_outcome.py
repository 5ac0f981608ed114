from __future__ import annotations

import typing

import pytest

from core.outcome import EXIT_CODES, Kind, Outcome


def test_every_kind_has_an_exit_code_and_only_finished_is_success():
    assert set(EXIT_CODES) == set(typing.get_args(Kind))
    assert [kind for kind, code in EXIT_CODES.items() if code == 0] == ["finished"]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("finished", 0),
        ("paused", 75),
        ("stopped", 75),
        ("discarded", 76),
        ("busy", 69),
        ("invalid", 65),
        ("crashed", 70),
    ],
)
def test_the_exit_codes_are_those_that_front_ends_know(kind, code):
    assert Outcome(kind, 0, 5).exit_code == code
