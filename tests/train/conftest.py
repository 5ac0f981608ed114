"""Small real runs: a speech run on tones, and a toy recipe that shares nothing with it but the engine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from core import checkpoint
from core.config import build
from core.events import Event, EventLog, Started, Trained, read_events
from core.manifest import Row, data_id, manifest_text, publish, row_id
from core.outcome import Outcome
from core.pack import write_pack
from core.run_dir import RunDir
from core.speech.audio import digest
from core.speech.config import SpeechRun
from core.speech.text import TEXT_MODES, Vocabulary
from train.batching import random_for
from train.checkpoints import Checkpoints
from train.device import Precision
from train.loader import Loader
from train.loop import Fit, Plan
from train.recipe import Draw, Loss, Scores
from train.schedule import Schedule
from train.session import Session
from train.start import run_session
from train.state import Averages, Identity, Place, Progress, TrainState

CPU = torch.device("cpu")
WORDS = ("one", "two", "three", "four")

TINY = {
    "data": {"sources": [{"kind": "digits"}], "text": "plain"},
    "model": {"width": 16, "blocks": 2, "heads": 2, "ff_factor": 2, "kernel": 3, "stem_channels": 4, "dropout": 0.1},
    "train": {
        "steps": 12, "lr": 1e-2, "warmup_steps": 3, "max_batch_seconds": 3.5, "log_every_steps": 2,
        "eval_every_steps": 4, "checkpoint_minutes": 1e-9, "keep_checkpoints": 3,
    },
    "augment": {"start_after_steps": 4, "formants": [0.9, 1.1]},
    "spec_augment": {"time_width": 8},
}  # fmt: skip


def tone_clip(seed: int) -> tuple[np.ndarray, str]:
    """A second or so of tones, one a word."""
    random = random_for("clip", seed)
    words = [WORDS[i] for i in random.integers(0, len(WORDS), int(random.integers(1, 4)))]
    pieces = []
    for word in words:
        time = np.arange(int(random.integers(3500, 6000))) / 16_000
        pieces.append(np.sin(2 * np.pi * (300 + 200 * WORDS.index(word)) * time) * 0.3)
    sound = np.concatenate(pieces) + random.standard_normal(sum(map(len, pieces))) * 0.01
    return (sound * 32767).astype("<i2"), " ".join(words)


def tone_rows(root: Path, seeds: Sequence[int], reader: str = "anna") -> list[Row]:
    clips = [tone_clip(seed) for seed in seeds]
    path, offsets = write_pack(root / "data" / "packs", [pcm for pcm, _ in clips])
    rows = []
    for seed, (pcm, text), offset in zip(seeds, clips, offsets, strict=True):
        print_ = digest(pcm)
        rows.append(
            Row(
                id=row_id(print_, text, "ordinary"),
                name=f"{reader}/{seed}",
                audio=str(path.relative_to(root)),
                digest=print_,
                duration=round(len(pcm) / 16_000, 6),
                text=text,
                source="tones",
                group="ordinary",
                offset=offset,
                reciter=reader,
            )
        )
    return rows


def publish_rows(run: RunDir, train: Sequence[Row], valid: Sequence[Row]) -> None:
    tokens = Vocabulary.of(TEXT_MODES["plain"], WORDS).tokens_text()
    splits = {"train": train, "valid": valid, "test": (), "unseen_verse": ()}
    files = {f"{name}.jsonl": manifest_text(rows) for name, rows in splits.items()}
    meta = {"data_id": {name: data_id(rows) for name, rows in splits.items()}}
    publish(run.manifests, {**files, "tokens.txt": tokens, "audit.md": ""}, meta)


def tiny_config(**overrides: Any) -> SpeechRun:
    """The tiny configuration with whole sections merged over it: ``tiny_config(train={"steps": 4})``."""
    fields: dict[str, Any] = {name: dict(section) for name, section in TINY.items()}
    for name, section in overrides.items():
        fields[name] = {**fields.get(name, {}), **section}
    return build(SpeechRun, {"name": "tiny", **fields}, "tiny")


@pytest.fixture(autouse=True, scope="module")
def hurried() -> Iterator[None]:
    """Neither curves nor waiting for the disk: they cost more than all else here, and have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.plots.draw", lambda *_: None)
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@dataclass
class ToyBatch:
    x_NF: Tensor
    y_N: Tensor
    units: float

    def to(self, device: torch.device) -> ToyBatch:
        return self

    def describe(self) -> str:
        return f"{len(self.x_NF)} points"


class ToySource:
    """Seventeen points in batches of four, shuffled by (seed, epoch)."""

    def batches(self, epoch: int, values: Any) -> list[tuple[tuple[int, int], ...]]:
        order = random_for(values["train.seed"], epoch).permutation(17)
        return [tuple((int(row), 0) for row in order[i : i + 4]) for i in range(0, 17, 4)]

    def cost(self, items: Sequence[tuple[int, int]]) -> float:
        return float(len(items))

    def row_name(self, row: int) -> str:
        return f"point {row}"


class ToyRecipe:
    """A line through noisy points: another source, another batch, another loss, another score than speech."""

    def __init__(self) -> None:
        self.source = ToySource()

    def encode(self, row: int, draw: Draw) -> tuple[np.ndarray, float]:
        random = random_for(draw.seed, draw.epoch, row)
        x = random_for("point", row).standard_normal(8)
        return (x if draw.clean else x + 0.1 * random.standard_normal(8)).astype(np.float32), float(x.sum())

    def collate(self, examples: Sequence[tuple[np.ndarray, float]]) -> ToyBatch:
        x = torch.tensor(np.stack([e[0] for e in examples]))
        return ToyBatch(x, torch.tensor([e[1] for e in examples]), float(len(examples)))

    def loss(self, model: nn.Module, batch: ToyBatch) -> Loss:
        total = (model(batch.x_NF)[:, 0] - batch.y_N).square().sum()
        return Loss(sum=total, count=len(batch.y_N), shown=total.detach())

    def evaluate(self, model: nn.Module, stopped: Callable[[], bool]) -> Scores | None:
        if stopped():
            return None
        x = torch.linspace(-1, 1, 24).view(3, 8)
        return Scores(main=float((model(x)[:, 0] - x.sum(1)).square().mean()), details={})


def toy_fit(
    run: RunDir,
    *,
    recipe: ToyRecipe | None = None,
    session: Session | None = None,
    workers: int = 0,
    precision: str = "fp32",
    emit: Callable[[Event], None] | None = None,
    lr: float = 1e-2,
    planned: int = 12,
    minutes: float = 1e-9,
    keep: int = 0,
    max_bad_rows: int = 0,
) -> Fit:
    """The toy run as a session finds it: what train.sitting does for a configured recipe, without configuration."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    log = EventLog(run.events, clock=lambda: 0.0)

    def both(event: Event) -> None:
        log(event)
        if emit is not None:
            emit(event)

    wanted = Precision(precision, CPU)
    state = TrainState(
        model, torch.optim.AdamW(model.parameters(), lr=lr), wanted.scaler,  # type: ignore[arg-type]
        Place(), Progress(planned=planned), Averages(CPU), Identity(session="s"),
    )  # fmt: skip
    checkpoints = Checkpoints(
        run, tiny_config(), emit=both, keep=keep, minutes=minutes, model_facts={}, sync_events=log.sync
    )
    saved, _ = checkpoints.read()
    if saved:
        state.load_state_dict({k: v for k, v in saved.items() if k != "format"})
        checkpoints.saved_step = state.progress.step
    both(
        Started(
            step=state.progress.step, planned=planned, epoch=1, epochs=3, steps_per_epoch=5, session="s",
            frontend="shell", device="cpu",
        )
    )  # fmt: skip
    recipe = recipe or ToyRecipe()
    values = {"train.seed": 1}
    return Fit(
        recipe, state,
        Plan(schedule=Schedule(lr, 3, 0.05, planned), last_epoch=3, clip_norm=1.0, log_every=2, eval_every=4),
        loader=Loader(
            recipe, state.place, state.progress, values, clean_batches=4, workers=workers, max_bad_rows=max_bad_rows
        ),
        session=session or Session(run, "s"), checkpoints=checkpoints, emit=both, device=CPU, precision=wanted,
    )  # fmt: skip


def toy_session(
    run: RunDir, *, until_step: int | None, workers: int = 0, precision: str = "fp32", session: Session | None = None
) -> Outcome:
    """One session of the toy run."""
    session = session or Session(run, "s", until_step=until_step)
    return toy_fit(run, session=session, workers=workers, precision=precision).run()


def speech_session(
    run: RunDir, *, until_step: int | None, workers: int = 0, precision: str = "fp32", session: Session | None = None
) -> Outcome:
    config = tiny_config(train={"num_workers": workers, "precision": precision})
    return sit(run, config, until_step=until_step, session=session)


def sit(
    run: RunDir,
    config: SpeechRun | None = None,
    *,
    until_step: int | None = None,
    session: Session | None = None,
    on_change: str = "refuse",
) -> Outcome:
    """One session of the speech run, the way the trainer's process has it."""
    session = session or Session(run, "s", until_step=until_step)
    return run_session(run, config or tiny_config(), session, frontend="shell", on_change=on_change)


def toy_run(root: Path) -> RunDir:
    run = RunDir(root, "toy")
    run.path.mkdir(parents=True)
    return run


def speech_run(root: Path) -> RunDir:
    run = RunDir(root, "tiny")
    publish_rows(run, tone_rows(root, range(20)), tone_rows(root, range(100, 104), "berta"))
    return run


@dataclass(frozen=True)
class SmallRecipe:
    """How to make a run of a recipe and train one session of it."""

    name: str
    make: Callable[[Path], RunDir]
    session: Callable[..., Outcome]


RECIPES = (SmallRecipe("speech", speech_run, speech_session), SmallRecipe("toy", toy_run, toy_session))


@pytest.fixture(params=RECIPES, ids=lambda recipe: recipe.name)
def recipe(request: pytest.FixtureRequest) -> SmallRecipe:
    return request.param


@pytest.fixture(scope="session")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[SmallRecipe], RunDir]:
    """The run of a recipe that was never cut, trained once; to be read, never written."""
    made: dict[str, RunDir] = {}

    def whole(recipe: SmallRecipe) -> RunDir:
        if recipe.name not in made:
            run = recipe.make(tmp_path_factory.mktemp(recipe.name))
            assert recipe.session(run, until_step=None, workers=0).kind == "finished"
            made[recipe.name] = run
        return made[recipe.name]

    return whole


@pytest.fixture
def whole(recipe: SmallRecipe, wholes: Callable[[SmallRecipe], RunDir]) -> RunDir:
    return wholes(recipe)


@pytest.fixture
def whole_speech(wholes: Callable[[SmallRecipe], RunDir]) -> RunDir:
    return wholes(RECIPES[0])


@pytest.fixture
def whole_toy(wholes: Callable[[SmallRecipe], RunDir]) -> RunDir:
    return wholes(RECIPES[1])


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{path}.{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, inner in enumerate(value) for k, v in flat(inner, f"{path}[{i}]").items()}
    return {path: value}


def state_of(run: RunDir) -> dict[str, Any]:
    """Everything a checkpoint holds but the times."""
    state = flat(checkpoint.read(run.last))
    return {k: v for k, v in state.items() if not k.endswith("_seconds") and ".classes.free" not in k}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


def lines(run: RunDir) -> list[dict[str, Any]]:
    """The log lines that stand, with the numbers that must not depend on cuts."""
    kept: list[Event] = []
    for event, _ in read_events(run.events)[0]:
        if type(event).__name__ == "Started":
            kept = [e for e in kept if e.step <= event.step]
        elif isinstance(event, Trained):
            kept.append(event)
    names = ("step", "epoch", "loss", "lr", "grad_norm", "units_seen", "skipped")
    return [{name: dataclasses.asdict(event)[name] for name in names} for event in kept]


@pytest.fixture
def train_rows(tmp_path: Path) -> list[Row]:
    return tone_rows(tmp_path, range(20))


@pytest.fixture
def valid_rows(tmp_path: Path) -> list[Row]:
    return tone_rows(tmp_path, range(100, 104), "berta")


def events_of(run: RunDir) -> list[Event]:
    return [event for event, _ in read_events(run.events)[0]]


def started(run: RunDir) -> Started:
    """The start of the last session."""
    return [event for event in events_of(run) if isinstance(event, Started)][-1]


def snapshot(run: RunDir) -> dict[str, bytes]:
    """What training made and what it said: all but how the last session ended."""
    return {
        str(p.relative_to(run.path)): p.read_bytes()
        for p in run.path.rglob("*")
        if p.is_file() and p.name != "result.json"
    }
