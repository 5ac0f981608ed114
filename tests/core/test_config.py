"""A made-up configuration stands for every recipe's: the sentences are what a newcomer reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from core.config import (
    RunSection,
    Section,
    TrainSection,
    build,
    change_classes,
    classed_values,
    config_id,
    read_fields,
    read_yaml,
    setting,
)
from core.errors import ConfigError


class Cat(Section):
    kind: Literal["cat"] = setting("cat", "free", "a cat")
    lives: int = setting(9, "free", "how often it may fall", ge=1)


class Dog(Section):
    kind: Literal["dog"] = setting("dog", "free", "a dog")
    bone: str = setting(..., "free", "where the bone is buried")


class Zoo(Section):
    animals: tuple[Annotated[Cat | Dog, Field(discriminator="kind")], ...] = setting(
        ..., "free", "who lives here", min_length=1
    )
    cage_metres: tuple[float, float] = setting((1.0, 2.0), "rewarm", "width and depth")
    doors: tuple[int, ...] | None = setting(None, "fixed", "numbers of the doors")
    open_from: str = setting("nine", "plan", "a time in words")
    stars: float = setting(3.0, "free", "what visitors say", gt=0, lt=5)

    @model_validator(mode="after")
    def _fits(self) -> Zoo:
        if self.cage_metres[0] * self.cage_metres[1] < 1:
            raise ValueError("the cage must have a square metre")
        return self


class ZooRun(RunSection):
    recipe: Literal["zoo"] = setting("zoo", "fixed", "which recipe trains this run")
    zoo: Zoo
    train: TrainSection = TrainSection()


GOOD = "zoo: {animals: [{kind: cat}]}\n"


def read(path: Path, text: str, *overrides: str) -> ZooRun:
    path.write_text(text, encoding="utf-8")
    return build(ZooRun, read_fields(path, overrides), path.name)


def problems(path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(path, text, *overrides)
    return error.value.problems


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "zoo.yaml"


def test_every_mistake_of_a_file_is_reported_at_once(file):
    text = (
        GOOD
        + "train: {epochs: 0, warmup_step: 3, lr: fast, precision: fp8, num_workers: 1.5, deterministic: yes,\n"
        + "  steps: '7'}\n"
        + "lr: 3\nname: 7\n"
    )
    assert sorted(problems(file, text)) == sorted(
        [
            "train.epochs: 0; expected more than 0",
            "train.warmup_step: unknown field; did you mean train.warmup_steps?",
            'train.lr: "fast"; expected a number',
            'train.precision: "fp8"; expected auto, fp32, bf16 or fp16',
            "train.num_workers: 1.5; expected a whole number",
            'train.deterministic: "yes"; expected true or false, here true',
            'train.steps: "7"; expected a whole number, without quotes',
            "lr: unknown field; did you mean train.lr?",
            "name: 7; expected text (in quotes)",
        ]
    )


def test_the_message_names_the_file_and_counts(file):
    with pytest.raises(ConfigError) as one:
        read(file, GOOD + "lr: 3\n")
    assert str(one.value) == "zoo.yaml: lr: unknown field; did you mean train.lr?"
    assert one.value.exit_code == 65
    with pytest.raises(ConfigError) as two:
        read(file, GOOD + "lr: 3\nname: 7\n")
    assert str(two.value).splitlines()[0] == "zoo.yaml: 2 problems"
    assert len(str(two.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("animal", "sentence"),
    [
        ("{kind: cta}", 'zoo.animals[0].kind: "cta"; expected cat or dog; did you mean cat?'),
        ("{lives: 3}", "zoo.animals[0].kind: missing; expected cat or dog"),
        ("{kind: cat, live: 3}", "zoo.animals[0].live: unknown field; did you mean zoo.animals[0].lives?"),
        ("{kind: cat, bone: 3}", "zoo.animals[0].bone: unknown field; known: kind, lives"),
        ("{kind: cat, lives: 0}", "zoo.animals[0].lives: 0; expected at least 1"),
        ("{kind: dog}", "zoo.animals[0].bone: missing; expected where the bone is buried"),
        ("cat", 'zoo.animals[0]: "cat"; expected fields with kind cat or dog'),
    ],
)
def test_a_mistake_in_one_of_several_kinds_is_one_sentence_about_that_kind(file, animal, sentence):
    assert problems(file, f"zoo: {{animals: [{animal}]}}\n") == [sentence]


def test_the_index_says_which_one(file):
    text = "zoo: {animals: [{kind: cat}, {kind: cow}, {kind: dog, bone: 3}]}\n"
    assert problems(file, text) == [
        'zoo.animals[1].kind: "cow"; expected cat or dog',
        "zoo.animals[2].bone: 3; expected text (in quotes)",
    ]


@pytest.mark.parametrize(
    ("zoo", "sentence"),
    [
        ("{animals: []}", "zoo.animals: []; expected at least 1 value"),
        ("{animals: cat}", 'zoo.animals: "cat"; expected a list like [a, b]'),
        ("{}", "zoo.animals: missing; expected who lives here"),
        ("3", "zoo: 3; expected fields (animals, cage_metres, doors, open_from, stars)"),
        ("", "zoo: null; expected fields (animals, cage_metres, doors, open_from, stars), or leave the name out too"),
        ("{animals: [{kind: cat}], cage_metres: [1]}", "zoo.cage_metres[1]: missing; [1] has too few values"),
        ("{animals: [{kind: cat}], cage_metres: [1, 2, 3]}", "zoo.cage_metres: [1, 2, 3]; expected at most 2 values"),
        ("{animals: [{kind: cat}], cage_metres: [1, b]}", 'zoo.cage_metres[1]: "b"; expected a number'),
        ("{animals: [{kind: cat}], cage_metres: [0.1, 1]}", "zoo: the cage must have a square metre"),
        ("{animals: [{kind: cat}], doors: [1, x]}", 'zoo.doors[1]: "x"; expected a whole number'),
        ("{animals: [{kind: cat}], stars: 5}", "zoo.stars: 5; expected less than 5"),
        ("{animals: [{kind: cat}], stars: .nan}", "zoo.stars: NaN; expected a finite number"),
        ("{animals: [{kind: cat}], stars: -.inf}", "zoo.stars: -Infinity; expected a finite number"),
        ("{animals: [{kind: cat}], stars: yes}", 'zoo.stars: "yes"; expected a number'),
    ],
)
def test_each_mistake_says_field_value_and_what_was_expected(file, zoo, sentence):
    assert problems(file, f"zoo: {zoo}\n") == [sentence]


def test_a_missing_section_says_which_fields_it_has(file):
    assert problems(file, "") == ["zoo: missing; expected fields (animals, cage_metres, doors, open_from, stars)"]


def test_a_long_value_is_cut(file):
    (sentence,) = problems(file, GOOD + f"train: {{lr: {'x' * 500}}}\n")
    assert len(sentence) < 130 and "…" in sentence and sentence.endswith("expected a number")


def test_a_field_in_the_wrong_section_is_found_in_the_right_one(file):
    assert problems(file, GOOD + "train: {stars: 3}\n") == ["train.stars: unknown field; did you mean zoo.stars?"]


def test_a_dotted_name_in_a_file_is_explained(file):
    assert problems(file, GOOD + "train.lr: 3\n") == [
        "train.lr: unknown field; fields stand inside each other, like `train: {lr: ...}`"
    ]


def test_a_name_of_before_is_refused_with_the_new_one(file):
    assert problems(file, GOOD + "train: {iqraeval_share: 0.3}\n") == [
        "train.iqraeval_share: unknown field; iqraeval_share is now called ordinary_share"
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "train: {device: [2024-01-02]}",
            "train.device[0]: 2024-01-02 is a date; "
            "expected text (in quotes), a number, true, false, a list or fields",
        ),
        ("2024-01-02: 3", "2024-01-02: the name is a date; expected text (in quotes)"),
        ("train: &again [*again]", "train[0]: an alias for what it stands in; write it out"),
        ("train: &again {lr: *again}", "train.lr: an alias for what it stands in; write it out"),
        (r'name: "\ud800"', r'name: "\ud800" holds half a character; expected whole Unicode text'),
    ],
)  # fmt: skip
def test_what_yaml_knows_and_json_does_not_is_refused_in_words(file, line, sentence):
    assert problems(file, f"{GOOD}{line}\n") == [sentence]
    sentence.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "train: {lr: 1\n",
            "not YAML: line 2, column 1: expected ',' or '}', but got '<stream end>', "
            "in what begins at line 1, column 8",
        ),
        (
            "train:\n\tlr: 1\n",
            "not YAML: line 2, column 1: found character '\\t' that cannot start any token; "
            "indent with spaces, not with tabs",
        ),
        ("train: {lr: 1}\ntrain: {epochs: 2}\n", 'line 2, column 1: "train" stands twice; keep one'),
        ("- train\n", '["train"] holds no field; expected fields like `train: {epochs: 3}`'),
        ("name: !cat x\n", "not YAML: line 1, column 7: could not determine a constructor for the tag '!cat'"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_says_where(file, text, sentence):
    assert problems(file, text) == [sentence]


def test_a_file_that_cannot_be_read_is_a_sentence_too(file):
    with pytest.raises(ConfigError, match=r"zoo\.yaml: no such file"):
        read_yaml(file)
    file.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 .* at byte 6"):
        read_yaml(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(file.parent)


def test_an_empty_file_and_one_with_a_byte_order_mark_are_read(file):
    file.write_text("# nothing\n")
    assert read_yaml(file) == {}
    file.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert read_yaml(file) == {"name": "a"}


def test_numbers_are_yaml_1_2_numbers(file):
    config = read(file, GOOD + "train: {lr: 3e-4, min_lr_ratio: 1, seed: 0o17, epochs: 1_0.5}\n")
    assert (config.train.lr, config.train.min_lr_ratio, config.train.seed) == (3e-4, 1.0, 15)
    assert read(file, GOOD + "name: 22:30\n").name == "22:30"
    assert read(file, GOOD + "name: no\n").name == "no"


def test_a_list_becomes_a_tuple_and_stays_frozen(file):
    config = read(file, "zoo: {animals: [{kind: cat}, {kind: dog, bone: garden}], cage_metres: [2, 3]}\n")
    assert config.zoo.animals == (Cat(), Dog(bone="garden"))
    assert config.zoo.cage_metres == (2.0, 3.0)
    with pytest.raises(ValueError, match="frozen"):
        config.zoo.stars = 2.0  # type: ignore[misc]


def test_a_file_extends_another_field_by_field(file):
    (file.parent / "deep").mkdir()
    (file.parent / "deep" / "base.yaml").write_text(GOOD + "train: {lr: 0.1, epochs: 3}\nname: base\n")
    (file.parent / "middle.yaml").write_text("extends: deep/base.yaml\ntrain: {lr: 0.2}\n")
    config = read(file, "extends: middle.yaml\nzoo: {stars: 4.0, animals: [{kind: dog, bone: here}]}\n")
    assert (config.train.lr, config.train.epochs, config.name, config.zoo.stars) == (0.2, 3, "base", 4.0)
    assert config.zoo.animals == (Dog(bone="here"),)


@pytest.mark.parametrize("name", ["zoo.yaml", "other.yaml", "../PLACE/zoo.yaml", "./zoo.yaml"])
def test_files_that_extend_each_other_are_named(file, name):
    (file.parent / "other.yaml").write_text("extends: zoo.yaml\n")
    (sentence,) = problems(file, f"extends: {name.replace('PLACE', file.parent.name)}\n")
    assert sentence.startswith("extends itself: zoo.yaml -> ")
    assert sentence.endswith("-> zoo.yaml; one of them must stand alone")


@pytest.mark.parametrize(
    ("parent", "sentence"),
    [
        ("3", "extends: 3; expected a file name like digits.yaml"),
        ("[a]", 'extends: ["a"]; expected a file name like digits.yaml'),
        ("digit.yaml", "extends: digit.yaml; there is no {folder}/digit.yaml; did you mean digits.yaml?"),
        ("what", "extends: what; there is no {folder}/what; expected a file beside zoo.yaml"),
    ],
)
def test_a_parent_that_is_not_there_is_said_by_the_file_that_names_it(file, parent, sentence):
    (file.parent / "digits.yaml").write_text(GOOD)
    assert problems(file, f"extends: {parent}\n") == [sentence.format(folder=file.parent)]


def test_a_set_goes_through_the_same_reader(file):
    config = read(
        file,
        GOOD,
        "train.lr=3e-4",
        "zoo.cage_metres=[3, 4]",
        "train.steps=null",
        "name='7'",
        " zoo.stars = 2 ",
        "train.seed=5",
    )
    assert (config.train.lr, config.zoo.cage_metres, config.train.steps, config.name) == (3e-4, (3.0, 4.0), None, "7")
    assert (config.zoo.stars, config.train.seed) == (2.0, 5)
    assert problems(file, GOOD, 'train.lr="3"') == ['train.lr: "3"; expected a number, without quotes']
    assert problems(file, GOOD, "train.lrr=3") == ["train.lrr: unknown field; did you mean train.lr?"]


def test_the_last_set_wins_and_makes_what_it_stands_in(file):
    assert read(file, GOOD, "train.lr=1", "train.lr=2", "train={lr: 3}", "train.seed=4").train.lr == 3
    assert read(file, GOOD + "train: 3\n", "train.lr=1").train.lr == 1


def test_a_set_changes_one_of_two_aliases(file):
    file.write_text("a: &a {x: 1}\nb: *a\n")
    assert read_fields(file, ["a.x=2"]) == {"a": {"x": 2}, "b": {"x": 1}}


def test_every_wrong_set_is_reported(file):
    wrong = ["train.lr", "=3", "train..lr=3", "train.lr=[1", "zoo.animals[0].lives=3", "zoo.animals.0=3"]
    assert problems(file, GOOD, *wrong) == [
        "--set train.lr: expected field=value, for example train.epochs=3",
        "--set =3: expected field=value, for example train.epochs=3",
        "--set train..lr=3: expected field=value, for example train.epochs=3",
        "--set train.lr=[1: not YAML: line 1, column 3: expected ',' or ']', but got '<stream end>', "
        "in what begins at line 1, column 1",
        "--set zoo.animals[0].lives=3: zoo.animals is a list, which is set as a whole, like zoo.animals=[a, b]",
        "--set zoo.animals.0=3: zoo.animals is a list, which is set as a whole, like zoo.animals=[a, b]",
    ]  # fmt: skip


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
))  # fmt: skip
def test_whatever_a_file_holds_the_answer_is_a_configuration_or_sentences(value: Any):
    for fields in (
        {"zoo": value},
        {"zoo": {"animals": value}},
        {"zoo": {"animals": [value]}},
        {
            "zoo": {"animals": [{"kind": value}], "cage_metres": value, "doors": value},
            "train": {"lr": value, "seed": value},
        },
    ):
        try:
            build(ZooRun, fields, "zoo.yaml")
        except ConfigError as error:
            assert error.problems
            assert all(problem and "\n" not in problem.split(";")[-1] for problem in error.problems)


def test_change_classes_are_of_leaves_by_dotted_name():
    classes = change_classes(ZooRun)
    assert classes["zoo.cage_metres"] == "rewarm" and classes["zoo.animals"] == "free" and classes["recipe"] == "fixed"
    assert classes["train.seed"] == "plan" and "zoo" not in classes and "train" not in classes


def test_classed_values_are_plain_and_hold_every_leaf(file):
    values = classed_values(read(file, GOOD + "train: {seed: 7}\n"))
    assert values["rewarm"]["zoo.cage_metres"] == [1.0, 2.0]
    assert values["plan"] == {"zoo.open_from": "nine", "train.seed": 7}
    assert values["fixed"] == {"recipe": "zoo", "zoo.doors": None}
    assert sum(map(len, values.values())) == len(change_classes(ZooRun))


def test_the_config_id_ignores_free_fields_and_nothing_else(file):
    plain = config_id(read(file, GOOD))
    assert len(plain) == 12
    other = {
        "zoo.open_from": "ten", "zoo.cage_metres": [2, 2], "zoo.doors": [1], "train.lr": 0.5, "train.warmup_steps": 3,
        "train.min_lr_ratio": 0.5, "train.weight_decay": 0.5, "train.seed": 9,
    }  # fmt: skip
    classes = change_classes(ZooRun)
    assert set(other) == {path for path, change in classes.items() if change != "free"} - {"recipe"}
    changed = [config_id(read(file, GOOD, f"{path}={value}")) for path, value in other.items()]
    assert len({plain, *changed}) == len(changed) + 1
    free = [
        "name=a", "zoo.animals=[{kind: dog, bone: x}]", "zoo.stars=1", "train.epochs=3", "train.steps=5",
        "train.device=cpu", "train.num_workers=2",
    ]  # fmt: skip
    assert config_id(read(file, GOOD, *free)) == plain


def test_the_config_id_does_not_depend_on_how_a_file_is_written(file):
    first = read(file, GOOD + "train: {lr: 1, warmup_steps: 1000}\n")
    second = read(file, "train: {lr: 1.0}\n" + GOOD)
    assert config_id(first) == config_id(second)
