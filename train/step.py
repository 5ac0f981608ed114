"""One batch, one update of the weights: or none, when the gradient is not finite or memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable
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
    """Changes the weights of ``state`` by one batch at a time."""

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
        finite = self._unless_out_of_memory(lambda: self.update(batch, lr))
        if finite is None:
            return OUT_OF_MEMORY
        return None if finite else NOT_FINITE

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
        """Whether memory holds the way forward and back for ``batch``, and an optimiser that has its moments.

        Weights, moments and the CPU's and CUDA's generators are as before; every update seeds its own anyway.
        """
        fitted = self._unless_out_of_memory(lambda: self._try(batch))
        if fitted:
            self._free()
        return bool(fitted)

    def _try(self, batch: Batch) -> bool:
        device, model = self._device, self._state.model
        # in a new run the two moments of each weight come with the first update
        fresh = not self._state.optimizer.state
        moments = [torch.empty_like(p) for p in model.parameters() for _ in range(2)] if fresh else []
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            with self._precision.autocast():
                loss = self._recipe.loss(model, batch.to(device))
            loss.sum.backward()
        moments.clear()
        return True

    def _unless_out_of_memory(self, act: Callable[[], bool]) -> bool | None:
        """What ``act`` gives, or None when memory ran out; what it held is free then."""
        try:
            return act()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # only here, outside the except block, does nobody hold the frames any more that hold the activations
        self._free()
        return None

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
