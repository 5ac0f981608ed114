"""The prepare stage as Prefect tasks: files are decoded by task runs of 500, the rest is the stage itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prefect import get_run_logger, task, unmapped
from prefect.cache_policies import NO_CACHE

from core.run_dir import RunDir
from core.speech.config import SpeechRun
from prepare.gather import Sound, hear
from prepare.pipeline import prepare

#: One task run a clip would flood the server.
FILES_A_SHARD = 500


@task(name="decode", cache_policy=NO_CACHE, persist_result=False)
def decode(paths: Sequence[str], keep: bool) -> list[Sound]:
    """What a shard's files are, in order."""
    return [hear(path, keep) for path in paths]


def by_shards(paths: Sequence[str], keep: bool) -> Iterator[Sound]:
    """Decode by the task runner of the flow that this runs in."""
    shards = [list(paths[i : i + FILES_A_SHARD]) for i in range(0, len(paths), FILES_A_SHARD)]
    for made in decode.map(shards, unmapped(keep)):
        yield from made.result()


@task(name="prepare", task_run_name="prepare-{run.name}", cache_policy=NO_CACHE, persist_result=False)
def prepare_run(run: RunDir, config: SpeechRun, strict: bool) -> dict[str, Any]:
    """Publish the manifests of a run; returns how many clips each split has."""
    meta = prepare(run, config, strict=strict, report=get_run_logger().info, hear_all=by_shards)
    return dict(meta["clips"])
