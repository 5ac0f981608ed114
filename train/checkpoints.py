"""When to save, what to keep, and what to fall back on."""

from __future__ import annotations

import time
from collections.abc import Callable
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
        #: where the former last.pt goes; nowhere while it is known to be damaged
        self._previous: Path | None = run.last_previous
        remove_temporary(run.path)

    def due(self) -> bool:
        return self._clock() - self._saved_at >= self._seconds

    def save(self, state: TrainState) -> bool:
        """Write last.pt, keeping the former one; False (and an event) when the disk would not take it."""
        began = self._clock()
        self._refuse_broken(state)
        progress, identity = state.progress, state.identity
        self._saved_at = began
        try:
            self._sync_events()
            digest = checkpoint.write(self._run.last, state.state_dict(), previous=self._previous)
            self._previous = self._run.last_previous
        except (OSError, RuntimeError) as error:
            self._emit(SaveFailed(step=progress.step, error=f"{self._run.last}: {error}; the file of before is intact"))
            return False
        self.saved_step = progress.step
        self._write_facts(progress, identity, digest)
        self._emit(Saved(step=progress.step, file=self._run.last.name, seconds=round(self._clock() - began, 3)))
        return True

    def _write_facts(self, progress: Progress, identity: Identity, digest: str) -> None:
        """last.json, for those who must not import torch: a view, so that the checkpoint counts without it."""
        facts = {
            "step": progress.step,
            "planned": progress.planned,
            "data_id": identity.data_id,
            "valid_id": identity.valid_id,
            "config_id": self._config_id,
            "epochs": identity.epochs,
            "steps": identity.steps,
            "finished": progress.step >= progress.planned and progress.evaluated_step == progress.step,
            "session": identity.session,
            "seen_in_training": identity.seen,
            "digest": digest,
        }
        try:
            write_json(self._run.last_facts, facts)
        except OSError as error:
            self._emit(
                SaveFailed(step=progress.step, error=f"{self._run.last_facts}: {error}; last.pt itself is saved")
            )

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
