"""When to save, what to keep, and what to fall back on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core import checkpoint
from core.config import RunSection, config_id
from core.errors import CheckpointError, UnknownFormatError
from core.events import Emit, Saved, SaveFailed
from core.run_dir import RunDir, remove_temporary, write_json
from train.recipe import Scores
from train.state import Identity, Progress, TrainState


@dataclass(frozen=True)
class _Flight:
    """A save on its way: of which step, begun when (this module's clock), and what will be known of it."""

    step: int
    began: float
    written: Future[SaveFailed | None]


def on_host(value: Any) -> Any:
    """A copy that training cannot change any more, its tensors in the host's memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, on_host(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)(on_host(inner) for inner in value)
    return value


class Checkpoints:
    """The checkpoints of one run. ``sync_events`` is called before one gets its name: the log never lags behind."""

    def __init__(
        self,
        run: RunDir,
        config: RunSection,
        *,
        emit: Emit,
        keep: int,
        minutes: float,
        model_facts: dict[str, Any],
        sync_events: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._run = run
        self._config_id = config_id(config)
        self._emit = emit
        self._keep = keep
        self._seconds = minutes * 60
        self._facts = model_facts
        self._sync_events = sync_events
        self._clock = clock
        self._saved_at = clock()
        self.saved_step: int | None = None
        #: how long the last save of this session took, from its copy to its name
        self.save_seconds = 0.0
        self._flight: _Flight | None = None
        self._landed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        #: where the former last.pt goes; nowhere while it is known to be damaged
        self._previous: Path | None = run.last_previous
        remove_temporary(run.path)

    @property
    def folder(self) -> Path:
        """Where the checkpoints lie."""
        return self._run.path

    def due(self) -> bool:
        return self._clock() - self._saved_at >= self._seconds

    def save(self, state: TrainState) -> bool:
        """Write last.pt and wait until it is there; False (and an event) when the disk would not take it."""
        self.begin_save(state)
        return self.settle()

    def begin_save(self, state: TrainState) -> None:
        """Copy the state and write last.pt from the copy while training goes on; one save at a time.

        Raises CheckpointError for NaN. What became of it is told at the next ``poll`` or ``settle``.
        """
        self.settle()
        began = self._saved_at = self._clock()
        self._refuse_broken(state)
        step = state.progress.step
        try:
            # here and not in the thread: what covers this checkpoint is on the disk, and nobody else writes the log
            self._sync_events()
        except OSError as error:
            self._landed = False
            self._emit(self._failed(step, error))
            return
        value, facts = on_host(state.state_dict()), self._facts_of(state.progress, state.identity)
        self._flight = _Flight(step, began, self._thread.submit(self._write_last, value, facts))

    def poll(self) -> None:
        """Tell of a save that has ended meanwhile."""
        if self._flight is not None and self._flight.written.done():
            self.settle()

    def settle(self) -> bool:
        """Wait for the save in flight; whether the newest one is on the disk. Raises what no disk is to blame for."""
        flight, self._flight = self._flight, None
        if flight is None:
            return self._landed
        try:
            lost = flight.written.result()
        except (OSError, RuntimeError, MemoryError) as error:
            self._landed = False
            self._emit(self._failed(flight.step, error))
            return False
        self._landed, self.saved_step = True, flight.step
        if lost is not None:
            self._emit(lost)
        self.save_seconds = round(self._clock() - flight.began, 3)
        self._emit(Saved(step=flight.step, file=self._run.last.name, seconds=self.save_seconds))
        return True

    def _failed(self, step: int, error: Exception) -> SaveFailed:
        return SaveFailed(step=step, error=f"{self._run.last}: {error}; the file of before is intact")

    def _write_last(self, value: dict[str, Any], facts: dict[str, Any]) -> SaveFailed | None:
        """In the thread: last.pt, and last.json for those who must not import torch, which counts for nothing."""
        digest = checkpoint.write(self._run.last, value, previous=self._previous)
        self._previous = self._run.last_previous
        try:
            write_json(self._run.last_facts, {**facts, "digest": digest})
        except OSError as error:
            return SaveFailed(step=facts["step"], error=f"{self._run.last_facts}: {error}; last.pt itself is saved")
        return None

    def _facts_of(self, progress: Progress, identity: Identity) -> dict[str, Any]:
        return {
            "step": progress.step,
            "planned": progress.planned,
            "data_id": identity.data_id,
            "valid_id": identity.valid_id,
            "config_id": self._config_id,
            "epochs": identity.epochs,
            "steps": identity.steps,
            "finished": progress.step >= progress.planned and progress.evaluated_step == progress.step,
            "session": identity.session,
            "seen_in_training": list(identity.seen),
        }

    def save_step(self, state: TrainState) -> None:
        """Write step_*.pt, a candidate for averaging, and drop the oldest beyond ``keep``.

        Raises CheckpointError for NaN.
        """
        if self._write_model(self._run.step_file(state.progress.step), state, {}) and self._keep:
            for path in self._run.step_files()[: -self._keep]:
                path.unlink(missing_ok=True)

    def save_best(self, state: TrainState, scores: Scores) -> bool:
        """Write best.pt; False (and an event) when the disk would not take it. Raises CheckpointError for NaN."""
        extra: dict[str, Any] = {"valid_score": scores.main}
        if "cer" in scores.details:
            extra["valid_cer"] = scores.details["cer"]
        return self._write_model(self._run.best, state, extra)

    def _write_model(self, path: Path, state: TrainState, extra: dict[str, Any]) -> bool:
        # never two in flight: together they would take the memory and the disk of two
        self.settle()
        self._refuse_broken(state)
        value = {
            "model": state.model.state_dict(),
            **self._facts,
            "step": state.progress.step,
            "data_id": state.identity.data_id,
            "valid_id": state.identity.valid_id,
            **extra,
        }
        try:
            checkpoint.write(path, value)
        except (OSError, RuntimeError) as error:
            self._emit(SaveFailed(step=state.progress.step, error=f"{path}: {error}"))
            return False
        return True

    def _refuse_broken(self, state: TrainState) -> None:
        for name, value in state.model.state_dict().items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise CheckpointError(
                    f"the weights {name!r} hold NaN or infinity at step {state.progress.step}: not saved"
                )

    def read(self) -> tuple[dict[str, Any] | None, str]:
        """The newest state that verifies, and a note when it is not the newest file.

        Raises CheckpointError when none of them verifies.
        """
        problems = []
        for path in (self._run.last, self._run.last_previous):
            if not path.exists():
                continue
            try:
                value = checkpoint.read(path)
            except UnknownFormatError:
                # a newer layl's: whole, and not ours to overwrite
                raise
            except CheckpointError as error:
                problems.append(str(error))
                if path == self._run.last:
                    self._previous = None
                continue
            note = f"{problems[0]}; going on from {path.name}" if problems else ""
            return value, note
        if problems:
            raise CheckpointError(
                f"no checkpoint of {self._run.name} can be read: {'; '.join(problems)}; "
                f"copy one back, or begin anew with `layl reset {self._run.name} --yes` (it archives the run)"
            )
        return None, ""

    def retract(self, step: int, best_step: int | None) -> bool:
        """Forget candidates from beyond ``step``: they belong to steps that will be taken again.

        Returns whether best.pt is the one of ``best_step``, as the state says.
        """
        for path in self._run.step_files():
            if int(path.stem.removeprefix("step_")) > step:
                path.unlink(missing_ok=True)
        try:
            found = checkpoint.read(self._run.best)["step"]
        except CheckpointError:
            return best_step is None
        if found > step:
            self._run.best.unlink()
        return best_step in (None, found)
