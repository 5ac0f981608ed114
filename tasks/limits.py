"""When a session of a flow may begin, and when it ends at the latest. Pure: no clock, no Prefect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from core.errors import ConfigError
from train.session import parse_duration, resolve_stop_at


@dataclass(frozen=True)
class Limits:
    """The end of a session in Unix seconds, None for none; and why it should not begin at all, or ""."""

    stop_at: float | None
    late: str = ""


def limits(
    scheduled: datetime,
    now: datetime,
    *,
    stop_at: str | None = None,
    stop_after: str | None = None,
    min_session_seconds: float = 0.0,
    max_late_seconds: float = float("inf"),
) -> Limits:
    """What a session that was to begin at ``scheduled`` and could begin ``now`` (both aware) may do.

    ``stop_at`` is the first such time after the scheduled start, so that a night that begins late does not become a
    day; ``stop_after`` counts from now. Raises ConfigError for a time or a duration that is none.
    """
    ends = []
    if stop_at is not None:
        ends.append(resolve_stop_at(str(stop_at), None, scheduled).timestamp())
    if stop_after is not None:
        ends.append(now.timestamp() + parse_duration(str(stop_after)))
    end = min(ends, default=None)
    behind = (now - scheduled).total_seconds()
    if behind > max_late_seconds:
        return Limits(end, f"{_minutes(behind)} after its scheduled start at {scheduled:%H:%M}")
    if end is None or stop_at is None:
        return Limits(end)
    left = end - now.timestamp()
    if left <= 0:
        return Limits(end, f"its end was at {stop_at}")
    if left < min_session_seconds:
        return Limits(end, f"only {_minutes(left)} are left until {stop_at}")
    return Limits(end)


def _minutes(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def as_overrides(values: dict[str, object] | None) -> tuple[str, ...]:
    """``{"train.lr": 5e-4}`` or ``{"train": {"lr": 5e-4}}`` as the ``a.b=c`` of the command line."""
    import json

    found: list[str] = []
    for name, value in (values or {}).items():
        if not isinstance(name, str) or not name:
            raise ConfigError("overrides", [f"{name!r}: expected a field's name, such as train.lr"])
        if isinstance(value, dict):
            found += [f"{name}.{inner}" for inner in as_overrides(value)]
        else:
            # JSON is YAML
            found.append(f"{name}={json.dumps(value, ensure_ascii=False)}")
    return tuple(found)
