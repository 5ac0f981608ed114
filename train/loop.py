"""The loop that everything else serves: update, log line, validation, save, stop checks, in this order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from core.errors import CheckpointError, DataError, LaylError
from core.events import Emit, Evaluated, Finished, Paused, Phase, Skipped, Trained, Warned
from core.outcome import Outcome
from train.checkpoints import Checkpoints
from train.device import Precision, peak_memory
from train.loader import Loader
from train.recipe import Recipe, Scores
from train.schedule import Schedule
from train.session import Session, Stop
from train.state import TrainState
from train.step import NOT_FINITE, OUT_OF_MEMORY, Stepper

#: Batches in a row that gave no update, after which the session gives up.
BAD_STEPS_IN_A_ROW = 10
#: What a save and a validation may take, in terms of what they took last.
RESERVE = 1.5
ADVICE = {
    NOT_FINITE: "a lower train.lr or train.precision fp32",
    OUT_OF_MEMORY: "a smaller train.max_batch_seconds",
}


class TrainingError(LaylError):
    """Training cannot go on; the last good checkpoint stays."""


@dataclass(frozen=True)
class Plan:
    """What the loop needs of the configuration. ``last_epoch`` is the highest number an epoch is shown with."""

    schedule: Schedule
    last_epoch: int
    clip_norm: float
    log_every: int
    eval_every: int


class Fit:
    """One session of training: continues ``state`` until the plan is complete or the session has to end."""

    def __init__(
        self,
        recipe: Recipe,
        state: TrainState,
        plan: Plan,
        *,
        loader: Loader,
        session: Session,
        checkpoints: Checkpoints,
        emit: Emit,
        device: torch.device,
        precision: Precision,
        on_scores: Callable[[int, Scores], None] = lambda step, scores: None,
    ):
        self.recipe = recipe
        self.state = state
        self.plan = plan
        self.loader = loader
        self.session = session
        self.checkpoints = checkpoints
        self.emit = emit
        self.device = device
        self.stepper = Stepper(recipe, state, clip_norm=plan.clip_norm, device=device, precision=precision)
        self.on_scores = on_scores
        self._first_step = state.progress.step
        self._train_seconds = 0.0
        self._line_seconds = 0.0
        self._line_units = 0.0
        self._bad_in_a_row = 0
        self._mark = perf_counter()

    def run(self) -> Outcome:
        """Train. Raises TrainingError, DataError or whatever broke; the checkpoints of before stay."""
        try:
            return self._run()
        finally:
            # whatever broke, a save that has begun is worth waiting for
            self.checkpoints.settle()

    def _run(self) -> Outcome:
        progress = self.state.progress
        if progress.step < progress.planned and (stop := self.session.stop_reason(progress.step)):
            return self._pause(stop)
        if self._owes_validation():
            if outcome := self._evaluate():
                return outcome
            self.checkpoints.save_step(self.state)
            self.checkpoints.save(self.state)
        self.emit(Phase(step=progress.step, phase="training"))
        if progress.step < progress.planned:
            self._try_heaviest()
        with closing(iter(self.loader)) as batches:
            return self._train(batches) or self._finish()

    def _try_heaviest(self) -> None:
        """What will hardly fit is said before hours are spent, where memory is the device's own and ends with an error.

        A CPU's is everybody's and promised freely: there the trial would cost seconds and tell nothing.
        """
        if self.device.type == "cpu":
            return
        batch = self.loader.heaviest()
        if batch is not None and not self.stepper.fits(batch):
            message = (
                f"one of the heaviest batches of this epoch ({batch.describe()}) does not fit into the memory of "
                f"{self.device}: such batches will be skipped; try {ADVICE[OUT_OF_MEMORY]}"
            )
            self.emit(Warned(step=self.state.progress.step, message=message))
        # neither its memory nor its time is training's
        peak_memory(self.device)
        self._mark = perf_counter()

    def _train(self, batches: Iterator[Any]) -> Outcome | None:
        """Steps until the plan is complete, or an Outcome when the session has to end before."""
        progress = self.state.progress
        while progress.step < progress.planned:
            began = perf_counter()
            batch = next(batches)
            lr = self.plan.schedule.lr(progress.step)
            if problem := self.stepper.take(batch, lr):
                self._skipped(batch, problem)
                if outcome := self._after_skip():
                    return outcome
                continue
            self._bad_in_a_row = 0
            progress.step += 1
            progress.units_seen += batch.units
            self._line_units += batch.units
            self._clock(perf_counter() - began)
            if progress.step % self.plan.log_every == 0:
                self._log(lr)
            if outcome := self._after_step():
                return outcome
        return None

    def _after_step(self) -> Outcome | None:
        progress = self.state.progress
        last = progress.step >= progress.planned
        epoch_end = self.loader.at_epoch_end
        self.checkpoints.poll()
        if (self._eval_due() or last) and (outcome := self._evaluate()):
            return outcome
        if epoch_end or self._eval_due() or last:
            self.checkpoints.save_step(self.state)
        if not last and epoch_end:
            # and waited for: the next epoch's loader processes are forked, and no thread may be writing then
            self.checkpoints.save(self.state)
        elif not last and (self._eval_due() or self.checkpoints.due()):
            self.checkpoints.begin_save(self.state)
        if not last and (stop := self.session.stop_reason(progress.step, reserve=self._reserve())):
            return self._pause(stop)
        return None

    def _reserve(self) -> float:
        """Seconds before the deadline that the last save needs."""
        return RESERVE * self.checkpoints.save_seconds

    def _after_skip(self) -> Outcome | None:
        """What must not wait for the next update: an epoch's candidate, and people.

        last.pt waits: should the batches stay bad, the run goes on from before them.
        """
        if self.loader.at_epoch_end and self.state.progress.step:
            self.checkpoints.save_step(self.state)
        stop = self.session.stop_reason(self.state.progress.step)
        return self._pause(stop) if stop else None

    def _eval_due(self) -> bool:
        return self.state.progress.step % self.plan.eval_every == 0

    def _owes_validation(self) -> bool:
        """A session that ended within a validation left it undone."""
        progress = self.state.progress
        return 0 < progress.step < progress.planned and self._eval_due() and progress.evaluated_step != progress.step

    def _clock(self, step_seconds: float) -> None:
        self.state.progress.train_seconds += step_seconds
        self._train_seconds += step_seconds
        self._line_seconds += step_seconds
        self._tick()

    def _tick(self) -> None:
        now = perf_counter()
        self.state.progress.elapsed_seconds += now - self._mark
        self._mark = now

    def _skipped(self, batch: Any, problem: str) -> None:
        progress = self.state.progress
        progress.skipped += 1
        self._bad_in_a_row += 1
        self.emit(Skipped(step=progress.step, reason=problem, batch=batch.describe()))
        if self._bad_in_a_row >= BAD_STEPS_IN_A_ROW:
            raise TrainingError(
                f"{BAD_STEPS_IN_A_ROW} batches in a row were skipped at step {progress.step}, the last because "
                f"{problem}; try {ADVICE[problem]}"
            )

    def _log(self, lr: float) -> None:
        progress = self.state.progress
        loss, norm = self.state.averages.take()
        done = progress.step - self._first_step
        left = progress.planned - progress.step
        self.emit(
            Trained(
                step=progress.step,
                planned=progress.planned,
                epoch=min(self.loader.epoch, self.plan.last_epoch),
                loss=loss,
                lr=lr,
                grad_norm=norm,
                units_seen=progress.units_seen,
                elapsed_seconds=progress.elapsed_seconds,
                units_per_second=self._line_units / self._line_seconds if self._line_seconds > 0 else None,
                gpu_peak_bytes=peak_memory(self.device),
                skipped=progress.skipped,
                eta_seconds=self._train_seconds / done * left if done else None,
            )
        )
        # of this session alone, unlike the averages
        self._line_seconds = self._line_units = 0.0

    def _evaluate(self) -> Outcome | None:
        """Validate; an Outcome when the session was asked to end meanwhile."""
        progress = self.state.progress
        needed = RESERVE * progress.validation_seconds + self._reserve()
        if progress.validation_seconds and (stop := self.session.too_late_for(needed, "a validation")):
            # the next session begins with it
            return self._pause(stop)
        # its loader processes are forked too
        self.checkpoints.settle()
        self.emit(Phase(step=progress.step, phase="validating"))
        began = perf_counter()
        try:
            scores = evaluate(self.recipe, self.state, self.session.interrupted)
        except DataError:
            # a clip that nobody can read will stop every session here: the steps up to here are kept
            self.checkpoints.save(self.state)
            raise
        self._tick()
        if scores is None:
            # the request may be gone by now: a stop file taken back, a clock set back
            stop = self.session.stop_reason(progress.step) or Stop("stopped", "asked to stop during a validation")
            return self._pause(stop)
        progress.evaluated_step = progress.step
        progress.validation_seconds = perf_counter() - began
        better = progress.best_score is None or scores.main < progress.best_score
        is_best = better and math.isfinite(scores.main) and self.checkpoints.save_best(self.state, scores)
        if is_best:
            progress.best_score, progress.best_step = scores.main, progress.step
        self.on_scores(progress.step, scores)
        self.emit(
            Evaluated(
                step=progress.step,
                epoch=min(self.loader.epoch, self.plan.last_epoch),
                main=scores.main,
                scores=scores.details,
                is_best=is_best,
                elapsed_seconds=progress.elapsed_seconds,
                units_seen=progress.units_seen,
                valid_id=self.state.identity.valid_id,
            )
        )
        self.emit(Phase(step=progress.step, phase="training"))
        return None

    def _pause(self, stop: Stop) -> Outcome:
        progress = self.state.progress
        step = progress.step
        if stop.kind == "discarded":
            self.checkpoints.settle()
            step = self.checkpoints.saved_step if self.checkpoints.saved_step is not None else self._first_step
        else:
            self._tick()
            self.emit(Phase(step=step, phase="saving"))
            if not self.checkpoints.save(self.state):
                raise TrainingError(
                    f"the session could not save at step {step}; the checkpoint of before stays. Free space for "
                    f"{self.checkpoints.folder}, or make it writable"
                )
        self.emit(Paused(step=step, planned=progress.planned, kind=stop.kind, reason=stop.reason))
        return Outcome(stop.kind, self._first_step, step, stop.reason)  # type: ignore[arg-type]

    def _finish(self) -> Outcome:
        progress = self.state.progress
        if progress.evaluated_step != progress.step:
            # a run that came back with all its steps: new validation data, or a stop within the last validation
            if outcome := self._evaluate():
                return outcome
            self.checkpoints.save_step(self.state)
        self._tick()
        if not self.checkpoints.save(self.state):
            raise CheckpointError(f"the finished run could not be saved at step {progress.step}; run the command again")
        self.emit(Finished(step=progress.step, planned=progress.planned))
        return Outcome("finished", self._first_step, progress.step, resumable=False)


def evaluate(recipe: Recipe, state: TrainState, stopped: Callable[[], bool]) -> Scores | None:
    """Scores of the live weights, or None when the session was asked to stop."""
    state.model.eval()
    try:
        with torch.inference_mode():
            return recipe.evaluate(state.model, stopped)
    finally:
        state.model.train()
