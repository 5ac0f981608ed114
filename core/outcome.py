"""How a session ended, and the exit code that says so to whoever started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["finished", "paused", "stopped", "discarded", "busy", "invalid", "crashed"]

EXIT_CODES: dict[str, int] = {
    "finished": 0,
    "paused": 75,
    "stopped": 75,
    "discarded": 76,
    "busy": 69,
    "invalid": 65,
    "crashed": 70,
}


@dataclass(frozen=True)
class Outcome:
    """What a session came to: kind, where it began and ended (steps), why, and whether it can go on."""

    kind: Kind
    from_step: int
    to_step: int
    reason: str = ""
    resumable: bool = True

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.kind]
