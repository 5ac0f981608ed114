"""The loss that is trained, the one that is shown, and a validation that can be cut short."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from core.config import ConfigError
from core.manifest import Row
from core.speech.config import SpeechRun
from core.speech.features import FrontEnd, frames
from core.speech.text import TEXT_MODES, Vocabulary
from tests.train.conftest import CPU, WORDS, publish_rows, tiny_config, tone_rows
from train.recipe import Draw
from train.recipes import builder
from train.recipes.spectrum import Change, source_filters
from train.recipes.speech import MIN_VARIANCE, STATISTICS_CLIPS, Built, feature_statistics, fixed_batches, tap_layers
from train.recipes.speech_data import Example

VOCABULARY = Vocabulary.of(TEXT_MODES["plain"], WORDS)
STILL = {"dropout": 0.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def rows(root: Path) -> list[Row]:
    return tone_rows(root, range(12))


def built(root: Path, rows: list[Row], config: SpeechRun) -> Built:
    from core.manifest import read_prepared
    from core.run_dir import RunDir

    run = RunDir(root, "tiny")
    publish_rows(run, rows, rows[:7])
    made = builder("speech")(config, read_prepared(run.manifests), root, CPU)
    made.start()
    return made


def batch_of(made: Built, places: list[int], *, clean: bool = True) -> Any:
    draw = Draw(seed=1, epoch=1, repeat=0, clean=clean)
    return made.recipe.collate([made.recipe.encode(place, draw) for place in places])


def test_the_loss_is_summed_over_the_batch_and_counted_in_letters(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(model=STILL, train={"inter_ctc_weight": 0.0}))
    loss = made.recipe.loss(made.model, batch_of(made, [0, 1, 2]))
    assert loss.count == sum(len(row.text) for row in rows[:3])
    alone = [made.recipe.loss(made.model, batch_of(made, [place])) for place in (0, 1, 2)]
    assert loss.sum.item() == pytest.approx(sum(one.sum.item() for one in alone), rel=1e-4)
    assert torch.equal(loss.sum.detach(), loss.shown)
    assert not loss.shown.requires_grad
    batch = batch_of(made, [0])
    log_probs, out_N = made.model(*FrontEnd()(batch.audio_NS, batch.samples_N))
    assert alone[0].sum.item() == pytest.approx(by_hand(log_probs, out_N, rows[0]), rel=1e-5)


def by_hand(log_probs: torch.Tensor, out_N: torch.Tensor, row: Row) -> float:
    ids = torch.tensor([VOCABULARY.encode(row.text)])
    return F.ctc_loss(log_probs.transpose(0, 1), ids, out_N, torch.tensor([ids.shape[1]]), reduction="sum").item()


@pytest.mark.parametrize("letters", [True, False], ids=["letters", "none"])
def test_a_model_that_is_very_sure_of_the_wrong_letters_has_a_finite_loss(
    root: Path, rows: list[Row], letters: bool
) -> None:
    """Scores hundreds apart, where cuDNN's CTC gives NaN: targets in int64 keep torch's own."""
    made = built(root, rows, tiny_config(model=STILL))
    examples = [made.recipe.encode(place, Draw(seed=1, epoch=1, repeat=0, clean=True)) for place in (0, 1)]
    if not letters:
        examples[0] = replace(examples[0], ids=())
    batch = made.recipe.collate(examples)
    assert batch.targets_NL.dtype == torch.int64
    with torch.no_grad():
        made.model.head.weight.mul_(1e4)
        log_probs, _ = made.model(*FrontEnd()(batch.audio_NS, batch.samples_N))
    assert log_probs.amax() - log_probs.amin() > 300
    loss = made.recipe.loss(made.model, batch)
    loss.sum.backward()
    assert torch.isfinite(loss.sum)
    assert all(bool(torch.isfinite(p.grad).all()) for p in made.model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("named", "layers"), [([1, 3], (1, 3)), (None, (2,)), ([], ())])
def test_intermediate_losses_have_their_weight_and_are_not_shown(
    root: Path, rows: list[Row], named: list[int] | None, layers: tuple[int, ...]
) -> None:
    config = tiny_config(model={**STILL, "blocks": 4}, train={"inter_ctc_weight": 0.25, "inter_ctc_layers": named})
    made = built(root, rows, config)
    batch = batch_of(made, [0])
    log_probs, out_N, taps = made.model.forward_with_taps(*FrontEnd()(batch.audio_NS, batch.samples_N), layers)
    final = by_hand(log_probs, out_N, rows[0])
    inner = [by_hand(tap, out_N, rows[0]) for tap in taps]
    loss = made.recipe.loss(made.model, batch)
    expected = 0.75 * final + 0.25 * sum(inner) / len(inner) if inner else final
    assert loss.sum.item() == pytest.approx(expected, rel=1e-5)
    assert loss.shown.item() == pytest.approx(final, rel=1e-5)


@pytest.mark.parametrize(
    ("blocks", "named", "taps"), [(6, None, (3,)), (2, None, (1,)), (6, [1, 5], (1, 5)), (6, [], ())]
)
def test_the_middle_block_has_an_intermediate_loss_unless_others_are_named(
    blocks: int, named: list[int] | None, taps: tuple[int, ...]
) -> None:
    assert tap_layers(tiny_config(model={"blocks": blocks}, train={"inter_ctc_layers": named})) == taps


@pytest.mark.parametrize("named", [[0], [6], [3, 9]])
def test_a_block_that_is_not_there_is_refused(named: list[int]) -> None:
    config = tiny_config(model={"blocks": 6}, train={"inter_ctc_layers": named})
    with pytest.raises(ConfigError, match=r"train.inter_ctc_layers: .*expected blocks from 1 to 5"):
        tap_layers(config)


@pytest.mark.parametrize("normalisation", ["corpus", "clip"])
def test_what_is_masked_has_no_say(normalisation: str, root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(model={**STILL, "normalisation": normalisation}))

    def loss(sound: np.ndarray, hidden: bool) -> float:
        count = frames(len(sound))
        change = Change(np.full(count, hidden), np.zeros(80, bool), source_filters(1.0))
        return made.recipe.loss(made.model, made.recipe.collate([Example(0, sound, (3, 4), 1.0, change)])).sum.item()

    quiet = np.zeros(8000, np.float32)
    loud = np.random.default_rng(1).standard_normal(8000).astype(np.float32)
    assert loss(quiet, True) == loss(loud, True)
    assert loss(quiet, False) != loss(loud, False)


def test_a_voice_that_was_moved_is_trained_as_it_then_sounds(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(model=STILL))
    sound = np.random.default_rng(1).standard_normal(8000).astype(np.float32)

    def loss(factor: float) -> float:
        change = Change(np.zeros(50, bool), np.zeros(80, bool), source_filters(factor))
        return made.recipe.loss(made.model, made.recipe.collate([Example(0, sound, (3, 4), 1.0, change)])).sum.item()

    plain = made.recipe.loss(made.model, made.recipe.collate([Example(0, sound, (3, 4), 1.0)])).sum.item()
    assert loss(1.0) == pytest.approx(plain, rel=1e-5) and loss(1.2) != pytest.approx(plain, rel=1e-4)


def test_a_validation_hears_every_clip_in_the_order_of_the_manifest(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(train={"max_batch_clips": 2}))

    def by_length(features: torch.Tensor, frames_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # one frame, whose symbol tells how many frames the clip has
        return F.one_hot(1 + frames_N % 10, 11)[:, None].float(), torch.ones_like(frames_N)

    scores = made.recipe.evaluate(by_length, lambda: False)  # type: ignore[arg-type]
    assert scores is not None
    assert scores.heard == [VOCABULARY.decode([1 + frames(row.samples) % 10]).strip() for row in rows[:7]]
    assert len(set(scores.heard)) > 3
    assert scores.main == scores.details["cer"] > 0.5


def test_a_validation_ends_between_two_batches_when_asked(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(train={"max_batch_clips": 2}))
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) == 3

    with torch.inference_mode():
        assert made.recipe.evaluate(made.model, stopped) is None
    assert len(asked) == 3


def test_validation_batches_are_the_same_every_time_and_hold_each_clip_once(rows: list[Row]) -> None:
    batches = fixed_batches(rows, 3.0, 512)
    assert batches == fixed_batches(rows, 3.0, 512)
    assert sorted(row for batch in batches for row in batch) == list(range(12))
    assert len(batches) > 2


def test_statistics_are_of_all_frames_and_of_clips_taken_evenly(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config())
    clips = made.recipe.source
    mean, std = feature_statistics(rows, clips, made.model)
    front_end = FrontEnd()
    all_frames = []
    for place in range(12):
        samples = torch.from_numpy(clips.plain(place).samples)
        all_frames.append(front_end(samples[None], torch.tensor([len(samples)]))[0][0])
    together = torch.cat(all_frames).double()
    assert torch.allclose(mean.double(), together.mean(0), atol=1e-4)
    assert torch.allclose(std.double(), together.var(0, unbiased=False).clamp_min(MIN_VARIANCE).sqrt(), atol=1e-4)
    asked: list[int] = []

    class Recorded:
        def plain(self, row: int) -> Any:
            asked.append(row)
            return clips.plain(row % 12)

    feature_statistics([rows[0]] * 1000, Recorded(), made.model)  # type: ignore[arg-type]
    assert len(asked) == 400 and asked[0] == 0 and asked[-1] >= 997
    assert {later - earlier for earlier, later in pairwise(asked)} == {2, 3}
    assert len(asked) == STATISTICS_CLIPS


def test_statistics_are_of_what_the_model_normalises(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(model={"normalisation": "clip"}))
    by_corpus, _ = feature_statistics(rows, made.recipe.source, built(root, rows, tiny_config()).model)
    mean, _ = feature_statistics(rows, made.recipe.source, made.model)
    # below the mean power, whose logarithm was taken out
    assert float(mean.max()) < 0 and not torch.allclose(mean, by_corpus, atol=0.5)


def test_silence_has_a_deviation_too(root: Path, rows: list[Row]) -> None:
    class Silence:
        def plain(self, row: int) -> Any:
            return Example(row, np.zeros(1600, np.float32), (1,), 0.1)

    _, std = feature_statistics(rows[:3], Silence(), built(root, rows, tiny_config()).model)  # type: ignore[arg-type]
    assert torch.allclose(std, torch.full((80,), MIN_VARIANCE**0.5))


def test_decay_is_for_matrices_only(root: Path, rows: list[Row]) -> None:
    made = built(root, rows, tiny_config(train={"weight_decay": 0.5}))
    decayed, others = made.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    assert decayed["betas"] == (0.9, 0.98)
    assert {p.ndim for p in others["params"]} == {1}
    assert min(p.ndim for p in decayed["params"]) == 2
    assert len(decayed["params"]) + len(others["params"]) == len(list(made.model.parameters()))


def test_the_first_weights_are_a_function_of_the_seed(root: Path, rows: list[Row]) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(99 + seed)
        return built(root, rows, tiny_config(train={"seed": seed})).model.head.weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(("named", "warmup", "clean"), [(None, 30, 30), (0, 30, 0), (7, 30, 7)])
def test_the_clean_start_lasts_as_long_as_the_warm_up_unless_named(
    root: Path, rows: list[Row], named: int | None, warmup: int, clean: int
) -> None:
    made = built(root, rows, tiny_config(train={"warmup_steps": warmup}, augment={"start_after_steps": named}))
    assert made.clean_batches == clean


def test_what_status_says_of_the_data_counts_only_what_is_used(root: Path, rows: list[Row]) -> None:
    short = replace(rows[0], name="carla/1", reciter="carla", duration=0.1)
    made = built(root, [short, *rows[1:]], tiny_config())
    assert made.facts["train_clips"] == 11
    assert made.facts["hours_by_reciter"].keys() == {"anna"}
    assert made.facts["valid_clips"] == 7
    assert any(line.startswith("1 clips left out") for line in made.lines)
