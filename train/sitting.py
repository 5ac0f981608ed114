"""One session's inside: what the run has, what changed since, the recipe, and the loop that gets them all."""

from __future__ import annotations

import contextlib
import io
import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from ruamel.yaml import YAML

from core.archive import archive
from core.config import classed_values
from core.errors import ConfigError, DataError
from core.events import Emit, Event, EventLog, Phase, Rewarmed, Started, read_events
from core.manifest import Prepared, data_id, read_prepared
from core.outcome import Outcome
from core.run_dir import RunDir, read_json, write_json, write_text
from core.saying import or_said, say
from core.seen import held_out_origins, origins_of
from core.speech.config import SpeechRun
from core.status import fold
from train.checkpoints import Checkpoints
from train.device import Precision, device_words, kept_awake, pick_device
from train.heard import Heard
from train.loader import Loader
from train.loop import Fit, Plan
from train.recipe import Scores
from train.recipes import builder
from train.resume import Basis, Decision, Point, differences, reconcile
from train.schedule import Schedule, planned_steps
from train.session import Session
from train.state import Averages, Identity, Place, Progress, TrainState
from train.views import LogCsv, Plots, StatusFile

#: A run that trained less than this is put aside without asking when the configuration does not fit it any more.
SMALL_LOSS_SECONDS = 600.0
NO_GPU = "; no GPU is used: right for preset demo, many nights for 16m and 33m"


@dataclass(frozen=True)
class _Saved:
    """What the run's checkpoint says, and what follows from today's data and configuration."""

    state: dict[str, Any]
    decision: Decision
    note: str


def train_session(run: RunDir, config: SpeechRun, session: Session, *, frontend: str, on_change: str) -> Outcome:
    """Train until the run is finished or the session ends; the caller holds the run's lock."""
    device = pick_device(config.train.device)
    precision = Precision(config.train.precision, device)
    if config.train.deterministic:
        torch.use_deterministic_algorithms(True)
    prepared = _manifests(run)
    built = builder(config.recipe)(config, prepared, run.root, device)
    values = classed_values(config)
    identity = _identity(config, prepared, values, session, list(built.vocabulary.symbols), device)
    identity.kept_id = data_id(built.rows)
    identity.steps_per_epoch = len(built.recipe.source.batches(1, values["plan"]))
    identity.origins = torch.from_numpy(origins_of(built.rows))
    state = TrainState(
        model=built.model,
        optimizer=built.optimizer,
        scaler=precision.scaler,  # type: ignore[arg-type]
        place=Place(),
        progress=Progress(),
        averages=Averages(device),
        identity=identity,
    )
    views: list[Callable[[Event], None]] = []

    def emit(event: Event) -> None:
        for view in views:
            with or_said():
                view(event)

    checkpoints = _checkpoints(run, config, built.model_facts, emit, sync=lambda: log.sync())
    saved = _saved(run, checkpoints, identity, config, built.rows, held_out_origins(prepared.splits))
    aside: list[str] = []
    if saved is not None and saved.decision.refused:
        aside = [_put_aside(run, saved, on_change)]
        saved = None

    log = EventLog(run.events)
    status = StatusFile(run, fold(read_events(run.events)[0]), time.time)
    views += [log, status, LogCsv(run), Plots(run, say)]
    if saved is None:
        notes = _begin(state, built, emit, config)
    else:
        notes = _continue(state, saved, identity, config)
    notes += _device_notes(saved, identity)
    checkpoints.saved_step = state.progress.step if saved else None
    if not checkpoints.retract(state.progress.step, state.progress.best_step):
        state.progress.forget_best()
        notes.append("best.pt is not that of this run's best step: the best score begins anew")
    _write_facts(run, config, prepared, built.rows)
    heard = Heard(run, built.valid_rows, identity.valid_id)
    heard.begin(state.progress.step)
    facts = {**built.facts, "data_id": identity.data_id, "seen_in_training": list(state.identity.seen)}
    where = device_words(device, precision)
    said = [*aside, *notes, *built.lines, f"on {where}" + ("" if device.type != "cpu" else NO_GPU)]
    emit(_started(state, session, frontend, where, said, facts))
    if saved is not None and saved.decision.rewarm:
        emit(Rewarmed(step=state.progress.step, reason=saved.decision.rewarm))
    fit = _fit(
        config,
        built,
        state,
        session=session,
        checkpoints=checkpoints,
        emit=emit,
        heard=heard,
        device=device,
        precision=precision,
    )
    try:
        with kept_awake(f"training {run.name}"):
            return fit.run()
    finally:
        log.close()


def _fit(
    config: SpeechRun,
    built: Any,
    state: TrainState,
    *,
    session: Session,
    checkpoints: Checkpoints,
    emit: Emit,
    heard: Heard,
    device: torch.device,
    precision: Precision,
) -> Fit:
    """The loop with everything it needs of the configuration."""

    def hear(step: int, scores: Scores) -> None:
        with or_said():
            heard.write(step, scores.heard)

    loader = Loader(
        built.recipe,
        state.place,
        state.progress,
        classed_values(config)["plan"],
        clean_batches=built.clean_batches,
        ramp_batches=built.ramp_batches,
        workers=config.train.num_workers,
        max_bad_rows=config.train.max_bad_rows,
        pin=device.type == "cuda",
    )
    return Fit(
        built.recipe,
        state,
        _plan(config, state),
        loader=loader,
        session=session,
        checkpoints=checkpoints,
        emit=emit,
        device=device,
        precision=precision,
        on_scores=hear,
    )


def _manifests(run: RunDir) -> Prepared:
    if not run.manifests.is_dir():
        raise DataError(f"{run.manifests} does not exist; run `layl prepare {run.name}` first")
    return read_prepared(run.manifests)


def _identity(
    config: SpeechRun,
    prepared: Prepared,
    values: dict[Any, dict[str, Any]],
    session: Session,
    symbols: list[str],
    device: torch.device,
) -> Identity:
    return Identity(
        recipe=config.recipe,
        data_id=prepared.train.data_id,
        valid_id=prepared.valid.data_id,
        epochs=config.train.epochs,
        steps=config.train.steps,
        classes={change: dict(fields) for change, fields in values.items()},
        symbols=symbols,
        session=session.id,
        versions={"torch": str(torch.__version__), "device": device.type, "python": platform.python_version()},
    )


def _checkpoints(
    run: RunDir,
    config: SpeechRun,
    model_facts: dict[str, Any],
    emit: Callable[[Event], None],
    sync: Callable[[], None],
) -> Checkpoints:
    return Checkpoints(
        run,
        config,
        emit=emit,
        keep=config.train.keep_checkpoints,
        minutes=config.train.checkpoint_minutes,
        model_facts=model_facts,
        sync_events=sync,
    )


def _saved(
    run: RunDir,
    checkpoints: Checkpoints,
    identity: Identity,
    config: SpeechRun,
    rows: Any,
    held_out: Mapping[int, str],
) -> _Saved | None:
    value, note = checkpoints.read()
    if value is None:
        return None
    before, progress, place = Identity(), Progress(), Place()
    before.load_state_dict(value["identity"])
    progress.load_state_dict(value["progress"])
    place.load_state_dict(value["place"])
    after_change = config.train.after_change
    now = _basis(identity, identity.kept_id if before.kept_id else identity.data_id, after_change)
    decision = reconcile(
        _basis(before, before.kept_id or before.data_id, after_change),
        replace(now, held_out=held_out, allow_seen=config.train.allow_seen),
        Point(step=progress.step, planned=progress.planned, epoch=place.epoch, batch=place.batch),
        changed_rows(read_json(run.rows), before.data_id, rows),
    )
    return _Saved(value, decision, note)


def _basis(identity: Identity, rows_id: str, after_change: float) -> Basis:
    return Basis(
        data_id=rows_id,
        valid_id=identity.valid_id,
        steps_per_epoch=identity.steps_per_epoch,
        epochs=identity.epochs,
        steps=identity.steps,
        after_change=after_change,
        classes=identity.classes,
        symbols=tuple(identity.symbols),
        trained=frozenset(identity.origins.tolist()),
    )


def changed_rows(remembered: Any, known_id: str, rows: Any) -> str:
    """``+1,204 -3 ~17 clips`` since the data ``known_id``, or "" when ``remembered`` is not of that."""
    if not isinstance(remembered, dict) or remembered.get("data_id") != known_id:
        return ""
    before, now = remembered.get("rows", {}), {row.name: row.id for row in rows}
    added, removed = len(now.keys() - before.keys()), len(before.keys() - now.keys())
    changed = sum(before[name] != now[name] for name in now.keys() & before.keys())
    return f"+{added:,} -{removed:,} ~{changed:,} clips"


def _put_aside(run: RunDir, saved: _Saved, on_change: str) -> str:
    """Archive the run that does not fit any more, or refuse; returns what to say."""
    progress = saved.state["progress"]
    finished = progress["step"] >= progress["planned"] > 0
    if on_change != "archive" and (finished or progress["train_seconds"] >= SMALL_LOSS_SECONDS):
        what = "is finished" if finished else f"has {progress['train_seconds'] / 3600:.1f} h of training"
        raise ConfigError(
            str(run.config_file),
            list(saved.decision.refused),
            f"{run.name} {what}, and this does not fit it; nothing was touched. Take the change back (fields given "
            f"with --set count too), or begin anew: `layl train {run.name} --on-change archive`",
        )
    where = archive(run)
    run.path.mkdir(parents=True)
    # a request to stop is this session's, and so is what it prints and who it is
    for path in (run.owner, run.control, run.output):
        with contextlib.suppress(FileNotFoundError):
            (where / path.name).replace(path)
    return f"begins anew ({'; '.join(saved.decision.refused)}); the run of before is in {where}"


def _begin(state: TrainState, built: Any, emit: Callable[[Event], None], config: SpeechRun) -> list[str]:
    emit(Phase(step=0, phase="preparing"))
    built.start()
    train = config.train
    state.progress.planned = planned_steps(train.epochs, train.steps, state.identity.steps_per_epoch)
    planned = state.progress.planned
    notes = [f"new run: {planned:,} steps, {state.identity.steps_per_epoch:,} an epoch"]
    if train.warmup_steps > planned / 2:
        notes.append(
            f"the learning rate warms up over {train.warmup_steps:,} of {planned:,} steps: little will be learned; "
            "raise train.epochs (or name train.steps), and lower train.warmup_steps and train.max_batch_seconds"
        )
    return notes


def _continue(state: TrainState, saved: _Saved, identity: Identity, config: SpeechRun) -> list[str]:
    """Restore, then let the decision act; returns what to say."""
    now = Identity(**identity.state_dict())
    now.seen = list(saved.decision.seen)
    state.load_state_dict({k: v for k, v in saved.state.items() if k != "format"})
    if state.progress.step:
        now.origins = torch.unique(torch.cat((now.origins, state.identity.origins)))
    state.identity.load_state_dict(now.state_dict())
    # a checkpoint carries its own rates; the configuration's hold
    for group, decay in zip(state.optimizer.param_groups, (config.train.weight_decay, 0.0), strict=True):
        group["weight_decay"] = decay
    decision, progress, place = saved.decision, state.progress, state.place
    where = f"epoch {place.epoch}/{config.train.epochs:g}, batch {place.batch:,}"
    line = f"resumed at step {progress.step:,} of {decision.planned:,} ({where})"
    progress.planned = decision.planned
    if decision.new_epoch:
        place.epoch, place.batch = place.epoch + 1, 0
    if decision.rewarm:
        progress.warm_from = progress.step
        line += f"; {decision.rewarm} -> {'new epoch, ' if decision.new_epoch else ''}learning rate warms up again"
    if decision.reset_best:
        progress.forget_best()
    return [part for part in (saved.note, line, *decision.notes) if part]


def _device_notes(saved: _Saved | None, identity: Identity) -> list[str]:
    if saved is None:
        return []
    before = saved.state["identity"].get("versions", {})
    changed = differences(before, identity.versions)
    return [f"{'; '.join(changed)}: results are no longer bit-equal to those of before"] if changed else []


def _write_facts(run: RunDir, config: SpeechRun, prepared: Prepared, rows: Any) -> None:
    text = io.StringIO()
    YAML().dump(json.loads(config.model_dump_json()), text)
    write_text(run.resolved_config, text.getvalue())
    write_text(run.tokens, prepared.tokens)
    write_json(run.rows, {"data_id": prepared.train.data_id, "rows": {row.name: row.id for row in rows}}, indent=None)


def _started(
    state: TrainState, session: Session, frontend: str, device: str, notes: list[str], facts: dict[str, Any]
) -> Started:
    return Started(
        step=state.progress.step,
        planned=state.progress.planned,
        epoch=min(state.place.epoch, last_epoch(state)),
        epochs=state.identity.epochs if state.identity.steps is None else last_epoch(state),
        steps_per_epoch=state.identity.steps_per_epoch,
        session=session.id,
        frontend=frontend,
        device=device,
        notes=notes,
        facts=facts,
        stop_at=session.stop_at,
    )


def last_epoch(state: TrainState) -> int:
    """The highest number that an epoch is shown with: a few skipped batches make no further epoch."""
    held = math.ceil(state.progress.planned / max(1, state.identity.steps_per_epoch))
    return held if state.identity.steps is not None else max(held, math.ceil(state.identity.epochs))


def _plan(config: SpeechRun, state: TrainState) -> Plan:
    train = config.train
    return Plan(
        schedule=Schedule(
            peak=train.lr,
            warmup=train.warmup_steps,
            floor=train.min_lr_ratio,
            planned=state.progress.planned,
            warm_from=state.progress.warm_from,
        ),
        last_epoch=last_epoch(state),
        clip_norm=train.grad_clip,
        log_every=train.log_every_steps,
        eval_every=train.eval_every_steps,
    )
