"""Whether a run has anything left to train, told from small files alone: no torch, a fraction of a second."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from core.config import RunSection, TrainSection, config_id
from core.manifest import read_meta
from core.run_dir import RunDir, read_json, write_json


def already_finished(run: RunDir, config: RunSection) -> str | None:
    """The sentence to print when the run has all its steps on this data and configuration, else None.

    Outputs of the finished run that are missing are made again.
    """
    last = read_json(run.last_facts)
    meta = read_meta(run.manifests)
    train = getattr(config, "train", None)
    if not isinstance(last, dict) or meta is None or not isinstance(train, TrainSection):
        return None
    ids = meta.get("data_id", {})
    same = (
        last.get("finished") is True
        and last.get("data_id") == ids.get("train")
        and last.get("valid_id") == ids.get("valid")
        and last.get("config_id") == config_id(config)
        and (last.get("epochs"), last.get("steps")) == (train.epochs, train.steps)
        and run.last.is_file()
    )
    if not same:
        return None
    write_train_metrics(run, last)
    return f"{run.name} is finished: {last['step']:,} steps on this data; nothing to train"


def write_train_metrics(run: RunDir, last: dict[str, Any]) -> None:
    """``metrics/<run>.train.json``: what the train stage hands on to export. ``last`` is the content of last.json."""
    files = [path for path in (run.best, *run.step_files()) if path.is_file()]
    facts = {
        "run": run.name,
        "step": last["step"],
        "data_id": last["data_id"],
        "valid_id": last["valid_id"],
        "config_id": last["config_id"],
        "seen_in_training": last.get("seen_in_training", []),
        "checkpoints": {path.name: sha256_of(path) for path in files},
    }
    # it may be there and speak of weights of before: whoever wrote last.json was killed before this
    if read_json(run.train_metrics) != facts:
        write_json(run.train_metrics, facts)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
