"""What saving costs: the share of time that training waits, and steps a second with saves every 30 s to without.

``python -m benchmarks.checkpoint`` trains preset 16m on noise, on whatever device trains, in runs that alternate
(with, without, without, with, ...). Each run is long enough for its saves; nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from core.config import build
from core.events import Event, Saved, Trained
from core.run_dir import RunDir
from core.speech.config import ModelSection, SpeechRun
from core.speech.model import SpeechModel
from train.checkpoints import Checkpoints
from train.device import Precision, pick_device
from train.loader import Loader
from train.loop import Fit, Plan
from train.recipe import Draw, Loss, Scores
from train.recipes.speech import adamw
from train.schedule import Schedule
from train.session import Session
from train.state import Averages, Identity, Place, Progress, TrainState

SYMBOLS = 37
CLIPS, FRAMES, LETTERS = 4, 500, 40
EPOCH = 1_000_000


@dataclass
class Noise:
    """A batch of four clips of five seconds."""

    features: torch.Tensor
    frames: torch.Tensor
    targets: torch.Tensor
    units: float = CLIPS * FRAMES / 100

    def to(self, device: torch.device) -> Noise:
        return Noise(self.features.to(device), self.frames.to(device), self.targets.to(device))

    def describe(self) -> str:
        return "noise"


class NoiseRecipe:
    """The speech model's real step on batches that cost nothing to load."""

    def __init__(self) -> None:
        self.source: Any = self
        random = torch.Generator().manual_seed(1)
        self._batch = Noise(
            torch.randn(CLIPS, FRAMES, 80, generator=random),
            torch.full((CLIPS,), FRAMES),
            torch.randint(1, SYMBOLS, (CLIPS, LETTERS), generator=random),
        )

    def batches(self, epoch: int, values: Any) -> Any:
        return _Endless()

    def cost(self, items: Any) -> float:
        return 1.0

    def row_name(self, row: int) -> str:
        return str(row)

    def encode(self, row: int, draw: Draw) -> int:
        return row

    def collate(self, examples: Sequence[int]) -> Noise:
        return self._batch

    def loss(self, model: nn.Module, batch: Noise) -> Loss:
        log_probs, frames = model(batch.features, batch.frames)
        lengths = torch.full((CLIPS,), LETTERS, device=log_probs.device)
        loss = F.ctc_loss(
            log_probs.transpose(0, 1), batch.targets, frames, lengths, reduction="sum", zero_infinity=True
        )
        return Loss(sum=loss, count=CLIPS * LETTERS, shown=loss.detach())

    def evaluate(self, model: nn.Module, stopped: Any) -> Scores | None:
        return Scores(main=1.0, details={})


class _Endless(Sequence[Any]):
    """More batches than any run takes."""

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, at: Any) -> Any:
        first = (at.start or 0) if isinstance(at, slice) else at
        return [((i, 0),) for i in range(first, min(EPOCH, first + 2_000))] if isinstance(at, slice) else ((at, 0),)


class Waits(Checkpoints):
    """Counts the time its callers spend in it."""

    waited = 0.0
    _inside = False

    @contextmanager
    def _counted(self) -> Iterator[None]:
        outer, self._inside = not self._inside, True
        began = time.perf_counter()
        try:
            yield
        finally:
            if outer:
                self.waited += time.perf_counter() - began
                self._inside = False

    def begin_save(self, state: TrainState) -> None:
        with self._counted():
            super().begin_save(state)

    def poll(self) -> None:
        with self._counted():
            super().poll()

    def settle(self) -> bool:
        with self._counted():
            return super().settle()


@dataclass(frozen=True)
class Measured:
    """One run: steps a second, the share of time that training waited, and how many saves landed meanwhile."""

    rate: float
    waited: float
    saves: int


def measure(root: Path, preset: str, seconds: float, every_seconds: float | None) -> Measured:
    """Train for ``seconds``, saving every ``every_seconds``; the save at the end is not counted."""
    device = pick_device("auto")
    torch.manual_seed(1)
    config = build(SpeechRun, {"name": "bench", "data": {"sources": [{"kind": "sample"}]}}, "bench")
    model = SpeechModel(ModelSection.model_validate({"preset": preset}), SYMBOLS).to(device)
    precision = Precision("fp32", device)
    state = TrainState(
        model, adamw(model, 1e-4, 1e-3, device), precision.scaler,  # type: ignore[arg-type]
        Place(), Progress(planned=10**6), Averages(device), Identity(),
    )  # fmt: skip
    run, recipe = RunDir(root, "bench"), NoiseRecipe()
    run.path.mkdir(parents=True, exist_ok=True)
    times: list[float] = []
    saves: list[Saved] = []
    waited: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, Trained):
            times.append(time.perf_counter())
            waited.append(checkpoints.waited)
        elif isinstance(event, Saved):
            saves.append(event)

    checkpoints = Waits(
        run, config, emit=emit, keep=1, minutes=1e9 if every_seconds is None else every_seconds / 60, model_facts={}
    )
    loader = Loader(recipe, state.place, state.progress, {"train.seed": 1}, clean_batches=0, workers=0, max_bad_rows=0)
    fit = Fit(
        recipe,
        state,
        Plan(schedule=Schedule(1e-4, 10, 0.05, 10**6), last_epoch=1, clip_norm=1.0, log_every=1, eval_every=10**6),
        loader=loader,
        session=Session(run, "bench", stop_at=time.time() + seconds),
        checkpoints=checkpoints,
        emit=emit,
        device=device,
        precision=precision,
    )
    fit.run()
    # from the third step on: the first ones make the optimiser's state
    elapsed = times[-1] - times[2]
    return Measured((len(times) - 3) / elapsed, (waited[-1] - waited[2]) / elapsed, len(saves) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.checkpoint")
    parser.add_argument("--preset", default="16m")
    parser.add_argument("--seconds", type=float, default=95.0)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    rates: dict[bool, list[float]] = {True: [], False: []}
    shares = []
    with tempfile.TemporaryDirectory(prefix="layl-bench-") as folder:
        # a process that has just begun is slower for a while, and so is the first of a pair: neither may count
        measure(Path(folder), args.preset, args.seconds / 4, None)
        for number in range(args.runs):
            for saving in (True, False) if number % 2 == 0 else (False, True):
                found = measure(Path(folder), args.preset, args.seconds, args.every if saving else None)
                rates[saving].append(found.rate)
                if saving:
                    shares.append(found.waited)
                kind = f"saves every {args.every:g} s ({found.saves})" if saving else "no saves"
                print(f"run {number + 1}, {kind}: {found.rate:.3f} steps/s, waited {found.waited:.2%}", flush=True)
    with_saves, without = statistics.median(rates[True]), statistics.median(rates[False])
    print(
        f"{args.preset}: training waits {statistics.median(shares):.2%} of the time (at most 1 %), "
        f"steps per second with saves to without {with_saves / without:.3f} (at least 0.98)"
    )


if __name__ == "__main__":
    main()
