"""The mean of several checkpoints' weights: summed in float64, and whatever is no float taken from the newest."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from core.errors import CheckpointError

State = dict[str, Tensor]


def mean_of(states: Iterable[State]) -> State:
    """The mean of state dicts, oldest first, each read once and none changed.

    Raises CheckpointError if there is none or they differ in kind.
    Sums that alias the first state's tensors have made second averages garbage elsewhere, and averaged counters
    have become fractions: hence the copies, and integers from the newest.
    """
    sums: State = {}
    newest: State = {}
    count = 0
    for state in states:
        if newest:
            _refuse_unlike(newest, state)
        for name, value in state.items():
            if value.is_floating_point():
                # never +=, which would change the first state where it is float64 already
                sums[name] = sums.get(name, 0.0) + value.to(torch.float64)
        newest, count = state, count + 1
    if not count:
        raise CheckpointError("a mean of no checkpoints; expected at least one")
    return {name: (sums[name] / count).to(v.dtype) if name in sums else v.clone() for name, v in newest.items()}


def _refuse_unlike(one: State, other: State) -> None:
    shapes = [{name: (tuple(v.shape), v.dtype) for name, v in state.items()} for state in (one, other)]
    if shapes[0] != shapes[1]:
        unlike = sorted(n for n in {**one, **other} if shapes[0].get(n) != shapes[1].get(n))
        raise CheckpointError(f"checkpoints of different models have no mean: they differ in {', '.join(unlike[:5])}")
