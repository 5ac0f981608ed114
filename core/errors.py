"""The errors people meet: each says what is, what was expected and what to do; exit codes are part of the contract."""

from __future__ import annotations


class LaylError(Exception):
    """An error meant for a person: printed without a traceback; ``exit_code`` ends the process."""

    exit_code = 70


class ConfigError(LaylError):
    """A configuration that cannot be used. ``problems`` holds every mistake found, one sentence each.

    ``advice`` is a sentence about all of them.
    """

    exit_code = 65

    def __init__(self, where: str, problems: list[str], advice: str = ""):
        self.where = where
        self.problems = problems
        if len(problems) == 1:
            lines = [f"{where}: {problems[0]}"]
        else:
            lines = [f"{where}: {len(problems)} problems", *(f"  {p}" for p in problems)]
        super().__init__("\n".join([*lines, *([advice] if advice else [])]))


class DataError(LaylError):
    """Data that cannot be trusted: a missing source, a manifest whose digests disagree, a leak."""

    exit_code = 65


class CheckpointError(LaylError):
    """A checkpoint that cannot be read, or that belongs to something else."""


class UnknownFormatError(CheckpointError):
    """A whole checkpoint of another layl: nothing may be put in its place."""

    exit_code = 65


class BusyError(LaylError):
    """Somebody else holds the run."""

    exit_code = 69


class ExportRefused(LaylError):
    """A gate on the exported file failed; what was published before stays."""

    exit_code = 73
