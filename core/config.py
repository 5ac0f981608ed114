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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from core.errors import ConfigError

Change = Literal["free", "plan", "rewarm", "fixed"]

#: Fields that had another name once, old -> new: refused with the new name.
RENAMED = {"iqraeval_share": "ordinary_share"}


class Section(BaseModel):
    """A part of a configuration: frozen, strict, and closed to unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
    keep_checkpoints: int = setting(10, "free", "newest step_*.pt kept for averaging; 0 keeps all", ge=0)
    checkpoint_minutes: float = setting(10.0, "free", "wall minutes between two saves of last.pt", gt=0)
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
        raise ConfigError(str(path), [f"not UTF-8: {error}"]) from None
    value = _parse_yaml(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(str(path), [f"holds a {type(value).__name__}; expected fields like `train: {{epochs: 3}}`"])
    return value


def _parse_yaml(text: str, where: str) -> Any:
    reader = YAML(typ="safe", pure=True)
    try:
        return reader.load(io.StringIO(text))
    except YAMLError as error:
        raise ConfigError(where, [f"not YAML: {' '.join(str(error).split())}"]) from None


def read_fields(path: Path, overrides: list[str] | tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of ``path`` with what it ``extends`` below and ``a.b=c`` overrides on top, unchecked."""
    fields = _with_parents(path, seen=())
    problems = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            problems.append(f"--set {override}: expected field=value, for example train.epochs=3")
            continue
        _put(fields, key.strip().split("."), _parse_yaml(value, f"--set {key}"))
    if problems:
        raise ConfigError(str(path), problems)
    return fields


def _with_parents(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        chain = " -> ".join(p.name for p in (*seen, path))
        raise ConfigError(str(path), [f"extends itself: {chain}"])
    own = read_yaml(path)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise ConfigError(str(path), [f"extends: {parent!r}; expected a file name like digits.yaml"])
    return _merged(_with_parents(path.parent / parent, (*seen, path)), own)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        mine = both.get(key)
        both[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return both


def _put(fields: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        inner = fields.get(key)
        if not isinstance(inner, dict):
            inner = fields[key] = {}
        fields = inner
    fields[path[-1]] = value


def build(section: type[Run], fields: dict[str, Any], where: str) -> Run:
    """A checked configuration from plain fields. Raises ConfigError with every problem, not only the first."""
    try:
        text = json.dumps(fields)
    except (TypeError, ValueError):
        bad = [f"{path}: {value!r} is a {type(value).__name__}; write it in quotes" for path, value in _odd(fields)]
        raise ConfigError(where, bad or ["holds a value that JSON cannot write"]) from None
    try:
        return section.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(where, [_sentence(section, problem) for problem in error.errors()]) from None


def _odd(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _odd(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _odd(inner, f"{path}[{i}]")
    elif not isinstance(value, str | int | float | bool | None):
        yield path, value


def _sentence(section: type[Section], problem: Any) -> str:
    loc = [str(part) for part in problem["loc"]]
    place = ".".join(loc)
    if problem["type"] == "extra_forbidden":
        if loc[-1] in RENAMED:
            return f"{place}: {loc[-1]} is now called {RENAMED[loc[-1]]}"
        names = _field_names(section, loc[:-1])
        near = difflib.get_close_matches(loc[-1], names, n=1)
        hint = f"; did you mean {'.'.join([*loc[:-1], near[0]])}?" if near else f"; known: {', '.join(sorted(names))}"
        return f"{place}: unknown field{hint}"
    message = problem["msg"]
    message = message[0].lower() + message[1:]
    return f"{place}: {json.dumps(problem['input'], ensure_ascii=False, default=str)[:80]}; {message}"


def _field_names(section: type[Section], path: list[str]) -> list[str]:
    current: list[Any] = [section]
    for part in path:
        following: list[Any] = []
        for kind in current:
            if part in kind.model_fields:
                following += _sections_in(kind.model_fields[part].annotation)
        # an index of a list or the tag of a union names no field: stay where we are
        current = following or current
    tag = path[-1] if path else ""
    tagged = [k for k in current if k.model_fields.get("kind") is not None and k.model_fields["kind"].default == tag]
    return sorted({name for kind in (tagged or current) for name in kind.model_fields})


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
