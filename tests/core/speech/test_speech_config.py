from __future__ import annotations

import re
from typing import Any

import pytest

from core.config import Section, build, change_classes, classed_values, config_id
from core.errors import ConfigError
from core.speech.config import PRESETS, DataSection, DigitsSource, ModelSection, NemoSource, SampleSource, SpeechRun

SAMPLE: dict[str, Any] = {"data": {"sources": [{"kind": "sample"}]}}


def run(**sections: Any) -> SpeechRun:
    return build(SpeechRun, {**SAMPLE, **sections}, "quran.yaml")


def problems(**sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        run(**sections)
    return error.value.problems


def test_the_shortest_configuration_names_its_sources():
    config = run()
    assert config.data.sources == (SampleSource(),)
    assert config.model.model_dump(include=set(PRESETS["demo"])) == PRESETS["demo"]
    assert problems(data={}) == ["data.sources: missing; expected one or more corpora"]


def test_the_defaults_are_those_of_the_original_trainer():
    train = run().train
    assert (train.max_batch_seconds, train.seed, train.log_every_steps) == (300, 1, 50)
    assert (train.eval_every_steps, train.keep_checkpoints) == (1000, 10)
    assert (train.epochs, train.lr, train.warmup_steps, train.min_lr_ratio, train.weight_decay, train.grad_clip) == (
        10, 1e-3, 1000, 0.05, 1e-3, 5.0,
    )  # fmt: skip
    assert (train.inter_ctc_layers, train.inter_ctc_weight, train.checkpoint_minutes) == (None, 0.3, 10)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_what_is_not_named(preset):
    model = run(model={"preset": preset, "kernel": 31, "dropout": 0.2}).model
    expected = {**PRESETS[preset], "kernel": 31, "dropout": 0.2}
    assert {name: getattr(model, name) for name in expected} == expected


@pytest.mark.parametrize("preset", ["big", "16M", 3, None, ["demo"], {}])
def test_a_preset_that_is_not_there_is_one_sentence(preset):
    (sentence,) = problems(model={"preset": preset})
    assert re.match(r"model\.preset: .*; expected demo, 16m or 33m", sentence)


def test_an_encoder_that_cannot_be_built_is_refused_with_every_reason():
    assert problems(model={"width": 100, "heads": 3, "kernel": 4}) == [
        "model: width 100 must be an even multiple of heads 3 (rotary positions); kernel 4 must be odd"
    ]
    assert problems(model={"width": 12, "heads": 4}) == [
        "model: width 12 must be an even multiple of heads 4 (rotary positions)"
    ]
    run(model={"width": 24, "heads": 4})


def test_ranges_stand_in_their_order_and_all_of_them_are_looked_at():
    assert problems(augment={"speed": [3.0, 1.2], "gain_db": [1, -1]}) == [
        "augment: speed [3, 1.2]: the first must not be above the second; "
        "gain_db [1, -1]: the first must not be above the second; speed [3, 1.2] must lie between 0.5 and 2"
    ]
    assert problems(augment={"speed": [0.4, 1]}) == ["augment: speed [0.4, 1] must lie between 0.5 and 2"]
    assert problems(augment={"formants": [1.2, 0]}) == [
        "augment: formants [1.2, 0]: the first must not be above the second; "
        "formants [1.2, 0] must lie between 0.5 and 2"
    ]
    assert run(augment={"speed": [0.5, 2], "gain_db": [0, 0]}).augment.speed == (0.5, 2.0)


def test_a_reader_is_in_one_split():
    assert problems(data={"sources": [{"kind": "sample"}], "split": {"valid": ["a", "b"], "test": ["c", "b"]}}) == [
        "data.split: b cannot be in valid and in test; name a reader in one of them"
    ]


def test_a_source_is_checked_as_its_kind():
    assert problems(data={"sources": [{"kind": "nemo"}, {"kind": "digits", "voices": 5}, {"kind": "everyayah"}]}) == [
        "data.sources[0].manifest: missing; expected the .jsonl file",
        "data.sources[1].voices: unknown field; known: kind, path, test_speaker, utterances, seed",
        'data.sources[2].kind: "everyayah"; expected sample, digits or nemo',
    ]
    config = run(
        data={"sources": [{"kind": "nemo", "manifest": "a.jsonl", "group": "professional"}, {"kind": "digits"}]}
    )
    assert config.data.sources == (NemoSource(manifest="a.jsonl", group="professional"), DigitsSource())


def test_the_old_name_of_ordinary_share_is_refused_with_the_new_one():
    assert problems(data={"sources": [{"kind": "sample"}], "iqraeval_share": 0.3}) == [
        "data.iqraeval_share: unknown field; iqraeval_share is now called ordinary_share"
    ]


@pytest.mark.parametrize(("share", "limit"), [(-0.1, "at least 0"), (1, "less than 1")])
def test_the_ordinary_share_is_a_part(share, limit):
    (sentence,) = problems(data={"sources": [{"kind": "sample"}], "ordinary_share": share})
    assert sentence == f"data.ordinary_share: {share}; expected {limit}"
    assert run().data.ordinary_share == 0


def test_digits_lie_where_the_config_says_else_the_environment_else_the_usual_place(monkeypatch):
    monkeypatch.setenv("LAYL_FSDD", "/clips")
    assert DigitsSource(path="own").folder() == "own"
    assert DigitsSource().folder() == "/clips"
    monkeypatch.delenv("LAYL_FSDD")
    assert DigitsSource().folder() == "data/raw/fsdd"


def sections(kind: type[Section]) -> list[type[Section]]:
    return [kind, *(inner for each in kind.__subclasses__() for inner in sections(each))]


def test_every_field_says_what_it_is_and_what_a_change_of_it_does():
    ours = [kind for kind in sections(Section) if kind.__module__ in ("core.config", "core.speech.config")]
    assert {SpeechRun, DataSection, ModelSection, NemoSource} <= set(ours)
    for kind in ours:
        assert set(change_classes(kind).values()) <= {"free", "plan", "rewarm", "fixed"}
        for name, info in kind.model_fields.items():
            leaf = isinstance(info.json_schema_extra, dict) and "change" in info.json_schema_extra
            assert not leaf or (info.description or "").strip(), f"{kind.__name__}.{name} says nothing"


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ("fixed", {"recipe", "data.text", "model.preset", "model.width", "model.blocks", "model.heads",
                   "model.ff_factor", "model.kernel", "model.stem_channels", "model.normalisation"}),
        ("plan", {"train.seed", "train.max_batch_seconds", "train.max_batch_clips", "data.ordinary_share",
                  "data.warsh_weight", "data.repeat_cap"}),
    ],
)  # fmt: skip
def test_what_does_not_fit_any_more_and_what_waits_for_the_next_epoch(change, fields):
    assert {path for path, kind in change_classes(SpeechRun).items() if kind == change} == fields


@pytest.mark.parametrize(
    "field", ["train.lr", "augment.speed", "spec_augment.time_masks", "model.dropout", "train.inter_ctc_weight"]
)
def test_what_is_learned_from_warms_up_again(field):
    assert change_classes(SpeechRun)[field] == "rewarm"


@pytest.mark.parametrize(
    "field", ["train.log_every_steps", "train.num_workers", "train.checkpoint_minutes", "train.device"]
)
def test_what_only_watches_applies_at_once(field):
    assert change_classes(SpeechRun)[field] == "free"


def other(value: Any) -> Any:
    """A different value of the same shape, whether or not it would be allowed."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return ["other"] if isinstance(value, tuple) else "other"


def with_other(value: Any, path: list[str]) -> Any:
    if not path:
        return other(value)
    name, *rest = path
    return value.model_copy(update={name: with_other(getattr(value, name), rest)})


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("field", change_classes(SpeechRun))
def test_the_config_id_depends_on_every_field_but_the_free_ones(field):
    config = run()
    changed = with_other(config, field.split("."))
    assert classed_values(changed) != classed_values(config)
    assert (config_id(changed) == config_id(config)) == (change_classes(SpeechRun)[field] == "free")
