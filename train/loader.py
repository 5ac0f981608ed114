"""Batches in order, loaded ahead by workers; the place is counted where the loop receives a batch.

A batch is a pure function of its row numbers, the epoch and the seed, so neither the number of workers nor
a cut changes it, and going on at a place replays nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from core.errors import DataError
from core.saying import say
from train.recipe import Batch, Draw, Recipe
from train.state import Place, Progress

AHEAD = 4
#: How often a loader process looks whether its trainer is there.
FOLLOW_SECONDS = 0.5
QUIET_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True)
class Order:
    """A batch to load: (row, repeat) pairs, whether it still belongs to the clean start, and how much is augmented."""

    items: tuple[tuple[int, int], ...]
    epoch: int
    seed: int
    clean: bool
    share: float = 1.0


@dataclass(frozen=True)
class Loaded:
    """A batch, or None when none of its rows could be read; ``bad`` says which could not and why."""

    batch: Batch | None
    bad: tuple[tuple[int, str], ...]


class _Orders(Dataset[Loaded]):
    def __init__(self, recipe: Recipe, orders: Sequence[Order]):
        self._recipe = recipe
        self._orders = orders

    def __len__(self) -> int:
        return len(self._orders)

    def __getitem__(self, index: int) -> Loaded:
        order = self._orders[index]
        examples, bad = [], []
        for row, repeat in order.items:
            draw = Draw(seed=order.seed, epoch=order.epoch, repeat=repeat, clean=order.clean, share=order.share)
            try:
                examples.append(self._recipe.encode(row, draw))
            except (DataError, OSError) as error:
                bad.append((row, f"{self._recipe.source.row_name(row)}: {error}"))
        return Loaded(self._recipe.collate(examples) if examples else None, tuple(bad))


def quiet_worker(_: int, trainer: int) -> None:
    """Loader processes use one thread and leave signals to the trainer (a pid), which ends them after its last save.

    When it is killed they go by themselves: what they inherited of its lock would keep the next session out. torch
    looks for that too, but takes whoever is the parent by then for the trainer.
    """
    threading.Thread(target=_follow, args=(trainer,), name="trainer-watch", daemon=True).start()
    torch.set_num_threads(1)
    for number in QUIET_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET_SIGNALS)


def _follow(trainer: int) -> None:
    while os.getppid() == trainer:
        time.sleep(FOLLOW_SECONDS)
    os._exit(1)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait while the body makes processes, which begin with them held: none comes before it is ignored."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Told(Dataset[Any]):
    """Hands a DataError on as it is: torch would raise another, of another type, with a traceback for its text."""

    def __init__(self, dataset: Dataset[Any]):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except DataError as error:
            return error


def stream(dataset: Dataset[Any], workers: int, pin: bool) -> Generator[Any, None, None]:
    """The items of a map-style dataset in order, loaded AHEAD of their use by ``workers`` processes.

    Raises the DataError of an item when its turn comes. The workers are gone when the generator is closed.
    """
    ahead = max(1, AHEAD // workers) if workers else None
    loader = DataLoader(
        _Told(dataset), batch_size=None, shuffle=False, num_workers=workers, prefetch_factor=ahead,
        worker_init_fn=partial(quiet_worker, trainer=os.getpid()), pin_memory=pin,
    )  # fmt: skip
    with _signals_held():
        items = iter(loader)
    try:
        for item in items:
            if isinstance(item, DataError):
                raise item
            yield item
    finally:
        _end_workers(items)


def _end_workers(items: Any) -> None:
    # Left to the garbage collector after an error, a worker is never told that it may go; and as it ignores
    # SIGTERM, this process would wait for it for ever at its own end.
    if hasattr(items, "_shutdown_workers"):
        items._shutdown_workers()
    for worker in getattr(items, "_workers", ()):
        if worker.is_alive():
            worker.kill()


class Loader:
    """Endless batches from a place onwards, epoch after epoch.

    ``values`` are the configuration's plan fields: an epoch that has begun keeps those it began with.
    """

    def __init__(
        self,
        recipe: Recipe,
        place: Place,
        progress: Progress,
        values: Mapping[str, Any],
        *,
        clean_batches: int,
        ramp_batches: int = 0,
        workers: int,
        max_bad_rows: int,
        pin: bool = False,
    ):
        self._recipe = recipe
        self._place = place
        self._progress = progress
        self._values = dict(values)
        self._clean_batches = clean_batches
        self._ramp_batches = ramp_batches
        self._workers = workers
        self._max_bad_rows = max_bad_rows
        self._pin = pin
        self._bad: set[int] = set()
        #: the epoch of the batch that was received last; the place itself may already name the next one
        self.epoch = max(1, place.epoch - 1) if place.batch == 0 else place.epoch

    @property
    def at_epoch_end(self) -> bool:
        """The batch received last ended its epoch."""
        return self._place.batch == 0

    def __iter__(self) -> Generator[Batch, None, None]:
        place = self._place
        while True:
            if not place.values or place.batch == 0:
                place.values = dict(self._values)
            self.epoch = place.epoch
            batches = self._recipe.source.batches(place.epoch, place.values)
            if not batches:
                raise DataError(f"epoch {place.epoch} holds no batch: the training data is empty")
            if place.batch >= len(batches):
                raise DataError(f"epoch {place.epoch} has {len(batches)} batches, the place is batch {place.batch}")
            with closing(self._rest(batches)) as rest:
                for loaded in rest:
                    place.consumed += 1
                    place.batch += 1
                    if place.batch == len(batches):
                        place.epoch, place.batch = place.epoch + 1, 0
                    self._count_bad(loaded)
                    if loaded.batch is not None:
                        yield loaded.batch

    def heaviest(self) -> Batch | None:
        """What costs most of what is left of the place's epoch, as it is drawn, or None when none of it can be read.

        Others that cost as much may be drawn a little longer: a voice that is slowed down is.
        """
        place = self._place
        values = place.values if place.values and place.batch else self._values
        source = self._recipe.source
        items = max(source.batches(place.epoch, values)[place.batch :], key=source.cost, default=())
        order = Order(items=tuple(items), epoch=place.epoch, seed=int(values.get("train.seed", 0)), clean=False)
        return _Orders(self._recipe, [order])[0].batch

    def _rest(self, batches: Sequence[Sequence[tuple[int, int]]]) -> Generator[Loaded, None, None]:
        place = self._place
        orders = [
            Order(
                items=tuple(items),
                epoch=place.epoch,
                seed=int(place.values.get("train.seed", 0)),
                clean=place.consumed + ahead < self._clean_batches,
                share=self._share(place.consumed + ahead),
            )
            for ahead, items in enumerate(batches[place.batch :])
        ]
        return stream(_Orders(self._recipe, orders), self._workers if len(orders) > 1 else 0, self._pin)

    def _share(self, consumed: int) -> float:
        """The part of a batch that is augmented: grows evenly from the end of the clean start on."""
        if self._ramp_batches == 0:
            return 1.0
        return min(1.0, max(0.0, (consumed - self._clean_batches + 1) / self._ramp_batches))

    def _count_bad(self, loaded: Loaded) -> None:
        self._progress.bad_rows += len(loaded.bad)
        for row, why in loaded.bad:
            if row not in self._bad:
                say(f"left out: {why}")
            # a session's bad rows, each once: the same one comes back every epoch
            self._bad.add(row)
            if len(self._bad) > self._max_bad_rows:
                raise DataError(
                    f"{len(self._bad)} rows could not be read, more than train.max_bad_rows "
                    f"({self._max_bad_rows}); the last: {why}; run `layl prepare` again"
                )
