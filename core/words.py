"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import datetime


def caveat(*, synthetic: bool, seen: bool) -> str:
    """What is said wherever a score is shown that says nothing about people, or flatters; else nothing."""
    words = [word for word, holds in (("synthetic speech", synthetic), ("seen in training", seen)) if holds]
    return f" ({', '.join(words)})" if words else ""


def duration(seconds: float) -> str:
    """``45 s``, ``12 m`` or ``3 h 12 m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} m" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} m"


def time_of_day(unix_seconds: float) -> str:
    """``06:30`` in this machine's time zone."""
    return f"{datetime.fromtimestamp(unix_seconds):%H:%M}"


def rate(fraction: float | None) -> str:
    """An error rate, stored as a fraction, in percent."""
    return "-" if fraction is None else f"{fraction * 100:.2f} %"


def steps(step: int, planned: int) -> str:
    """``1,240/12,000``; without the plan while there is none."""
    return f"{step:,}/{planned:,}" if planned else f"{step:,}"
