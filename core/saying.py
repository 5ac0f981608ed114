"""Words for people that must not end what they speak of: the disk that is full may be the one they are written to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def say(text: str) -> None:
    """A line on standard error, or nothing when that takes no more."""
    # ValueError: the stream was closed
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def or_said() -> Iterator[None]:
    """Writes that a disk may refuse without consequence: what people read lacks a line, and standard error has one."""
    try:
        yield
    except OSError as error:
        say(f"not written: {error}")
