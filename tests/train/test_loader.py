"""The place counts what the loop received, whatever was loaded ahead."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import train.loader
from core.errors import DataError
from core.speech.audio import AudioError
from tests.train.conftest import ToyRecipe
from train.loader import Loader, stream
from train.recipe import Draw
from train.state import Place, Progress


class Recorded(ToyRecipe):
    """Keeps what it was asked to encode; an epoch's batches hold as many points as the plan says."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[tuple[int, Draw]] = []

        class Source:
            def batches(self, epoch: int, values: Any) -> list[tuple[tuple[int, int], ...]]:
                size = values["size"]
                return [tuple((row, epoch) for row in range(i, min(i + size, 12))) for i in range(0, 12, size)]

            def cost(self, items: Any) -> float:
                return float(sum(row for row, _ in items))

            def row_name(self, row: int) -> str:
                return f"point {row}"

        self.source = Source()  # type: ignore[assignment]

    def encode(self, row: int, draw: Draw) -> Any:
        self.draws.append((row, draw))
        return super().encode(row, draw)


def loader(
    place: Place,
    recipe: ToyRecipe | None = None,
    *,
    workers: int = 0,
    clean: int = 0,
    ramp: int = 0,
    size: int = 4,
    seed: int = 1,
) -> Loader:
    values = {"size": size, "train.seed": seed}
    recipe = recipe or Recorded()
    return Loader(
        recipe, place, Progress(), values, clean_batches=clean, ramp_batches=ramp, workers=workers, max_bad_rows=0
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_place_counts_batches_received_never_those_loaded_ahead(workers: int) -> None:
    place = Place()
    batches = iter(loader(place, workers=workers))
    seen = []
    for _ in range(7):
        next(batches)
        seen.append((place.epoch, place.batch, place.consumed))
    assert seen == [(1, 1, 1), (1, 2, 2), (2, 0, 3), (2, 1, 4), (2, 2, 5), (3, 0, 6), (3, 1, 7)]


def taken(place: Place, count: int, **others: Any) -> list[torch.Tensor]:
    return [batch.x_NF for batch in islice(iter(loader(place, **others)), count)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("cut", range(8))
def test_going_on_at_a_place_gives_what_would_have_come(cut: int) -> None:
    whole = taken(Place(), 8)
    place = Place()
    first = taken(place, cut, workers=0)
    rest = taken(Place(**place.state_dict()), 8 - cut)
    assert all(torch.equal(a, b) for a, b in zip(whole, [*first, *rest], strict=True))


def test_workers_load_the_same() -> None:
    assert all(torch.equal(a, b) for a, b in zip(taken(Place(), 5), taken(Place(), 5, workers=2), strict=True))


def test_going_on_loads_nothing_of_what_was_done() -> None:
    recipe = Recorded()
    next(iter(loader(Place(epoch=5, batch=1, consumed=13, values={"size": 4, "train.seed": 1}), recipe)))
    assert {row for row, _ in recipe.draws} == {4, 5, 6, 7}
    assert {draw.epoch for _, draw in recipe.draws} == {5}


def test_the_augmented_share_grows_evenly_once_the_clean_start_is_over() -> None:
    recipe = Recorded()
    list(islice(iter(loader(Place(), recipe, clean=2, ramp=4)), 7))
    shares = [0.0 if draw.clean else draw.share for _, draw in recipe.draws[::4]]
    assert shares == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_without_a_ramp_all_is_augmented_at_once() -> None:
    recipe = Recorded()
    list(islice(iter(loader(Place(), recipe, clean=1)), 3))
    assert [draw.share for draw in (d for _, d in recipe.draws[4::4])] == [1.0, 1.0]


def test_the_clean_start_counts_batches_since_the_run_began() -> None:
    recipe = Recorded()
    list(islice(iter(loader(Place(), recipe, clean=4)), 6))
    assert [draw.clean for _, draw in recipe.draws[::4]] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("place", [Place(epoch=2, batch=2, consumed=5), Place(epoch=2, batch=0, consumed=5)])
def test_new_data_never_brings_the_clean_start_back(place: Place) -> None:
    # after a change of data the epoch begins anew, the count goes on
    recipe = Recorded()
    place.values = {"size": 4, "train.seed": 1}
    list(islice(iter(loader(place, recipe, clean=5)), 3))
    assert not any(draw.clean for _, draw in recipe.draws)


def test_the_clean_start_goes_on_counting_in_the_next_session() -> None:
    recipe = Recorded()
    list(
        islice(
            iter(loader(Place(epoch=1, batch=1, consumed=3, values={"size": 4, "train.seed": 1}), recipe, clean=4)), 2
        )
    )
    assert [draw.clean for _, draw in recipe.draws[::4]] == [True, False]


def test_the_running_epoch_keeps_its_plan_and_the_next_takes_the_new_one() -> None:
    place = Place()
    list(islice(iter(loader(place)), 1))
    recipe = Recorded()
    changed = iter(loader(place, recipe, size=6, seed=9))
    lengths = []
    for _ in range(4):
        lengths.append(len(next(changed).x_NF))  # type: ignore[attr-defined]
    assert lengths == [4, 4, 6, 6]
    assert [draw.seed for _, draw in recipe.draws[::4]][:2] == [1, 1]
    assert recipe.draws[-1][1].seed == 9
    assert place.values == {"size": 6, "train.seed": 9}


def test_the_epoch_is_that_of_the_batch_received_last() -> None:
    place = Place()
    loading = loader(place)
    batches = iter(loading)
    seen = []
    for _ in range(4):
        next(batches)
        seen.append((loading.epoch, loading.at_epoch_end))
    assert seen == [(1, False), (1, False), (1, True), (2, False)]


@pytest.mark.parametrize(
    ("place", "epoch"), [(Place(), 1), (Place(epoch=3, batch=1), 3), (Place(epoch=3, batch=0), 2), (Place(epoch=1), 1)]
)
def test_before_the_first_batch_it_is_that_of_the_last_session(place: Place, epoch: int) -> None:
    assert loader(place).epoch == epoch


def test_an_epoch_without_batches_is_an_error() -> None:
    recipe = Recorded()
    recipe.source.batches = lambda epoch, values: []  # type: ignore[method-assign]
    with pytest.raises(DataError, match="epoch 1 holds no batch: the training data is empty"):
        next(iter(loader(Place(), recipe)))


def test_a_place_beyond_the_epoch_is_an_error() -> None:
    place = Place(epoch=2, batch=3, values={"size": 4, "train.seed": 1})
    with pytest.raises(DataError, match="epoch 2 has 3 batches, the place is batch 3"):
        next(iter(loader(place)))


class Dying(ToyRecipe):
    """A recipe whose ``encode`` does what it should not."""

    def __init__(self, what: Callable[[], None]) -> None:
        super().__init__()
        self._what = what

    def encode(self, row: int, draw: Draw) -> Any:
        self._what()


def refuse() -> None:
    raise RuntimeError("no such codec")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("workers", "what", "said"),
    [(0, refuse, "no such codec"), (2, refuse, "no such codec"), (2, die, "exited unexpectedly|killed by signal")],
)
def test_what_is_no_matter_of_data_is_an_error_and_leaves_no_worker_behind(
    workers: int, what: Callable[[], None], said: str
) -> None:
    batches = iter(loader(Place(), Dying(what), workers=workers))
    with pytest.raises(RuntimeError, match=said):
        next(batches)
    # they ignore SIGTERM: this process could not even end while one waits to be told that it may go
    assert multiprocessing.active_children() == []


def test_the_heaviest_batch_is_that_of_the_epoch_at_hand_and_nothing_is_consumed() -> None:
    recipe, place = Recorded(), Place(epoch=2, batch=1, values={"size": 3, "train.seed": 1})
    found = loader(place, recipe, size=4).heaviest()
    assert found is not None and [row for row, _ in recipe.draws] == [9, 10, 11]
    assert all(draw.epoch == 2 and not draw.clean for _, draw in recipe.draws)
    assert (place.epoch, place.batch, place.consumed) == (2, 1, 0)
    # what was trained already is not tried: of the last two batches the heaviest is the last
    assert loader(Place(epoch=2, batch=3, values={"size": 3, "train.seed": 1}), recipe, size=4).heaviest() is not None
    assert [row for row, _ in recipe.draws[3:6]] == [9, 10, 11]
    # the next epoch's plan is the new one
    assert loader(Place(epoch=3, values={"size": 3, "train.seed": 1}), recipe, size=4).heaviest() is not None
    assert [row for row, _ in recipe.draws[6:]] == [8, 9, 10, 11]


def test_workers_are_gone_once_nobody_wants_more() -> None:
    batches = iter(loader(Place(), workers=2))
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []


def test_workers_leave_signals_to_the_trainer() -> None:
    batches = iter(loader(Place(), workers=2))
    next(batches)
    for worker in multiprocessing.active_children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker.pid or 0, number)
    assert len(list(islice(batches, 5))) == 5
    batches.close()


class Lost(torch.utils.data.Dataset[int]):
    """Items of which the third cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise AudioError("missing_file", "row anna/2: no such file")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_data_comes_as_it_is_when_its_turn_comes(workers: int) -> None:
    found = []
    with pytest.raises(AudioError, match=r"^row anna/2: no such file$") as caught:
        for item in stream(Lost(), workers, pin=False):
            found.append(item)
    assert found == [0, 1]
    assert caught.value.reason == "missing_file"
    assert multiprocessing.active_children() == []


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_keeps_its_order(workers: int) -> None:
    found: Iterator[int] = stream(Numbers(), workers, pin=False)
    assert list(found) == list(range(9))


def test_no_signal_comes_before_a_worker_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = train.loader.quiet_worker

    def slow(number: int, trainer: int) -> None:
        time.sleep(0.3)
        quiet(number, trainer)

    def interrupt() -> None:
        while len(multiprocessing.active_children()) < 2:
            time.sleep(0.005)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGTERM)

    monkeypatch.setattr(train.loader, "quiet_worker", slow)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert list(stream(Numbers(), 2, pin=False)) == list(range(9))
    thread.join(10)


KILLED = """
import os, signal, sys, time
import multiprocessing
import torch
import train.loader
from torch.utils.data import Dataset

quiet = train.loader.quiet_worker

def slow(number, trainer):
    # the trainer is killed before torch's own watch of it begins
    time.sleep(float(sys.argv[1]))
    quiet(number, trainer)

class Numbers(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        return index

train.loader.quiet_worker = slow
items = train.loader.stream(Numbers(), 2, pin=False)
if float(sys.argv[1]) == 0:
    next(items)
else:
    import threading
    threading.Timer(float(sys.argv[1]) / 2, lambda: (told(), os.kill(os.getpid(), signal.SIGKILL))).start()

def told():
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)

if float(sys.argv[1]) == 0:
    told()
    os.kill(os.getpid(), signal.SIGKILL)
next(items)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nobody is killed like this here")
@pytest.mark.parametrize("before_torch_looks", [0.0, 1.0])
def test_workers_go_when_their_trainer_is_killed_however_early(before_torch_looks: float) -> None:
    command = [sys.executable, "-c", KILLED, str(before_torch_looks)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    workers = [int(pid) for pid in killed.stdout.split()]
    assert killed.returncode == -signal.SIGKILL and len(workers) == 2, killed.stderr
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in workers if _runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
