"""``python -m tests.torture``: a real small run, killed again and again at random moments, equals one never touched.

Real processes under the real supervisor: SIGKILL, SIGTERM (once, and twice 50 ms apart) and SIGSTOP, from the first
moments of a start on, some of them aimed at saves and validations. The plan is a function of the seed; where a kill
falls is up to the machine. Linux only: it looks for processes in /proc.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from core import checkpoint
from core.events import Started, Trained, read_events
from core.outcome import Outcome
from core.run_dir import TEMPORARY, RunDir, read_json, write_text
from tasks.supervise import SessionRequest, supervise
from tests.train.conftest import TINY, publish_rows, tone_rows

#: Seconds after a start within which a kill falls; a start takes about four until the first step.
LATEST = 15.0
#: Updates that a start gets on average before it is killed, so that the run is not over before its kills are.
STEPS_A_KILL = 60
POLL = 0.001
GONE_WITHIN = 20.0


@dataclass(frozen=True)
class Kill:
    """What is done to one session: which signals, when, and how many loader processes it has."""

    how: str
    after: float
    aim: str
    workers: int


def plan(kills: int, seed: int, latest: float = LATEST) -> list[Kill]:
    """Kills in order, a function of their number and the seed alone."""
    chance = random.Random(seed)
    return [
        Kill(
            how=chance.choices(("KILL", "TERM", "TERM twice", "STOP"), (12, 4, 2, 2))[0],
            after=chance.uniform(0, latest),
            aim=chance.choices(("time", "save", "validation"), (6, 3, 1))[0],
            workers=chance.choice((0, 0, 1, 2)),
        )
        for _ in range(kills)
    ]


@dataclass
class Report:
    """What came of it."""

    kills: int = 0
    where: Counter[str] = field(default_factory=Counter)
    again: int = 0
    steps: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        fell = ", ".join(f"{count} {place}" for place, count in sorted(self.where.items()))
        verdict = "weights equal" if not self.problems else "NOT equal: " + "; ".join(self.problems)
        return f"{self.kills} kills ({fell}); {self.again:,} of {self.steps:,} steps trained twice; {verdict}"


def project(root: Path, name: str, steps: int) -> RunDir:
    """A run of tones with a configuration of its own, prepared."""
    train = {
        **TINY["train"], "steps": steps, "log_every_steps": 1, "eval_every_steps": 40, "checkpoint_minutes": 0.05,
        "deterministic": True,
    }  # fmt: skip
    write_text(root / "configs" / f"{name}.yaml", _yaml({**TINY, "train": train}))
    write_text(root / "dvc.yaml", "stages: {}\n")
    run = RunDir(root, name)
    publish_rows(run, tone_rows(root, range(40)), tone_rows(root, range(100, 106), "berta"))
    return run


def _yaml(value: Any) -> str:
    import json

    # JSON is YAML
    return json.dumps(value)


def session(run: RunDir, number: int, workers: int = 0) -> Outcome:
    """One session under the supervisor, until its child is gone."""
    wanted = SessionRequest(run=run, session=_id(number), overrides=(f"train.num_workers={workers}",))
    return supervise(wanted, say=lambda _: None, poll_seconds=0.05)


def _id(number: int) -> str:
    return f"torture-{number:05d}"


def torture(run: RunDir, kills: list[Kill], say: Callable[[str], None] = print) -> Report:
    """Kill session after session of ``run``, then let it finish."""
    report = Report()
    for number, kill in enumerate(kills):
        outcome: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcome.append(session(run, number, kill.workers)))  # noqa: B023
        began = time.monotonic()
        thread.start()
        place = _strike(run, number, kill, began, thread)
        thread.join(60)
        if thread.is_alive():
            report.problems.append(f"session {number} ({kill}) does not end")
            _end(number)
            thread.join()
        report.kills += 1
        report.where[place] += 1
        if outcome and outcome[0].kind in ("invalid", "busy"):
            report.problems.append(f"session {number} was {outcome[0].kind}: {outcome[0].reason[-200:]}")
        if left := _gone(number):
            report.problems.append(f"session {number} left processes {left}")
        if (number + 1) % 20 == 0:
            say(f"{number + 1} kills, step {(read_json(run.last_facts) or {}).get('step', 0):,}")
        if outcome and outcome[0].kind == "finished":
            report.problems.append(f"the run was over after {number + 1} of {len(kills)} kills")
            break
    ended = session(run, len(kills))
    if ended.kind != "finished":
        report.problems.append(f"the last session was {ended.kind}: {ended.reason[-200:]}")
    _account(run, report)
    return report


def _strike(run: RunDir, number: int, kill: Kill, began: float, thread: threading.Thread) -> str:
    """Wait for the moment, kill, and say where it fell."""
    while thread.is_alive():
        since = time.monotonic() - began
        hit = since >= kill.after if kill.aim == "time" else since >= min(kill.after, 5.0) and _aimed(run, kill.aim)
        # nothing of the kind comes: a kill all the same
        if hit or since > LATEST + 5:
            break
        time.sleep(POLL)
    child = _child(number)
    place = _place(run, number, child)
    if child is None:
        return place
    _send(child, signal.SIGSTOP if kill.how == "STOP" else getattr(signal, f"SIG{kill.how.split()[0]}"))
    if kill.how == "TERM twice":
        time.sleep(0.05)
        _send(child, signal.SIGTERM)
    elif kill.how == "STOP":
        time.sleep(0.5)
        _send(child, signal.SIGKILL)
    return place


def _aimed(run: RunDir, aim: str) -> bool:
    if aim == "save":
        return _saving(run)
    return (read_json(run.status) or {}).get("phase") == "validating"


def _saving(run: RunDir) -> bool:
    try:
        return any(name.endswith(TEMPORARY) and ".pt" in name for name in os.listdir(run.path))
    except FileNotFoundError:
        return False


def _place(run: RunDir, number: int, child: int | None) -> str:
    if child is None:
        return "before there was a child, or after"
    if (read_json(run.owner) or {}).get("session") != _id(number):
        return "before the lock"
    status = read_json(run.status) or {}
    if status.get("session") != _id(number):
        return "while starting"
    return "in a save" if _saving(run) else f"while {status.get('phase')}"


def _send(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _processes(number: int) -> list[tuple[int, int]]:
    """(pid, parent) of what runs for a session; what has ended and waits to be collected does not."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if _id(number).encode() in words and state != "Z":
            found.append((int(entry.name), int(parent)))
    return found


def _child(number: int) -> int | None:
    """The trainer itself, not its loader processes."""
    return next((pid for pid, parent in _processes(number) if parent == os.getpid()), None)


def _gone(number: int) -> list[int]:
    """What is left of a session after a while."""
    deadline = time.monotonic() + GONE_WITHIN
    while (left := _processes(number)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _end(number)
    return [pid for pid, _ in left]


def _end(number: int) -> None:
    for pid, _ in _processes(number):
        _send(pid, signal.SIGKILL)


def _account(run: RunDir, report: Report) -> None:
    """Steps trained twice, steps missing or double in the log, files left behind."""
    done = 0
    for event, _ in read_events(run.events)[0]:
        if isinstance(event, Started):
            report.again += max(0, done - event.step)
            done = event.step
        elif isinstance(event, Trained):
            done = max(done, event.step)
    with run.log_csv.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    steps = [int(row["step"]) for row in rows]
    report.steps = int((read_json(run.last_facts) or {}).get("planned", 0))
    if steps != list(range(1, report.steps + 1)):
        double = len(steps) - len(set(steps))
        missing = len(set(range(1, report.steps + 1)) - set(steps))
        report.problems.append(f"log.csv has {double} steps double, {missing} missing, or out of order")
    if left := sorted(path.name for path in run.path.rglob(f"*{TEMPORARY}")):
        report.problems.append(f"temporary files are left: {left}")


def fingerprint(run: RunDir) -> str:
    """SHA-256 of all a checkpoint holds but times and who wrote it."""
    value = checkpoint.read(run.last)
    hashed = hashlib.sha256()
    for name in ("model", "optimizer", "place", "averages"):
        _hash(value[name], name, hashed)
    for name in ("step", "planned", "units_seen", "best_score", "best_step", "skipped", "warm_from"):
        hashed.update(f"{name}={value['progress'][name]!r}".encode())
    return hashed.hexdigest()


def _hash(value: Any, path: str, hashed: Any) -> None:
    if isinstance(value, torch.Tensor):
        hashed.update(f"{path} {value.dtype} {tuple(value.shape)}".encode())
        hashed.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            _hash(value[key], f"{path}.{key}", hashed)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _hash(inner, f"{path}[{i}]", hashed)
    else:
        hashed.update(f"{path}={value!r}".encode())


def run_all(root: Path, kills: int, seed: int, latest: float = LATEST, say: Callable[[str], None] = print) -> Report:
    """A run never touched, the same one killed ``kills`` times, and how they differ."""
    os.environ["OMP_NUM_THREADS"] = "1"
    steps = max(120, STEPS_A_KILL * kills)
    whole, cut = project(root / "whole", "tiny", steps), project(root / "cut", "tiny", steps)
    say(f"a run of {steps:,} steps that nobody touches")
    untouched = session(whole, 99_999)
    report = torture(cut, plan(kills, seed, latest), say)
    if untouched.kind != "finished":
        report.problems.append(f"the run that nobody touched was {untouched.kind}: {untouched.reason[-300:]}")
    elif fingerprint(whole) != fingerprint(cut):
        report.problems.append("weights, moments or place differ")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.torture")
    parser.add_argument("--kills", type=int, default=int(os.environ.get("KILLS", "200")))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="layl-torture-") as folder:
        report = run_all(Path(folder), args.kills, args.seed)
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
