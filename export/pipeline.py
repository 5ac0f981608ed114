"""Checkpoints to a published model: choose, export, measure the very files, pass the gates, and only then publish."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from core import checkpoint
from core.config import config_id
from core.errors import CheckpointError, DataError, ExportRefused
from core.manifest import Prepared, Row, read_prepared
from core.run_dir import TEMPORARY, RunDir, read_json, sync_folder, write_json, write_text
from core.seen import held_out_origins
from core.speech.config import SpeechRun
from core.speech.features import FEATURE_PARAMETERS
from core.speech.model import parameters_m
from core.speech.scoring import score
from core.speech.text import TEXT_MODES
from export import gates
from export.candidates import Candidate, candidates
from export.card import candidate_table, card, score_lines
from export.client import FACTS_FILE, FLOAT_FILE, INT8_FILE, TOKENS_FILE, Recogniser
from export.hearing import heard_by_file, heard_live, real_time_factor
from export.onnx_file import SUBSAMPLING, export_float, quantise
from export.spelling import imlaei_spelling
from export.tested_on import sentences

SPELLING_FILE = "spelling.json"
CARD_FILE = "README.md"
SCORED = ("valid", "test", "unseen_verse")
FILES = {"float32": FLOAT_FILE, "int8": INT8_FILE}
#: Too long for a file that is compared line by line; model.json has them.
LEFT_OUT_OF_METRICS = ("letter_recall", "by_reader")

Report = Callable[[str], None]
Scores = dict[str, dict[str, Any] | None]


def export(run: RunDir, config: SpeechRun, *, unfinished: bool = False, report: Report = print) -> dict[str, Any]:
    """Publish the run's best weights in ``models/<run>/``, their scores in ``metrics/<run>.json``; returns the latter.

    The caller holds the run's lock. A run that has not taken all its steps is exported only if ``unfinished``.
    Raises ExportRefused when a gate fails (nothing published before is touched), CheckpointError without usable
    checkpoints, DataError without validation clips.
    """
    left = _unfinished(run)
    if left and not unfinished:
        raise ExportRefused(f"{run.name} is unfinished ({left}); train on, or export it as it is with --unfinished")
    prepared = read_prepared(run.manifests)
    if not prepared.valid.rows:
        raise DataError(f"{run.manifests} has no validation clips to choose weights by; run `layl prepare {run.name}`")
    chosen, table = _choose(candidates(run, config, report), prepared, run, config, report)
    for line in candidate_table(table):
        report(line)
    # beside the published folder, so that publishing is renaming; the lock makes a leftover a killed export's
    staging = run.models.with_name(f".{run.name}{TEMPORARY}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        facts = _facts(run, config, chosen, prepared) | {"unfinished": left, "candidates": table}
        facts["seen_in_training"] = _seen_in_training(run, prepared, report)
        _write_files(staging, chosen, facts)
        facts |= _measure(staging, chosen, config, prepared, run, report)
        _write_facts(staging, facts)
        _publish(staging, run.models)
    finally:
        shutil.rmtree(staging)
    metrics = _metrics(facts)
    write_json(run.metrics, metrics)
    for line in score_lines(facts):
        report(line)
    report(f"published {run.models}: {facts['size_mb']['int8']:.1f} MB, real-time factor {facts['rtf']['int8']}")
    return metrics


def _unfinished(run: RunDir) -> str | None:
    """ "step N of M" unless the run has taken all its steps."""
    last = read_json(run.last_facts)
    if not isinstance(last, dict) or "step" not in last:
        return None if not run.last.exists() else "how far it is cannot be read"
    planned = last.get("planned") or 0
    done = last.get("finished") is True or last["step"] >= planned
    return None if done else f"step {last['step']} of {planned}"


def _choose(
    found: Sequence[Candidate], prepared: Prepared, run: RunDir, config: SpeechRun, report: Report
) -> tuple[Candidate, list[dict[str, Any]]]:
    """The candidate with the lowest letter error rate on validation (the first named, if equal), and the table."""
    rows, mode = prepared.valid.rows, TEXT_MODES[config.data.text]
    if found[0].data_id != prepared.train.data_id:
        report("the training data changed since these weights were trained")
    table = []
    for candidate in found:
        report(f"listening to {len(rows)} validation clips with {candidate.name}")
        scores = score(rows, heard_live(candidate.model(), rows, run.root, candidate.vocabulary), mode)
        table.append({"name": candidate.name, "steps": list(candidate.steps), **{k: scores[k] for k in ("cer", "wer")}})
    if table[0]["cer"] is None:
        raise DataError(f"the validation clips of {run.manifests} have no letters; check their texts")
    best = min(range(len(table)), key=lambda i: table[i]["cer"])
    return found[best], [{**row, "shipped": i == best} for i, row in enumerate(table)]


def _facts(run: RunDir, config: SpeechRun, chosen: Candidate, prepared: Prepared) -> dict[str, Any]:
    model = chosen.model()
    return {
        "run": run.name,
        "name": config.name or run.name,
        "step": chosen.step,
        "candidate": chosen.name,
        "data_id": chosen.data_id,
        "valid_id": chosen.valid_id,
        "test_id": prepared.splits["test"].data_id,
        "config_id": config_id(config),
        "text": config.data.text,
        "synthetic": any(source.kind == "sample" for source in config.data.sources),
        "tested_on": sentences(prepared.splits, TEXT_MODES[config.data.text]),
        "data_changed": chosen.data_id != prepared.train.data_id,
        "trained_hours": hours_by_source(prepared.train.rows),
        "features": FEATURE_PARAMETERS,
        "mean": model.mean_F.tolist(),
        "std": model.std_F.tolist(),
        "blank": 0,
        "subsampling": SUBSAMPLING,
        "vocabulary": list(chosen.vocab),
        "parameters_m": round(parameters_m(model), 3),
        "config": json.loads(config.model_dump_json()),
    }


def _seen_in_training(run: RunDir, prepared: Prepared, report: Report) -> list[str]:
    """Who and what is held out now although the run, which alone remembers it, has trained on it."""
    held = held_out_origins(prepared.splits)
    try:
        origins = checkpoint.read(run.last)["identity"].get("origins") if run.last.exists() else None
    except CheckpointError as error:
        report(f"whom the run has trained on before cannot be read: {error}")
        return []
    trained = set() if origins is None else set(origins.tolist())
    return sorted(name for origin, name in held.items() if origin in trained)


def hours_by_source(rows: Sequence[Row]) -> dict[str, float]:
    """Hours of audio by the corpus they come from."""
    hours: dict[str, float] = {}
    for row in rows:
        hours[row.source] = hours.get(row.source, 0.0) + row.duration / 3600
    return {source: round(total, 2) for source, total in sorted(hours.items())}


def _write_files(folder: Path, chosen: Candidate, facts: Mapping[str, Any]) -> None:
    told = {k: facts[k] for k in ("name", "step", "data_id", "valid_id", "config_id", "text", "mean", "std")}
    export_float(chosen.model(), chosen.vocab, told, folder / FLOAT_FILE)
    quantise(folder / FLOAT_FILE, folder / INT8_FILE)
    write_text(folder / TOKENS_FILE, chosen.vocabulary.tokens_text())
    if facts["text"] == "quran_letters":
        write_json(folder / SPELLING_FILE, imlaei_spelling(), indent=0)


def _measure(
    folder: Path, chosen: Candidate, config: SpeechRun, prepared: Prepared, run: RunDir, report: Report
) -> dict[str, Any]:
    """Scores, sizes and speed of the files in ``folder``. Raises ExportRefused when a gate fails, cheap ones first."""
    model, rows = chosen.model(), prepared.valid.rows
    clients = {kind: Recogniser(folder, file) for kind, file in FILES.items()}
    proofs = [
        gates.parity(model, clients["float32"], gates.speech(rows, run.root)),
        gates.size(folder / INT8_FILE, parameters_m(model), config.model.preset),
        gates.sherpa_features(),
        *(gates.sherpa_agrees(folder, file, rows, run.root) for file in FILES.values()),
    ]
    gates.refuse_unless_passed(proofs)
    report("listening with the exported files")
    scores = {kind: _scores(client, prepared, run, config) for kind, client in clients.items()}
    cer = {kind: found["valid"]["cer"] for kind, found in scores.items() if found["valid"]}
    proofs.append(gates.int8_loss(cer["float32"], cer["int8"], config.export.max_int8_loss_points))
    for proof in proofs:
        report(str(proof))
    gates.refuse_unless_passed(proofs)
    timed = prepared.splits["test"].rows or rows
    factors = {kind: real_time_factor(client, timed, run.root) for kind, client in clients.items()}
    return {
        "scores": scores,
        "gates": [str(proof) for proof in proofs],
        "size_mb": {kind: round((folder / file).stat().st_size / 1e6, 2) for kind, file in FILES.items()},
        "rtf": {kind: None if rtf is None else round(rtf, 5) for kind, rtf in factors.items()},
    }


def _scores(client: Recogniser, prepared: Prepared, run: RunDir, config: SpeechRun) -> Scores:
    mode = TEXT_MODES[config.data.text]

    def of(rows: Sequence[Row]) -> dict[str, Any] | None:
        return score(rows, heard_by_file(client, rows, run.root), mode) if rows else None

    return {split: of(prepared.splits[split].rows) for split in SCORED}


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    write_text(folder / CARD_FILE, card(facts))
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    write_json(folder / FACTS_FILE, {**facts, "files": digests})


def _publish(staging: Path, target: Path) -> None:
    """Rename every file into ``target``, model.json with the digests of the others last, and drop what is of before."""
    target.mkdir(parents=True, exist_ok=True)
    names = sorted((path.name for path in staging.iterdir()), key=lambda name: (name == FACTS_FILE, name))
    for name in names:
        (staging / name).replace(target / name)
    sync_folder(target)
    if SPELLING_FILE not in names:
        (target / SPELLING_FILE).unlink(missing_ok=True)


def _metrics(facts: Mapping[str, Any]) -> dict[str, Any]:
    """``metrics/<run>.json``: every score but the last is of the int8 file."""

    def brief(scores: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if scores is None else {k: v for k, v in scores.items() if k not in LEFT_OUT_OF_METRICS}

    int8 = facts["scores"]["int8"]
    return {
        "file": INT8_FILE,
        "run": facts["run"],
        "step": facts["step"],
        "unfinished": facts["unfinished"],
        "candidate": facts["candidate"],
        "data_id": facts["data_id"],
        "valid_id": facts["valid_id"],
        "config_id": facts["config_id"],
        "synthetic": facts["synthetic"],
        "seen_in_training": facts["seen_in_training"],
        "parameters_m": facts["parameters_m"],
        "size_mb": facts["size_mb"]["int8"],
        "rtf": facts["rtf"]["int8"],
        **{split: brief(int8[split]) for split in ("test", "valid", "unseen_verse")},
        "float32": {"cer": facts["scores"]["float32"]["valid"]["cer"]},
    }
