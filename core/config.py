"""Configuration files: YAML 1.2 in, frozen typed sections out, and every problem of a file reported at once.

YAML goes through JSON into pydantic's strict mode, so ``3e-4`` is a number, ``"3"`` is no number, and a
list may still become a tuple. Each field says what a change of it means for a run that has begun:

free    applies at once
plan    applies from the next epoch; the running epoch keeps its plan
rewarm  applies at once and the learning rate warms up again
fixed   the checkpoint does not fit any more: the run must be archived or the change taken back
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from core.errors import ConfigError

Change = Literal["free", "plan", "rewarm", "fixed"]

#: Fields that had another name once, old -> new: refused with the new name.
RENAMED = {"iqraeval_share": "ordinary_share"}


class Section(BaseModel):
    """A part of a configuration: frozen, strict, closed to unknown fields, and without infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def setting(default: Any, change: Change, doc: str, **limits: Any) -> Any:
    """A field with its default, what a change of it means, one sentence of help, and pydantic's limits."""
    return Field(default, description=doc, json_schema_extra={"change": change}, **limits)


class TrainSection(Section):
    """What the engine needs to know, whatever the recipe."""

    epochs: float = setting(10.0, "free", "passes over the training data", gt=0)
    steps: int | None = setting(None, "free", "updates in all, instead of epochs", ge=1)
    lr: float = setting(1e-3, "rewarm", "peak learning rate", gt=0)
    warmup_steps: int = setting(1000, "rewarm", "updates over which the learning rate rises to its peak", ge=0)
    min_lr_ratio: float = setting(0.05, "rewarm", "floor of the cosine, as a part of the peak", ge=0, le=1)
    weight_decay: float = setting(1e-3, "rewarm", "AdamW's decay, on matrices only", ge=0)
    grad_clip: float = setting(5.0, "free", "gradient norm above which gradients are scaled down", gt=0)
    after_change: float = setting(
        0.2, "free", "part of its length by which a finished run goes on when its training data changed", ge=0
    )
    seed: int = setting(1, "plan", "everything random is a function of it", ge=0)
    num_workers: int = setting(0, "free", "loader processes; 0 loads in the trainer itself", ge=0)
    device: str = setting("auto", "free", "auto, cpu, mps, cuda or cuda:N")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "free", "auto is bf16 on a GPU that has it, else fp32"
    )
    deterministic: bool = setting(False, "free", "bit-equal results on a GPU too, at a price in speed")
    log_every_steps: int = setting(50, "free", "updates between two log lines", ge=1)
    eval_every_steps: int = setting(1000, "free", "updates between two validations", ge=1)
    allow_seen: bool = setting(
        False, "free", "go on although readers that were trained on are held out now; every score says so"
    )
    keep_checkpoints: int = setting(10, "free", "newest step_*.pt kept for averaging; 0 keeps all", ge=0)
    checkpoint_minutes: float = setting(10.0, "free", "wall minutes between two saves of last.pt", gt=0)
    min_session_minutes: float = setting(
        15.0, "free", "a scheduled session that would be shorter than this is skipped", ge=0
    )
    max_late_hours: float = setting(
        2.0, "free", "a session that begins later than this after its time is skipped", ge=0
    )
    max_bad_rows: int = setting(20, "free", "rows that fail to decode before the session stops", ge=0)


class RunSection(Section):
    """The whole of one ``configs/<run>.yaml``. A recipe adds its own sections."""

    name: str = setting("", "free", "name of the run; the file's name unless said otherwise")
    recipe: str = setting("speech", "fixed", "which recipe trains this run")


Run = TypeVar("Run", bound=RunSection)


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML 1.2 file as a plain dict. Raises ConfigError if it is missing, torn or no mapping."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(str(path), ["no such file"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"]) from None
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from None
    value = _parse_yaml(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(str(path), [f"{_shown(value)} holds no field; expected fields like `train: {{epochs: 3}}`"])
    return value


def _parse_yaml(text: str, where: str) -> Any:
    reader = YAML(typ="safe", pure=True)
    try:
        return reader.load(io.StringIO(text))
    except YAMLError as error:
        raise ConfigError(where, [_yaml_sentence(error)]) from None


def _yaml_sentence(error: YAMLError) -> str:
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return f"not YAML: {' '.join(str(error).split())}"
    place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    problem = str(error.problem or error.context)
    if isinstance(error, DuplicateKeyError):
        return f"{place}: {problem.removeprefix('found duplicate key ').split(' with value')[0]} stands twice; keep one"
    began = error.context_mark
    since = f", in what begins at line {began.line + 1}, column {began.column + 1}" if began and error.problem else ""
    hint = "; indent with spaces, not with tabs" if r"'\t'" in problem else ""
    return f"not YAML: {place}: {problem}{since}{hint}"


def read_fields(path: Path, overrides: list[str] | tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of ``path`` with what it ``extends`` below and ``a.b=c`` overrides on top, unchecked."""
    fields = _with_parents(path, above=())
    problems = []
    for override in overrides:
        key, equals, value = override.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(names):
            problems.append(f"--set {override}: expected field=value, for example train.epochs=3")
            continue
        try:
            fields = _put(fields, names, _parse_yaml(value, "--set"))
        except ConfigError as error:
            problems += [f"--set {override}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(str(path), problems)
    return fields


def _with_parents(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in [other.resolve() for other in above]:
        chain = " -> ".join(p.name for p in (*above, path))
        raise ConfigError(str(above[0]), [f"extends itself: {chain}; one of them must stand alone"])
    own = read_yaml(path)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise ConfigError(str(path), [f"extends: {_shown(parent)}; expected a file name like digits.yaml"])
    file = path.parent / parent
    if not file.is_file():
        near = difflib.get_close_matches(parent, [p.name for p in path.parent.glob("*.yaml")], n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; expected a file beside {path.name}"
        raise ConfigError(str(path), [f"extends: {parent}; there is no {file}{hint}"])
    return _merged(_with_parents(file, (*above, path)), own)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        mine = both.get(key)
        both[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return both


def _put(fields: dict[str, Any], path: list[str], value: Any, above: str = "") -> dict[str, Any]:
    # a new dict each time: two YAML aliases of one mapping are one object, and only one of them is meant
    key, *rest = path
    name = key.partition("[")[0]
    if isinstance(fields.get(name), list) and (rest or name != key):
        raise ConfigError("--set", [f"{above}{name} is a list, which is set as a whole, like {above}{name}=[a, b]"])
    if rest:
        inner = fields.get(key)
        value = _put(inner if isinstance(inner, dict) else {}, rest, value, f"{above}{key}.")
    return {**fields, key: value}


def build(section: type[Run], fields: dict[str, Any], where: str) -> Run:
    """A checked configuration from plain fields. Raises ConfigError with every problem, not only the first."""
    if odd := list(_odd(fields)):
        raise ConfigError(where, odd)
    try:
        return section.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ConfigError(where, _sentences(section, fields, error)) from None


def _odd(value: Any, path: str = "", above: tuple[int, ...] = ()) -> Iterator[str]:
    """A sentence for each value that JSON does not know: YAML has dates, sets, bytes, and aliases into themselves."""
    expected = "expected text (in quotes), a number, true, false, a list or fields"
    if id(value) in above:
        yield f"{path}: an alias for what it stands in; write it out"
    elif isinstance(value, dict):
        for key, inner in value.items():
            place = f"{path}.{key}" if path else str(key)
            if not isinstance(key, str | int | float | bool | None):
                yield f"{place}: the name is a {type(key).__name__}; expected text (in quotes)"
            yield from _odd(inner, place, (*above, id(value)))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _odd(inner, f"{path}[{i}]", (*above, id(value)))
    elif isinstance(value, str):
        if any("\ud800" <= ch <= "\udfff" for ch in value):
            yield f"{path}: {_shown(value)} holds half a character; expected whole Unicode text"
    elif not isinstance(value, int | float | None):
        yield f"{path}: {value} is a {type(value).__name__}; {expected}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= 80 else f"{text[:79]}\N{HORIZONTAL ELLIPSIS}"


def _sentences(section: type[Section], fields: dict[str, Any], error: ValidationError) -> list[str]:
    problems = error.errors(include_url=False)
    inside = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
    sentences = []
    for problem in problems:
        # pydantic counts only the items that are right themselves
        counted = problem["type"] == "too_short" and len(problem["input"]) >= problem.get("ctx", {})["min_length"]
        if not (counted and problem["loc"] in inside):
            sentences.append(_sentence(section, problem))
    return sentences


def _sentence(section: type[Section], problem: Any) -> str:
    place, known, kinds, doc = _located(section, problem["loc"])
    kind, given, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{place}: unknown field; {_nearest(section, place, str(problem['loc'][-1]), known)}"
    if kind == "missing" and isinstance(given, dict):
        return f"{place}: missing; expected {doc or _fields(known)}"
    if kind == "missing":
        return f"{place}: missing; {_shown(given)} has too few values"
    if kind == "value_error":
        return f"{place}: {context['error']}"
    if kind == "union_tag_not_found":
        return f"{place}.kind: missing; expected {_either(kinds)}"
    if kind == "union_tag_invalid":
        return f"{place}.kind: {_shown(given['kind'])}; expected {_choice(kinds, given['kind'])}"
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in context["expected"].replace(" or ", ", ").split(", ")]
        return f"{place}: {_shown(given)}; expected {_choice(choices, given)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        wanted = f"fields with kind {_either(kinds)}" if kinds else _fields(known)
        empty = ", or leave the name out too" if given is None else ""
        return f"{place}: {_shown(given)}; expected {wanted}{empty}"
    if kind in EXPECTED:
        return f"{place}: {_shown(given)}; expected {EXPECTED[kind](context)}{_unquoted(kind, given)}"
    message = problem["msg"]
    return f"{place}: {_shown(given)}; {message[:1].lower()}{message[1:]}"


#: What a kind of pydantic's errors expects, in words, from the error's context.
EXPECTED: dict[str, Callable[[dict[str, Any]], str]] = {
    "float_type": lambda _: "a number",
    "int_type": lambda _: "a whole number",
    "int_from_float": lambda _: "a whole number",
    "bool_type": lambda _: "true or false",
    "string_type": lambda _: "text (in quotes)",
    "tuple_type": lambda _: "a list like [a, b]",
    "finite_number": lambda _: "a finite number",
    "greater_than": lambda c: f"more than {c['gt']:g}",
    "greater_than_equal": lambda c: f"at least {c['ge']:g}",
    "less_than": lambda c: f"less than {c['lt']:g}",
    "less_than_equal": lambda c: f"at most {c['le']:g}",
    "too_short": lambda c: f"at least {c['min_length']} {'value' if c['min_length'] == 1 else 'values'}",
    "too_long": lambda c: f"at most {c['max_length']} values",
}


def _unquoted(kind: str, given: Any) -> str:
    if kind not in ("float_type", "int_type", "bool_type") or not isinstance(given, str):
        return ""
    try:
        inner = _parse_yaml(given, "")
    except ConfigError:
        return ""
    if kind == "bool_type":
        words = {"yes": "true", "on": "true", "no": "false", "off": "false"}
        return f", here {words[given.lower()]}" if given.lower() in words else ""
    return ", without quotes" if isinstance(inner, int | float) and not isinstance(inner, bool) else ""


def _either(choices: list[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]


def _choice(choices: list[str], given: Any) -> str:
    near = difflib.get_close_matches(str(given).lower(), choices, n=1)
    return f"{_either(choices)}{f'; did you mean {near[0]}?' if near else ''}"


def _fields(names: list[str]) -> str:
    return f"fields ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"


def _nearest(root: type[Section], place: str, name: str, known: list[str]) -> str:
    if name in RENAMED:
        return f"{name} is now called {RENAMED[name]}"
    outer, dot, inner = name.partition(".")
    if dot:
        return f"fields stand inside each other, like `{outer}: {{{inner}: ...}}`"
    if elsewhere := [path for path in change_classes(root) if path.rpartition(".")[2] == name]:
        return f"did you mean {_either(elsewhere)}?"
    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {place.removesuffix(name)}{near[0]}?"
    return f"known: {', '.join(known)}"


def _located(section: type[Section], loc: tuple[str | int, ...]) -> tuple[str, list[str], list[str], str]:
    """Where an error is, as people write it; the names and the kinds known there; and the field's description.

    The names are those of the section that the place is, else of the section that holds it.
    """
    place, doc = "", ""
    here: list[type[Section]] = [section]
    around = here
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
            continue
        tagged = [kind for kind in here if len(here) > 1 and _tag(kind) == part]
        if tagged:
            # the kind of a source is no part of the way to its fields
            here = around = tagged
            continue
        place += f".{part}" if place else part
        found = [kind.model_fields[part] for kind in here if part in kind.model_fields]
        around = here
        here = [kind for info in found for kind in _sections_in(info.annotation)]
        doc = next((info.description for info in found if info.description), "")
    names = list(dict.fromkeys(name for kind in (here or around) for name in kind.model_fields))
    return place, names, [_tag(kind) for kind in here] if len(here) > 1 else [], doc


def _tag(kind: type[Section]) -> str:
    return str(kind.model_fields["kind"].default) if "kind" in kind.model_fields else kind.__name__


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        return [s for inner in typing.get_args(annotation) for s in _sections_in(inner)]
    return []


def change_classes(section: type[Section], prefix: str = "") -> dict[str, Change]:
    """Each leaf field by its dotted name with what a change of it means. Raises KeyError for a field without one."""
    classes: dict[str, Change] = {}
    for name, info in section.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and "change" in extra:
            classes[prefix + name] = typing.cast(Change, extra["change"])
            continue
        inner = _sections_in(info.annotation)
        if not inner:
            raise KeyError(f"{section.__name__}.{name} has no change class")
        for kind in inner:
            classes.update(change_classes(kind, f"{prefix}{name}."))
    return classes


def classed_values(config: Section) -> dict[Change, dict[str, Any]]:
    """The values of a configuration by change class, as plain JSON values: what a checkpoint remembers of it."""
    plain = json.loads(config.model_dump_json())
    values: dict[Change, dict[str, Any]] = {"free": {}, "plan": {}, "rewarm": {}, "fixed": {}}
    for path, change in change_classes(type(config)).items():
        value: Any = plain
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        values[change][path] = value
    return values


def config_id(config: Section) -> str:
    """Twelve hex digits over every field that is not free: equal for files that train the same thing."""
    values = classed_values(config)
    kept = {change: values[change] for change in ("plan", "rewarm", "fixed")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:12]
