"""The encoder: exact lengths, no word from the neighbours in a batch, taps, statistics, a start that can learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.speech.config import ModelSection
from core.speech.model import ABSENT, Attention, Dropout, SpeechModel, _rotary, out_frames, parameters_m

TINY = ModelSection.model_validate(
    {"width": 16, "blocks": 3, "heads": 2, "ff_factor": 2, "kernel": 5, "stem_channels": 4, "dropout": 0.1}
)


def tiny(config: ModelSection = TINY, seed: int = 0) -> SpeechModel:
    torch.manual_seed(seed)
    model = SpeechModel(config, 7).eval()
    # a head that has opinions, or differences would drown
    torch.nn.init.normal_(model.head.weight, std=1.0)
    model.set_statistics(torch.linspace(-8, -4, 80), torch.linspace(2, 4, 80))
    return model


def clips(lengths: list[int], seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(T, 80, generator=generator) * 3 - 6 for T in lengths]


def batch(rows: list[torch.Tensor], fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    features = torch.full((len(rows), max(1, int(lengths.max())), 80), fill)
    for i, row in enumerate(rows):
        features[i, : len(row)] = row
    return features, lengths


@torch.no_grad()
def alone(model: SpeechModel, row: torch.Tensor) -> torch.Tensor:
    log_probs, frames = model(row[None], torch.tensor([len(row)]))
    assert log_probs.shape[1] == int(frames) == math.ceil(math.ceil(len(row) / 2) / 2)
    return log_probs[0]


def test_neighbours_and_padding_change_nothing_at_lengths_1_to_50() -> None:
    model, rows = tiny(), clips(list(range(1, 51)))
    with torch.no_grad():
        log_probs, frames = model(*batch(rows, fill=9.0))
    assert torch.equal(frames, out_frames(torch.arange(1, 51)))
    for row, heard, U in zip(rows, log_probs, frames.tolist(), strict=True):
        torch.testing.assert_close(heard[:U], alone(model, row), atol=1e-4, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(0, 9))
def test_a_ragged_batch_says_what_each_clip_says_alone(lengths: list[int], seed: int) -> None:
    model, rows = tiny(seed=seed), clips(lengths, seed)
    with torch.no_grad():
        log_probs, frames = model(*batch(rows, fill=-50.0))
    for row, heard, U in zip(rows, log_probs, frames.tolist(), strict=True):
        torch.testing.assert_close(heard[:U], alone(model, row), atol=1e-4, rtol=0)


def test_a_clip_without_frames_gives_numbers_and_no_frames() -> None:
    model = tiny()
    with torch.no_grad():
        log_probs, frames = model(*batch([*clips([40]), torch.zeros(0, 80)]))
    assert frames.tolist() == [10, 0] and torch.isfinite(log_probs).all()


def test_outputs_are_log_probabilities_in_float32_even_under_half_precision() -> None:
    model = tiny()
    features, frames = batch(clips([33]))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs, _ = model(features, frames)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(1, 9), atol=1e-5, rtol=0)


def test_the_last_tap_is_the_output_and_earlier_ones_are_not() -> None:
    model = tiny()
    features, frames = batch(clips([33, 21]))
    with torch.no_grad():
        log_probs, out, taps = model.forward_with_taps(features, frames, (1, 3))
        plain, _ = model(features, frames)
    assert len(taps) == 2 and out.tolist() == [9, 6]
    assert torch.equal(taps[1], log_probs) and torch.equal(log_probs, plain)
    assert not torch.allclose(taps[0], log_probs, atol=1e-2)


def test_statistics_are_part_of_the_model_and_normalise_inside_it() -> None:
    model, bare = tiny(), tiny()
    bare.set_statistics(torch.zeros(80), torch.ones(80))
    assert {"mean_F", "std_F"} <= model.state_dict().keys()
    row = clips([40])[0]
    with torch.no_grad():
        inside, _ = model(row[None], torch.tensor([40]))
        outside, _ = bare(((row - model.mean_F) / model.std_F)[None], torch.tensor([40]))
    torch.testing.assert_close(inside, outside, atol=1e-4, rtol=0)


BY_CLIP = TINY.model_copy(update={"normalisation": "clip"})


def spoken(T: int, seed: int = 1) -> torch.Tensor:
    """Features with power in every filter."""
    return torch.randn(T, 80, generator=torch.Generator().manual_seed(seed)) * 2 - 3


@pytest.mark.parametrize("seed", range(5))
def test_normalised_by_the_clip_level_and_microphone_have_no_say(seed: int) -> None:
    model, row = tiny(BY_CLIP), spoken(60, seed)
    microphone = torch.randn(80, generator=torch.Generator().manual_seed(seed + 100)) * 2 + 3
    torch.testing.assert_close(alone(model, row + microphone), alone(model, row), atol=1e-3, rtol=0)
    plain = tiny()
    assert not torch.allclose(alone(plain, row + microphone), alone(plain, row), atol=0.1)


def test_normalised_by_the_clip_neighbours_and_padding_change_nothing() -> None:
    model, rows = tiny(BY_CLIP), [spoken(T, T) for T in (1, 2, 7, 40, 99)]
    for fill in (0.0, -15.9, 80.0):
        with torch.no_grad():
            log_probs, frames = model(*batch(rows, fill=fill))
        for row, heard, U in zip(rows, log_probs, frames.tolist(), strict=True):
            torch.testing.assert_close(heard[:U], alone(model, row), atol=1e-4, rtol=0)


def test_normalised_by_the_clip_each_filter_has_a_mean_power_of_one() -> None:
    levelled = tiny(BY_CLIP).levelled(*batch([spoken(50), spoken(9, 2)]))
    for row, T in zip(levelled, (50, 9), strict=True):
        torch.testing.assert_close(row[:T].exp().mean(0), torch.ones(80))


def test_normalised_by_the_clip_nothing_and_silence_give_numbers() -> None:
    floor = math.log(torch.finfo(torch.float32).eps)
    model = tiny(BY_CLIP)
    with torch.no_grad():
        log_probs, _ = model(*batch([torch.zeros(0, 80), torch.full((20, 80), floor), torch.full((20, 80), -1e3)]))
    assert torch.isfinite(log_probs).all()


def test_positions_matter_and_time_order_is_heard() -> None:
    config = TINY.model_copy(update={"kernel": 3, "blocks": 1})
    model, row = tiny(config), clips([64])[0]
    assert not torch.allclose(alone(model, row), alone(model, row.flip(0)).flip(0), atol=1e-2)


def test_attention_by_itself_knows_which_frame_comes_first() -> None:
    torch.manual_seed(0)
    attention, x = Attention(16, 2, 0.0), torch.randn(1, 9, 16)
    with torch.no_grad():
        forwards, backwards = (attention(y, _rotary(y, 8), torch.zeros(1, 1, 1, 9)) for y in (x, x.flip(1)))
    assert not torch.allclose(forwards, backwards.flip(1), atol=1e-3)


def test_attention_knows_distances_and_no_places() -> None:
    torch.manual_seed(0)
    attention, x = Attention(16, 2, 0.0), torch.randn(1, 9, 16)
    later = torch.cat((torch.zeros(1, 5, 16), x), dim=1)
    absent = torch.zeros(1, 1, 1, 14)
    absent[..., :5] = ABSENT
    with torch.no_grad():
        here = attention(x, _rotary(x, 8), torch.zeros(1, 1, 1, 9))
        there = attention(later, _rotary(later, 8), absent)[:, 5:]
    torch.testing.assert_close(here, there, atol=1e-5, rtol=0)


def test_a_far_frame_is_heard_through_attention() -> None:
    model, row = tiny(), clips([200])[0]
    changed = row.clone()
    changed[-4:] += 20
    assert not torch.allclose(alone(model, row)[0], alone(model, changed)[0], atol=1e-4)


def test_every_weight_gets_a_gradient_and_the_start_has_no_opinion() -> None:
    torch.manual_seed(0)
    model = SpeechModel(TINY, 7)
    log_probs, _ = model(*batch(clips([40, 30])))
    assert (log_probs.exp() - 1 / 7).abs().max() < 0.1
    torch.nn.functional.ctc_loss(
        log_probs.transpose(0, 1), torch.tensor([[1, 2], [3, 4]]), torch.tensor([10, 8]), torch.tensor([2, 2])
    ).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().any()]
    # a key's bias shifts all scores of a query alike unless positions turn it, so it may be tiny but never absent
    assert not idle


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1000), (40, 25, 96)])
def test_dropout_zeroes_its_share_anywhere_and_keeps_the_mean(shape: tuple[int, ...], share: float) -> None:
    torch.manual_seed(1)
    dropout = Dropout(share)
    sample = [dropout(torch.ones(shape)) for _ in range(max(1, 100_000 // math.prod(shape)) if shape != (1,) else 9)]
    dropped = max(1, round(256 * share))
    assert all(set(x.unique().tolist()) <= {0.0, float(torch.tensor(256 / (256 - dropped)))} for x in sample)
    if math.prod(shape) > 1:
        together = torch.stack(sample)
        assert float((together == 0).float().mean()) == pytest.approx(dropped / 256, abs=0.006)
        # alike at every place of a word of eight bytes
        by_place = together.reshape(len(sample), -1)[:, :7].eq(0).float().mean(0)
        if len(sample) > 10_000:
            assert float((by_place - dropped / 256).abs().max()) < 0.03


def test_dropout_follows_the_generator_and_its_gradient_follows_the_mask() -> None:
    x = torch.ones(5, 33, requires_grad=True)
    torch.manual_seed(3)
    one = Dropout(0.3)(x)
    torch.manual_seed(3)
    assert torch.equal(one, Dropout(0.3)(x)) and not torch.equal(one, Dropout(0.3)(x))
    one.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, one.detach())


def test_dropout_rests_in_evaluation_and_at_zero() -> None:
    x = torch.ones(9)
    before = torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x
    assert torch.equal(before, torch.get_rng_state())


def test_dropped_paths_follow_the_generator_and_rest_in_evaluation() -> None:
    config = TINY.model_copy(update={"drop_path": 0.9, "dropout": 0.0})
    model = tiny(config).train()
    features, frames = batch(clips([40] * 8))
    with torch.no_grad():
        outputs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outputs.append(model(features, frames)[0])
        calm = model.eval()(features, frames)[0]
        assert torch.equal(calm, model(features, frames)[0])
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], calm)


@pytest.mark.parametrize(("preset", "low", "high"), [("demo", 1.2, 1.7), ("16m", 15.2, 16.6), ("33m", 31.5, 34)])
def test_presets_have_the_size_they_are_named_for(preset: str, low: float, high: float) -> None:
    with torch.device("meta"):
        model = SpeechModel(ModelSection.model_validate({"preset": preset}), 36)
    assert low < parameters_m(model) < high
