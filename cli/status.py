"""``layl status``: how a run stands, from its small files alone; quick enough to ask every second."""

from __future__ import annotations

import json
import time
from typing import Any

import typer

from core.run_dir import RunDir, read_json
from core.words import caveat, duration, rate, steps, time_of_day

#: How an ended session is called once its process is gone; what was refused changed nothing.
PHASE_OF_OUTCOME = {
    "finished": "finished",
    "paused": "paused",
    "stopped": "stopped",
    "discarded": "stopped",
    "crashed": "crashed",
}


def status(
    run: str | None = typer.Argument(None, metavar="[RUN]", help="The run; without it, a line for each."),
    as_json: bool = typer.Option(
        False, "--json", help="Print all that is known as a JSON object (without RUN: a list)."
    ),
) -> None:
    """Say how a run stands, and who trains it.

    Phase, step, loss, speed, best score, time to go, and how the last session ended.

    \b
      layl status
      layl status quran
      layl status quran --json
    """
    from core.project import known_run
    from core.run_dir import find_root, known_runs

    root = find_root()
    if run is not None:
        facts = gather(known_run(root, run))
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=1) if as_json else describe(facts, time.time()))
        return
    every = [gather(RunDir(root, name)) for name in known_runs(root)]
    if as_json:
        typer.echo(json.dumps(every, ensure_ascii=False, indent=1))
    elif not every:
        typer.echo(f"no runs yet: {root / 'configs'} holds no configuration")
    else:
        width = max(len(facts["name"]) for facts in every)
        for facts in every:
            typer.echo(f"{facts['name']:<{width}}  {summary(facts)}")


def gather(run: RunDir) -> dict[str, Any]:
    """Everything the run's small files say, merged; reads no log of events."""
    from core.control import read_request
    from core.manifest import read_meta
    from core.process import owner_is_alive

    owner = _mapping(read_json(run.owner))
    asked = read_request(run)
    return merge(
        run.name,
        status=_mapping(read_json(run.status)),
        result=_mapping(read_json(run.result)),
        owner=owner,
        active=owner_is_alive(owner),
        last=_mapping(read_json(run.last_facts)),
        meta=read_meta(run.manifests),
        asked=asked.action if asked and owner and asked.session in (None, owner.get("session")) else None,
    )


def _mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def merge(
    name: str,
    *,
    status: dict[str, Any] | None,
    result: dict[str, Any] | None,
    owner: dict[str, Any] | None,
    active: bool,
    last: dict[str, Any] | None,
    meta: dict[str, Any] | None,
    asked: str | None = None,
) -> dict[str, Any]:
    """One object from what each file says. *Finished* (the run has all its steps) and *active* (a process
    trains it) are two things: a session that ends is finished before its process is gone.
    """
    phase = _phase(status, result, owner, active, asked)
    merged = dict(status or {})
    if active and owner and merged.get("session") not in (None, owner.get("session")):
        # a session that has not begun to train yet: what the one before measured is not its own
        merged |= {"audio_h_per_h": None, "eta_h": None, "stop_at": None, "stop_reason": "", "error": ""}
    if not merged and last:
        merged |= {"step": last.get("step"), "total_steps": last.get("planned")}
    return merged | {
        "name": name,
        "phase": phase,
        "active": active,
        "finished": phase == "finished",
        "stop_requested": asked if active else None,
        "saved_step": (last or {}).get("step"),
        "data_id": _of_train(meta, "data_id") or merged.get("data_id"),
        "owner": owner if active else None,
        "last_outcome": result,
        "data": {key: value for key, value in meta.items() if key != "files"} if meta else None,
    }


def _phase(
    status: dict[str, Any] | None,
    result: dict[str, Any] | None,
    owner: dict[str, Any] | None,
    active: bool,
    asked: str | None,
) -> str | None:
    from core.status import ACTIVE_PHASES

    said = (status or {}).get("phase")
    if active:
        if (status or {}).get("session") not in (None, (owner or {}).get("session")):
            said = "starting"
        return "stopping" if asked and said != "saving" else said or "starting"
    ended = PHASE_OF_OUTCOME.get((result or {}).get("outcome", ""))
    if ended:
        return ended
    # nobody trains, and nobody said how it ended: a power cut, a kill of everything
    return "crashed" if said in ACTIVE_PHASES else said


def summary(facts: dict[str, Any]) -> str:
    """A run in one line."""
    parts = [facts["phase"] or ("prepared" if facts["data"] else "not prepared yet")]
    if facts.get("step"):
        parts.append(f"step {steps(facts['step'], facts.get('total_steps') or 0)}")
    if facts.get("loss") is not None:
        parts.append(f"loss {facts['loss']:.4f}")
    if facts.get("best_score") is not None:
        parts.append(f"best {rate(facts['best_score'])}{_kind(facts)}")
    if facts["active"] and facts.get("eta_h"):
        parts.append(f"{duration(facts['eta_h'] * 3600)} to go")
    return "  ".join(parts)


def describe(facts: dict[str, Any], now: float) -> str:
    """A run in some lines; what is not known is left out."""
    from core.lock import owner_line

    lines = [f"{facts['name']}: {facts['phase'] or 'not trained yet'}"]
    rows = [
        ("step", _step(facts)),
        ("loss", _loss(facts)),
        ("speed", _speed(facts)),
        ("best", _best(facts)),
        ("session", facts["owner"] and owner_line(facts["owner"]).removeprefix("session ")),
        ("pauses", facts["active"] and _pause(facts, now)),
        ("asked to", facts["stop_requested"]),
        ("last ended", not facts["active"] and _ended(facts["last_outcome"])),
        ("message", facts["active"] and facts.get("message")),
        ("error", facts.get("error")),
        ("data", _data(facts)),
    ]
    return "\n".join(lines + [f"  {name:<11} {text}" for name, text in rows if text])


def _step(facts: dict[str, Any]) -> str:
    step, planned = facts.get("step"), facts.get("total_steps") or 0
    if step is None:
        return ""
    text = steps(step, planned)
    if planned:
        text += f" ({step / planned:.0%})"
    if facts.get("epochs"):
        text += f", epoch {facts.get('epoch')}/{facts['epochs']:g}"
    return text


def _best(facts: dict[str, Any]) -> str:
    if facts.get("best_score") is None:
        return ""
    return f"{rate(facts['best_score'])} at step {facts['best_step']:,}{_kind(facts)}"


def _kind(facts: dict[str, Any]) -> str:
    return caveat(synthetic=bool((facts["data"] or {}).get("synthetic")), seen=bool(facts.get("seen_in_training")))


def _loss(facts: dict[str, Any]) -> str:
    if facts.get("loss") is None:
        return ""
    lr = facts.get("lr")
    return f"{facts['loss']:.4f}" + ("" if lr is None else f", learning rate {lr:.1e}")


def _speed(facts: dict[str, Any]) -> str:
    if not facts["active"] or facts.get("audio_h_per_h") is None:
        return ""
    to_go = f", {duration(facts['eta_h'] * 3600)} to go" if facts.get("eta_h") else ""
    return f"{facts['audio_h_per_h']:,.0f} h of audio an hour{to_go}"


def _data(facts: dict[str, Any]) -> str:
    clips, hours = (_of_train(facts["data"], key) for key in ("clips", "hours"))
    counts = f"{clips:,} clips, {hours:.2f} h to train on; " if clips is not None and hours is not None else ""
    return f"{counts}id {facts['data_id'][:12]}" if facts["data_id"] else ""


def _of_train(meta: dict[str, Any] | None, key: str) -> Any:
    """What the manifests' meta file says of the training split."""
    of_splits = (meta or {}).get(key)
    return of_splits.get("train") if isinstance(of_splits, dict) else None


def _pause(facts: dict[str, Any], now: float) -> str:
    at = facts.get("stop_at")
    return "" if at is None else f"at {time_of_day(at)}, in {duration(at - now)}"


def _ended(result: dict[str, Any] | None) -> str:
    if not result:
        return ""
    reason = str(result.get("reason") or "").strip().splitlines()
    text = f"{result.get('outcome')} at step {result.get('to_step') or 0:,}"
    return f"{text}: {reason[-1]}" if reason else text
