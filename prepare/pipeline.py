"""The prepare stage from end to end. Nothing changed: it says so without decoding; killed: the next call goes on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.errors import DataError
from core.lock import hold_file
from core.manifest import SPLITS, Row, manifest_text, parse_manifest, publish, read_meta
from core.run_dir import RunDir, remove_temporary
from core.speech.config import SpeechRun
from core.speech.text import TEXT_MODES, Vocabulary
from prepare.audit import audit_text, leak_sentence, moved_sentence, summary
from prepare.cache import VERSION, Cache, pack_name
from prepare.checks import Judged, by_reason, judge, refuse_bad_source
from prepare.clip import SourceReader
from prepare.sources import SOURCES
from prepare.splits import Before, Leak, Splits, assign, leaks

if TYPE_CHECKING:
    from prepare.gather import HearAll

#: fields of ``data`` that say how rows are used in training; the manifests do not depend on them
#: Part of every key: counts up when the same clips would be judged or split differently.
_RULES = 2
_FOR_TRAINING = {"ordinary_share", "warsh_weight", "repeat_cap"}


def prepare(
    run: RunDir,
    config: SpeechRun,
    *,
    strict: bool = False,
    report: Callable[[str], None] = print,
    workers: int | None = None,
    hear_all: HearAll | None = None,
) -> dict[str, Any]:
    """Publish the manifests of a run from its sources; returns the meta file's content.

    strict: refuse to publish when something leaks from one split into another. workers: processes that decode, one a
    core unless said otherwise, or ``hear_all`` instead; the result does not depend on it. Raises DataError for sources
    that cannot be used (what was published before stays) and BusyError while another process prepares the same run.
    """
    busy = f"{run.name} is being prepared by another process; wait for it and try again"
    with hold_file(run.prepare_lock, lambda: busy):
        return _Preparation(run, config, strict, report, workers or os.cpu_count() or 1, hear_all).meta()


class _Preparation:
    """One call of prepare, with the lock held."""

    def __init__(
        self,
        run: RunDir,
        config: SpeechRun,
        strict: bool,
        report: Callable[[str], None],
        workers: int,
        hear_all: HearAll | None,
    ) -> None:
        self.run, self.config, self.strict = run, config, strict
        self.report, self.workers, self.hear_all = report, workers, hear_all
        self.cache = Cache(run.prepare_cache, run.packs)
        self.wheres = [f"data.sources[{index}]" for index in range(len(config.data.sources))]
        self.readers: list[SourceReader] = [
            SOURCES[source.kind](source, run.root, where)
            for source, where in zip(config.data.sources, self.wheres, strict=True)
        ]

    def meta(self) -> dict[str, Any]:
        # taken before anything is read: what changes meanwhile is seen the next time
        key = self._key()
        known = self.cache.run(self.run.name)
        meta = _published(self.run, known, key, self.cache)
        if meta is None:
            return self._afresh(key)
        self._refuse_leaks([Leak(kind, what, tuple(splits)) for kind, what, splits in known["leaks"]])
        self._warn(meta["split"]["moved"])
        self.report(f"{self.run.name}: unchanged, {_counts(meta)}")
        return meta

    def _key(self) -> str:
        data = self.config.data.model_dump(mode="json", exclude=_FOR_TRAINING)
        facts = [
            VERSION,
            _RULES,
            self.run.name,
            data,
            self.config.augment.speed[1],
            self._begun_tokens(),
            [reader.fingerprint() for reader in self.readers],
        ]
        return hashlib.sha256(json.dumps(facts, ensure_ascii=False).encode()).hexdigest()

    def _begun_tokens(self) -> str | None:
        """tokens.txt of a run that has begun and whose letters come from its data."""
        if TEXT_MODES[self.config.data.text].alphabet is not None or not self.run.tokens.is_file():
            return None
        return self.run.tokens.read_text(encoding="utf-8")

    def _afresh(self, key: str) -> dict[str, Any]:
        remove_temporary(self.run.manifests)
        self.cache.sweep_packs(time.time())
        judged = self._judged()
        mode = TEXT_MODES[self.config.data.text]
        splits = assign(judged.kept, self.config.data.split, mode, self._before())
        self._check_splits(splits)
        dictated = {each.row.id for each in judged.kept if each.split is not None}
        found = leaks(splits.rows, dictated, mode, splits.by_recording)
        self._refuse_leaks(found)
        meta = self._publish(judged, splits, found)
        rows = [row for split in SPLITS for row in splits.rows[split]]
        packs = {pack_name(row.audio) for row in rows if row.offset is not None}
        record = {
            "key": key,
            "files": meta["files"],
            "packs": {name: self.cache.pack_bytes(name) for name in sorted(packs)},
            "leaks": [[leak.kind, leak.what, list(leak.splits)] for leak in found],
        }
        self.cache.keep_run(self.run.name, record)
        self.report(f"{self.run.name}: published, {_counts(meta)}")
        return meta

    def _before(self) -> Before:
        """Who stands where in what is published. Of a torn publication whatever can be read counts: better a reader
        too many who stays than one who was trained on and tests."""
        meta = read_meta(self.run.manifests)
        torn = f"{self.run.manifests.relative_to(self.run.root)} is not as it was published (killed, or edited)"
        if meta is None:
            if any(self.run.manifests.glob("*.jsonl")):
                self.report(f"{torn}: who is held out is decided afresh")
            return Before()
        if not _is_intact(self.run, meta):
            self.report(f"{torn}: who was trained on is taken from what can still be read of it")
        rows: dict[str, tuple[Row, ...]] = {}
        for split in SPLITS:
            path = self.run.manifests / f"{split}.jsonl"
            try:
                rows[split] = parse_manifest(path.read_bytes().decode(), str(path))
            except (OSError, UnicodeDecodeError, DataError):
                continue
        return Before.of(rows, meta.get("split", {}))

    def _judged(self) -> Judged:
        from prepare.gather import Gatherer

        gatherer = Gatherer(self.run.root, self.cache, self.config.data.pack, self.workers, self.report, self.hear_all)
        sources = [
            gatherer.gather(reader, source.kind)
            for reader, source in zip(self.readers, self.config.data.sources, strict=True)
        ]
        tokens = self._begun_tokens()
        known = Vocabulary.from_tokens_text(tokens) if tokens is not None else None
        judged = judge(sources, TEXT_MODES[self.config.data.text], known, self.config.augment.speed[1])
        for index, (where, source) in enumerate(zip(self.wheres, self.config.data.sources, strict=True)):
            kept = sum(each.source_index == index for each in judged.kept)
            dropped = [drop for drop in judged.dropped if drop.source_index == index]
            refuse_bad_source(f"{where} ({source.kind})", kept, dropped, self.config.data.max_drop_share)
            self.report(f"{source.kind}: {kept:,} clips kept, {len(dropped):,} dropped{_reasons(dropped)}")
        return judged

    def _check_splits(self, splits: Splits) -> None:
        if not splits.rows["train"]:
            raise DataError(
                "data.split: no clip is left to train on; every reader is held out. Lower data.split.valid_share and "
                "test_share, or name the readers to hold out in data.split.valid and data.split.test"
            )
        for note in splits.notes:
            self.report(note)
        self._warn(splits.moved)
        if not splits.rows["valid"]:
            self.report("valid is empty, and training needs it: name a reader in data.split.valid or raise valid_share")

    def _warn(self, moved: Mapping[str, str]) -> None:
        for what, split in moved.items():
            self.report(moved_sentence(what, split))

    def _refuse_leaks(self, found: Sequence[Leak]) -> None:
        if not found:
            return
        sentences = "".join(f"\n  {leak_sentence(leak)}" for leak in found[:10])
        if self.strict:
            raise DataError(f"{len(found):,} leak(s) between splits; with --strict nothing is published{sentences}")
        self.report(f"{len(found):,} leak(s) between splits, scores will flatter:{sentences}")

    def _publish(self, judged: Judged, splits: Splits, found: Sequence[Leak]) -> dict[str, Any]:
        data = self.config.data
        kept = [sum(each.source_index == index for each in judged.kept) for index in range(len(data.sources))]
        kinds = [source.kind for source in data.sources]
        meta = summary(self.run.name, data.text, splits, judged.dropped, kept, kinds)
        files = {f"{split}.jsonl": manifest_text(splits.rows[split]) for split in SPLITS}
        files["tokens.txt"] = judged.vocabulary.tokens_text()
        files["audit.md"] = audit_text(meta, splits, found)
        return publish(self.run.manifests, files, meta)


def _published(run: RunDir, known: dict[str, Any], key: str, cache: Cache) -> dict[str, Any] | None:
    """The meta file, if this very preparation was published and nothing of it is missing or altered."""
    meta = read_meta(run.manifests)
    if meta is None or known.get("key") != key or known.get("files") != meta.get("files"):
        return None
    return meta if cache.has(known["packs"]) and _is_intact(run, meta) else None


def _is_intact(run: RunDir, meta: dict[str, Any] | None) -> bool:
    """Whether every published file is what the meta file says."""
    if meta is None:
        return False
    for name, digest in meta.get("files", {}).items():
        try:
            data = (run.manifests / name).read_bytes()
        except OSError:
            return False
        if hashlib.sha256(data).hexdigest() != digest:
            return False
    return True


def _counts(meta: dict[str, Any]) -> str:
    parts = ((split, meta["clips"][split], meta["hours"][split]) for split in SPLITS)
    return ", ".join(f"{split} {clips:,} clips {hours:.2f} h" for split, clips, hours in parts if clips)


def _reasons(dropped: Sequence[Any]) -> str:
    found = by_reason(dropped)
    return ": " + ", ".join(f"{reason} {len(names):,} ({names[0]})" for reason, names in found.items()) if found else ""
