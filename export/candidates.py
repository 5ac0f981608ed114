"""Which weights compete to be shipped: the best by validation, the last, and the mean of the last few."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import checkpoint
from core.config import change_classes
from core.errors import CheckpointError
from core.run_dir import RunDir
from core.speech.config import ModelSection, SpeechRun
from core.speech.model import SpeechModel
from core.speech.text import Vocabulary
from export.average import State, mean_of

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Weights with what is known of them. ``steps`` are the checkpoints they come from, oldest first."""

    name: str
    steps: tuple[int, ...]
    state: State
    model_config: dict[str, Any]
    vocab: tuple[str, ...]
    data_id: str
    valid_id: str

    @property
    def step(self) -> int:
        return self.steps[-1]

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.vocab)

    def model(self) -> SpeechModel:
        """A model of its own with these weights, in evaluation mode. Raises CheckpointError if they do not fit."""
        # the fields came through JSON, and strict sections take lists for tuples only from JSON
        section = ModelSection.model_validate_json(json.dumps(self.model_config))
        model = SpeechModel(section, len(self.vocab))
        try:
            model.load_state_dict(self.state)
        except RuntimeError as error:
            raise CheckpointError(f"candidate {self.name}: {error}") from None
        return model.eval()


def candidates(run: RunDir, config: SpeechRun, report: Report) -> list[Candidate]:
    """The candidates that ``export.candidates`` names and the run has, equal ones once.

    Damaged checkpoints are said and left out. Raises CheckpointError if none is left or they differ in kind.
    """
    steps = [path for path in run.step_files() if _readable(path, report)]
    makers: dict[str, Callable[[], Candidate | None]] = {
        "best": lambda: _of("best", [run.best]) if run.best.exists() and _readable(run.best, report) else None,
        "last": lambda: _of("last", steps[-1:]),
        "mean_last": lambda: _of("mean_last", steps[-config.export.average :]),
    }
    found: dict[tuple[int, ...], Candidate] = {}
    for name in config.export.candidates:
        candidate = makers[name]()
        if candidate is None:
            report(f"{name}: the run has no such checkpoint")
        elif candidate.steps in found:
            report(f"{name}: the same weights as {found[candidate.steps].name}")
        else:
            found[candidate.steps] = candidate
    if not found:
        raise CheckpointError(f"{run.path} holds no checkpoint to export; `layl train {run.name}` makes them")
    kept = list(found.values())
    for other in kept[1:]:
        if (other.vocab, _architecture(other)) != (kept[0].vocab, _architecture(kept[0])):
            raise CheckpointError(f"{other.name} and {kept[0].name} of {run.path} are different models")
    return kept


def _architecture(candidate: Candidate) -> dict[str, Any]:
    """What may not change in a run; dropout, which may, makes no other model."""
    fixed = [name for name, change in change_classes(ModelSection).items() if change == "fixed"]
    return {name: candidate.model_config.get(name) for name in fixed}


def _of(name: str, paths: list[Path]) -> Candidate | None:
    if not paths:
        return None
    seen: list[dict[str, Any]] = []

    def states() -> Iterator[State]:
        for path in paths:
            value = checkpoint.read(path)
            seen.append({key: v for key, v in value.items() if key != "model"})
            yield value["model"]

    state = mean_of(states())
    newest = seen[-1]
    return Candidate(
        name=name,
        steps=tuple(facts["step"] for facts in seen),
        state=state,
        model_config=newest["model_config"],
        vocab=tuple(newest["vocab"]),
        data_id=newest["data_id"],
        valid_id=newest["valid_id"],
    )


def _readable(path: Path, report: Report) -> bool:
    try:
        checkpoint.verify(path)
    except CheckpointError as error:
        report(f"left out: {error}")
        return False
    return True
