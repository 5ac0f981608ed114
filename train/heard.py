"""What was heard on the validation clips, over time: ``heard/`` holds all of it, ``samples.json`` a fixed handful."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from core.manifest import Row
from core.run_dir import RunDir, read_json, write_json

SAMPLES = 12
SAMPLE_SECONDS = (3.0, 20.0)
KEPT_VALIDATIONS = 50


def clip_facts(row: Row) -> dict[str, Any]:
    return {
        "reciter": row.reciter, "riwaya": row.riwaya, "sura": row.sura, "aya": row.aya,
        "duration": row.duration, "ref": row.text, "id": row.id,
    }  # fmt: skip


def choose_samples(rows: Sequence[Row]) -> list[int]:
    """The places of up to 12 clips of 3 to 20 s, by readers in turn.

    Readers queue up (Warsh first, then by name) and each gives the middle clip of what it has left.
    """
    low, high = SAMPLE_SECONDS
    left: dict[tuple[bool, str], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if low <= row.duration <= high:
            left[(row.riwaya != "warsh", row.reciter or "")].append(place)
    chosen: list[int] = []
    while any(left.values()) and len(chosen) < SAMPLES:
        for reader in sorted(left):
            if left[reader] and len(chosen) < SAMPLES:
                chosen.append(left[reader].pop(len(left[reader]) // 2))
    return chosen


class Heard:
    """Writes hearings of one validation set. A hearing is never shown beside another set's clips."""

    def __init__(self, run: RunDir, rows: Sequence[Row], valid_id: str):
        self._run = run
        self._rows = rows
        self._valid_id = valid_id
        self._chosen = choose_samples(rows)

    def begin(self, step: int) -> None:
        """A session starts at ``step``: put another set's hearings aside and retract those from beyond."""
        clips = read_json(self._run.heard / "clips.json")
        ours = [clip_facts(row) for row in self._rows]
        # without readable clips the hearings themselves say whose they are
        if clips != ours and (clips is not None or self._newest_valid_id() != self._valid_id):
            self._put_aside()
        if clips != ours:
            write_json(self._run.heard / "clips.json", ours)
        for path in self._step_files():
            if _step_of(path.name) > step:
                path.unlink()
        samples = self._samples()
        samples["evals"] = [e for e in samples["evals"] if e["step"] <= step]
        write_json(self._run.samples, samples)

    def write(self, step: int, hyps: Sequence[str]) -> None:
        """Keep what was heard at ``step``, in manifest order."""
        write_json(
            self._run.heard / f"step_{step:07d}.json",
            {"step": step, "valid_id": self._valid_id, "hyps": list(hyps)},
        )
        for path in self._step_files()[:-KEPT_VALIDATIONS]:
            path.unlink()
        samples = self._samples()
        samples["evals"] = [e for e in samples["evals"] if e["step"] < step]
        samples["evals"].append({"step": step, "hyps": [hyps[place] for place in self._chosen]})
        write_json(self._run.samples, samples)

    def _samples(self) -> dict[str, Any]:
        clips = [clip_facts(self._rows[place]) for place in self._chosen]
        found = read_json(self._run.samples)
        if isinstance(found, dict) and found.get("clips") == clips and _whole(found.get("evals")):
            return found
        return {"clips": clips, "evals": []}

    def _step_files(self) -> list[Any]:
        files = (p for p in self._run.heard.glob("step_*.json") if re.fullmatch(r"step_\d+\.json", p.name))
        return sorted(files, key=lambda p: _step_of(p.name))

    def _newest_valid_id(self) -> str:
        files = self._step_files()
        newest = read_json(files[-1]) if files else None
        return str(newest.get("valid_id")) if isinstance(newest, dict) else "unknown"

    def _put_aside(self) -> None:
        folder = self._run.heard / self._newest_valid_id()[:8]
        for path in [*self._step_files(), self._run.heard / "clips.json", self._run.samples]:
            if path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                path.replace(folder / path.name)


def _whole(evals: Any) -> bool:
    return isinstance(evals, list) and all(isinstance(e, dict) and isinstance(e.get("step"), int) for e in evals)


def _step_of(name: str) -> int:
    return int(name.removeprefix("step_").removesuffix(".json"))
