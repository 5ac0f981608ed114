"""One batch, one update of the weights: or none, when the gradient is not finite or memory runs out."""

from __future__ import annotations

import gc
from typing import Any

import torch

from train.device import Precision
from train.recipe import Batch, Recipe
from train.state import TrainState

#: What torch says of a host's and of MPS's memory, which have no error type of their own.
OUT_OF_MEMORY_WORDS = ("not enough memory", "can't allocate memory", "out of memory")
NOT_FINITE = "the gradient is not finite"
OUT_OF_MEMORY = "memory ran out"


class Stepper:
    """Takes the updates of ``state``."""

    def __init__(
        self, recipe: Recipe, state: TrainState, *, clip_norm: float, device: torch.device, precision: Precision
    ) -> None:
        self._recipe = recipe
        self._state = state
        self._clip_norm = clip_norm
        self._device = device
        self._precision = precision

    def take(self, batch: Batch, lr: float) -> str | None:
        """One update, or why there was none: memory ran out, or the gradient was not finite. No weight is changed then.

        A fused optimiser allocates before it changes anything; on MPS, whose optimiser is not fused, a part may be
        done.
        """
        try:
            finite = self.update(batch, lr)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            finite = None
        if finite is not None:
            return None if finite else NOT_FINITE
        # only here, outside the except block, does nobody hold the frames any more that hold the activations
        self._free()
        return OUT_OF_MEMORY

    def update(self, batch: Batch, lr: float) -> bool:
        """One update; False when the gradient was not finite and nothing was changed."""
        state = self._state
        # dropout and the like: a function of the seed and the batch's number alone
        torch.manual_seed((int(state.place.values.get("train.seed", 0)) << 32) + state.place.consumed)
        for group in state.optimizer.param_groups:
            group["lr"] = lr
        scaler: Any = state.scaler
        batch = batch.to(self._device)
        with self._precision.autocast():
            loss = self._recipe.loss(state.model, batch)
        scaler.scale(loss.sum / max(1, loss.count)).backward()
        scaler.unscale_(state.optimizer)
        try:
            parameters = [p for p in state.model.parameters() if p.requires_grad]
            norm = torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
            finite = bool(torch.isfinite(norm))
            if finite:
                scaler.step(state.optimizer)
                state.averages.add(loss.shown, loss.count, norm)
        finally:
            # whatever broke: between two updates it may unscale but once
            scaler.update()
        state.optimizer.zero_grad(set_to_none=True)
        return finite

    def fits(self, batch: Batch) -> bool:
        """Whether memory holds the way forward and back for ``batch``; leaves no trace in state or generators."""
        device = self._device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                with self._precision.autocast():
                    loss = self._recipe.loss(self._state.model, batch.to(device))
                loss.sum.backward()
                fitted = True
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                fitted = False
        self._free()
        return fitted

    def _free(self) -> None:
        self._state.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: a device has a type for it, a CPU and MPS only words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_WORDS)
