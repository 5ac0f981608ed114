"""The speech recipe: CTC on letters, clean audio first, intermediate CTC, and the scores that decide what is best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from core.errors import ConfigError, DataError
from core.manifest import Prepared, Row
from core.speech.config import SpeechRun
from core.speech.features import FrontEnd
from core.speech.model import SpeechModel, parameters_m
from core.speech.scoring import hear, score
from core.speech.text import TEXT_MODES, Vocabulary
from train.batching import epoch_batches, padding_share
from train.loader import stream
from train.recipe import Draw, Loss, Scores
from train.recipes.speech_data import Clips, Example, SpeechBatch, collate, fitting

#: AdamW's memory; 0.98 for the second moment, as speech recipes have it (reference: NeMo FastConformer).
BETAS = (0.9, 0.98)
STATISTICS_CLIPS = 400
MIN_VARIANCE = 1e-4


class SpeechRecipe:
    """Source, encode, collate, loss and evaluate for a letters-only CTC model."""

    def __init__(
        self,
        config: SpeechRun,
        clips: Clips,
        valid: Clips,
        vocabulary: Vocabulary,
        device: torch.device,
    ):
        self.source = clips
        self._valid = valid
        self._config = config
        self._vocabulary = vocabulary
        self._device = device
        self._front_end = FrontEnd().to(device)
        self._taps = tap_layers(config)
        self._tap_weight = config.train.inter_ctc_weight
        # torch has no deterministic backward of CTC on a GPU
        self._ctc_on_cpu = config.train.deterministic and device.type == "cuda"

    def encode(self, row: int, draw: Draw) -> Example:
        return self.source.encode(row, draw)

    def collate(self, examples: Sequence[Example]) -> SpeechBatch:
        return collate(examples)

    def loss(self, model: nn.Module, batch: SpeechBatch) -> Loss:
        """CTC summed over the batch's letters: a long ayah weighs no more per letter than a short one."""
        assert isinstance(model, SpeechModel)
        features, frames_N = self._front_end(batch.audio_NS, batch.samples_N)
        hidden = None
        if batch.changes is not None:
            features, hidden = batch.changes.done(features), batch.changes.hidden()
        log_probs, out_N, taps = model.forward_with_taps(features, frames_N, self._taps, hidden)
        final = self._ctc(log_probs, out_N, batch)
        total = final
        if taps:
            inner = torch.stack([self._ctc(tap, out_N, batch) for tap in taps]).mean()
            total = (1 - self._tap_weight) * final + self._tap_weight * inner
        return Loss(sum=total, count=int(batch.lengths_N.sum()), shown=final.detach())

    def _ctc(self, log_probs_NUV: Tensor, frames_N: Tensor, batch: SpeechBatch) -> Tensor:
        target = log_probs_NUV.cpu() if self._ctc_on_cpu else log_probs_NUV
        where = target.device
        return F.ctc_loss(
            target.transpose(0, 1),
            batch.targets_NL.to(where),
            frames_N.to(where),
            batch.lengths_N.to(where),
            blank=0,
            reduction="sum",
            zero_infinity=True,
        ).to(log_probs_NUV.device)

    def evaluate(self, model: nn.Module, stopped: Callable[[], bool]) -> Scores | None:
        """Greedy CTC on all validation clips."""
        batches = until_stopped(self._valid_batches(), stopped)

        def outputs(batch: SpeechBatch) -> tuple[np.ndarray, np.ndarray]:
            on_device = batch.to(self._device)
            features, frames_N = self._front_end(on_device.audio_NS, on_device.samples_N)
            log_probs, out_N = model(features, frames_N)
            return log_probs.float().cpu().numpy(), out_N.cpu().numpy()

        try:
            heard = hear(outputs, batches, self._vocabulary)
        except Interrupted:
            return None
        rows = self._valid.rows
        hyps = [heard[i] for i in range(len(rows))]
        details = score(rows, hyps, TEXT_MODES[self._config.data.text])
        cer = details["cer"]
        return Scores(main=float("inf") if cer is None else cer, details=details, heard=hyps)

    def _valid_batches(self) -> Iterable[SpeechBatch]:
        """Fixed order, no weights, the same budget as training."""
        train = self._config.train
        batches = fixed_batches(self._valid.rows, train.max_batch_seconds, train.max_batch_clips)
        return stream(_Plain(self._valid, batches), min(4, train.num_workers), pin=False)


class Interrupted(Exception):
    """Somebody asked to stop between two batches of a validation."""


def until_stopped(batches: Iterable[SpeechBatch], stopped: Callable[[], bool]) -> Iterator[SpeechBatch]:
    """The batches, one by one. Raises Interrupted once ``stopped`` says so."""
    for batch in batches:
        if stopped():
            raise Interrupted
        yield batch


class _Plain(Dataset[SpeechBatch]):
    def __init__(self, clips: Clips, batches: Sequence[Sequence[int]]):
        self._clips = clips
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> SpeechBatch:
        return collate([self._clips.plain(row) for row in self._batches[index]])


def fixed_batches(rows: Sequence[Row], max_seconds: float, max_clips: int) -> list[tuple[int, ...]]:
    """All rows once, like lengths together, in an order that is the same every time."""
    durations = np.array([row.duration for row in rows])
    batches = epoch_batches(
        durations, np.ones(len(rows)), seed=0, epoch=0, max_seconds=max_seconds, max_clips=max_clips
    )
    return [tuple(row for row, _ in batch) for batch in batches]


def tap_layers(config: SpeechRun) -> tuple[int, ...]:
    """The blocks (from 1) with an intermediate CTC loss. Raises ConfigError for one that is not there."""
    named = config.train.inter_ctc_layers
    layers = (max(1, config.model.blocks // 2),) if named is None else named
    if config.train.inter_ctc_weight == 0:
        return ()
    outside = [layer for layer in layers if not 1 <= layer < config.model.blocks]
    if outside:
        last = config.model.blocks - 1
        problem = f"train.inter_ctc_layers: {outside}; expected blocks from 1 to {last} (the last has the final loss)"
        raise ConfigError(f"run {config.name}", [problem])
    return layers


def feature_statistics(rows: Sequence[Row], clips: Clips, model: SpeechModel) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each filter (80) over the frames of at most 400 clips taken evenly along the manifest."""
    taken = min(len(rows), STATISTICS_CLIPS)
    front_end = FrontEnd()
    count, total, squares = 0, torch.zeros(80, dtype=torch.float64), torch.zeros(80, dtype=torch.float64)
    for row in (i * len(rows) // taken for i in range(taken)):
        samples = torch.from_numpy(clips.plain(row).samples)
        features, frames_N = front_end(samples[None], torch.tensor([len(samples)]))
        own = model.levelled(features, frames_N)[0, : int(frames_N[0])].double()
        count += len(own)
        total += own.sum(0)
        squares += own.square().sum(0)
    mean = total / max(1, count)
    variance = (squares / max(1, count) - mean.square()).clamp_min(MIN_VARIANCE)
    return mean.float(), variance.sqrt().float()


@dataclass(frozen=True)
class Built:
    """What the engine needs of a recipe: its parts, and the facts that status and checkpoints carry."""

    recipe: SpeechRecipe
    model: SpeechModel
    optimizer: torch.optim.Optimizer
    vocabulary: Vocabulary
    rows: Sequence[Row]
    valid_rows: Sequence[Row]
    model_facts: dict[str, Any]
    facts: dict[str, Any]
    clean_batches: int
    ramp_batches: int
    lines: tuple[str, ...]
    start: Callable[[], None]


def build(config: SpeechRun, prepared: Prepared, root: Path, device: torch.device) -> Built:
    """The speech recipe for a configuration and its manifests.

    Raises DataError when there is nothing to train or to validate on.
    """
    vocabulary = Vocabulary.from_tokens_text(prepared.tokens)
    rows, left_out = fitting(prepared.train, vocabulary, config.augment.speed[1])
    if not rows or not prepared.valid.rows:
        empty = "train" if not rows else "valid"
        raise DataError(f"{prepared.folder}/{empty}.jsonl holds no clip to use; see {prepared.folder}/audit.md")
    clips = Clips(rows, root, vocabulary, config)
    valid = Clips(prepared.valid.rows, root, vocabulary, config)
    # the first weights are a function of the seed too
    torch.manual_seed(config.train.seed)
    model = SpeechModel(config.model, len(vocabulary))
    recipe = SpeechRecipe(config, clips, valid, vocabulary, device)

    def start() -> None:
        mean, std = feature_statistics(rows, clips, model)
        model.set_statistics(mean.to(device), std.to(device))

    model.to(device)
    clean = config.augment.start_after_steps
    return Built(
        recipe=recipe,
        model=model,
        optimizer=adamw(model, config.train.lr, config.train.weight_decay, device),
        vocabulary=vocabulary,
        rows=rows,
        valid_rows=prepared.valid.rows,
        model_facts={"model_config": config.model.model_dump(mode="json"), "vocab": list(vocabulary.symbols)},
        facts=_facts(config, prepared, rows, model),
        clean_batches=config.train.warmup_steps if clean is None else clean,
        ramp_batches=config.augment.ramp_steps,
        lines=_lines(config, prepared, rows, left_out, model, clips),
        start=start,
    )


def adamw(model: nn.Module, lr: float, weight_decay: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, fused=device.type in ("cpu", "cuda"))


def _facts(config: SpeechRun, prepared: Prepared, rows: Sequence[Row], model: nn.Module) -> dict[str, Any]:
    by_reader: dict[str, float] = {}
    for row in rows:
        by_reader[row.reciter or "unknown"] = by_reader.get(row.reciter or "unknown", 0.0) + row.duration / 3600
    return {
        "params_m": round(parameters_m(model), 2),
        "train_clips": len(rows),
        "valid_clips": len(prepared.valid),
        "train_hours": round(sum(row.duration for row in rows) / 3600, 2),
        "valid_hours": round(prepared.valid.hours, 2),
        "synthetic": bool(prepared.meta.get("synthetic")),
        "hours_by_reciter": {name: round(hours, 2) for name, hours in sorted(by_reader.items())},
        "model": config.model.model_dump(mode="json"),
        "train": config.train.model_dump(mode="json"),
    }


def _lines(
    config: SpeechRun, prepared: Prepared, rows: Sequence[Row], left_out: int, model: nn.Module, clips: Clips
) -> tuple[str, ...]:
    millions = parameters_m(model)
    values = {
        "train.seed": config.train.seed,
        "train.max_batch_seconds": config.train.max_batch_seconds,
        "train.max_batch_clips": config.train.max_batch_clips,
        "data.ordinary_share": config.data.ordinary_share,
        "data.warsh_weight": config.data.warsh_weight,
        "data.repeat_cap": config.data.repeat_cap,
    }
    durations = np.array([row.duration for row in rows])
    padding = padding_share(clips.batches(1, values), durations)
    hours = durations.sum() / 3600
    lines = [
        f"{len(rows):,} clips ({hours:.2f} h) to train on, {len(prepared.valid):,} ({prepared.valid.hours:.2f} h) to "
        "validate",
        f"{millions:.2f} M parameters, an int8 file of about {millions:.1f} MB",
        f"padding {padding:.1%}; {clips.weights(values)[1]}",
    ]
    if left_out:
        lines.append(f"{left_out:,} clips left out: too short for their letters at speed {config.augment.speed[1]}")
    return tuple(lines)
