"""From a source's clips to what their audio is: files are decoded, composed audio goes into packs, once."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import DataError
from core.manifest import SAMPLE_RATE_HZ
from core.pack import map_pack, write_pack
from prepare.cache import Cache, FileFact, Files, Heard
from prepare.clip import Clip, Rejected, Shard, ShardedReader, SourceReader

Report = Callable[[str], None]
#: (why a file cannot be used, its numbers, its int16 samples where they are wanted)
Sound = tuple[str | None, dict[str, Any], bytes | None]
#: Decodes files (absolute paths; whether samples are wanted) and gives what they are, in order.
HearAll = Callable[[Sequence[str], bool], Iterable[Sound]]

#: Packs of file audio end about every so many clips, at names that a hash picks: a file that comes or goes changes
#: the pack it belongs to and no other.
_CLIPS_A_PACK = 500
_MOST_CLIPS, _MOST_SECONDS = 1500, 7200

#: Below this many files the start of worker processes costs more than it brings.
_WORTH_A_POOL = 64
_WINDOW = 256
#: Files that somebody else's workers get at a time.
_HANDED_OUT = 2000


@dataclass(frozen=True)
class Gatherer:
    """Where things go and how: ``root`` is the project, ``pack`` whether file audio is packed too."""

    root: Path
    cache: Cache
    pack: bool
    workers: int
    report: Report
    hear_all: HearAll | None = None

    def gather(self, reader: SourceReader, name: str) -> list[Heard | Rejected]:
        """Every clip of a source, in its order. Audio of one pack at most is in memory at a time."""
        items: list[Heard | Rejected] = []
        for shard in _shards(reader, name):
            known = self.cache.shard(shard.fingerprint)
            if known is not None:
                self.report(f"{shard.name}: {len(known):,} clips as before")
            items += self._made(shard) if known is None else known
        return items

    def _made(self, shard: Shard) -> list[Heard | Rejected]:
        made: list[Heard | Rejected] = []
        files: list[Clip] = []
        for part in _by_pack(shard.clips()):
            if isinstance(part, Rejected):
                made.append(part)
            elif isinstance(part, Clip):
                files.append(part)
            else:
                made += self._composed(part)
        if files:
            # remembered a file, not a shard: of 100,000 only the changed ones are decoded again
            return made + list(self._from_files(files, shard.name))
        if made:
            self.cache.keep_shard(shard.fingerprint, made)
        return made

    def _composed(self, clips: list[Clip]) -> list[Heard]:
        sounds = [np.ascontiguousarray(clip.pcm, dtype="<i2") for clip in clips]
        path, offsets = write_pack(self.cache.packs, sounds)
        samples = sum(map(len, sounds))
        minutes, megabytes = samples / SAMPLE_RATE_HZ / 60, 2 * samples / 1e6
        self.report(f"{clips[0].shard}: {len(clips):,} clips composed, {minutes:.1f} min, {megabytes:.0f} MB")
        audio = self._row_audio(path)
        return [
            Heard(clip=replace(clip, pcm=None), audio=audio, offset=offset, **_measured(pcm))
            for clip, pcm, offset in zip(clips, sounds, offsets, strict=True)
        ]

    def _row_audio(self, pack: Path) -> str:
        return pack.relative_to(self.root).as_posix()

    def _from_files(self, clips: list[Clip], name: str) -> Iterator[Heard | Rejected]:
        files = self.cache.files(name.replace(":", "-"))
        decoded = _Decoder(self, files, name).decode(sorted(clips, key=lambda clip: clip.name))
        yield from self._packed(decoded, files) if self.pack else self._left_as_files(decoded, files)
        files.compact()

    def _left_as_files(self, decoded: Iterable[Decoded], files: Files) -> Iterator[Heard | Rejected]:
        fresh: list[FileFact] = []
        for clip, fact, _ in decoded:
            if fact is not None:
                fresh.append(fact)
            if len(fresh) >= _WINDOW:
                files.add(fresh)
                fresh = []
            yield _heard(clip, fact, str(Path(fact.path).as_posix()) if fact else "", None)
        files.add(fresh)

    def _packed(self, decoded: Iterable[Decoded], files: Files) -> Iterator[Heard | Rejected]:
        shard: list[Decoded] = []
        samples = 0
        for clip, fact, pcm in decoded:
            if fact is None or fact.reason:
                files.add([fact] if fact else [])
                yield _heard(clip, fact, "", None)
                continue
            shard.append((clip, fact, pcm))
            samples += fact.samples
            full = len(shard) >= _MOST_CLIPS or samples >= _MOST_SECONDS * SAMPLE_RATE_HZ
            if full or int(hashlib.sha256(clip.name.encode()).hexdigest()[:8], 16) % _CLIPS_A_PACK == 0:
                yield from self._one_pack(shard, files)
                shard, samples = [], 0
        if shard:
            yield from self._one_pack(shard, files)

    def _one_pack(self, shard: list[Decoded], files: Files) -> list[Heard | Rejected]:
        facts = [fact for _, fact, _ in shard if fact is not None]
        path, offsets = self._unchanged(facts) or write_pack(self.cache.packs, map(self._samples, shard))
        packed = [replace(fact, pack=path.name, offset=offset) for fact, offset in zip(facts, offsets, strict=True)]
        files.add(packed)
        audio = self._row_audio(path)
        return [_heard(clip, fact, audio, fact.offset) for (clip, _, _), fact in zip(shard, packed, strict=True)]

    def _unchanged(self, facts: list[FileFact]) -> tuple[Path, list[int]] | None:
        """The pack that already holds exactly these clips in this order, so that none of it is read."""
        name, position, offsets = facts[0].pack, 0, []
        for fact in facts:
            if fact.pack != name or fact.offset != position:
                return None
            offsets.append(position)
            position += fact.samples
        if name is None or self.cache.pack_bytes(name) != 2 * position:
            return None
        return self.cache.packs / name, offsets

    def _samples(self, decoded: Decoded) -> np.ndarray:
        _, fact, pcm = decoded
        if pcm is not None:
            return pcm
        assert fact is not None and fact.pack is not None
        return map_pack(self.cache.packs / fact.pack)[fact.offset : fact.offset + fact.samples]


#: A clip, what its file is (None: not there), and its int16 samples where they are wanted and were decoded just now.
Decoded = tuple[Clip, FileFact | None, np.ndarray | None]


class _Decoder:
    """Decodes what is not known yet, in worker processes when it is much, and gives everything back in order."""

    def __init__(self, gatherer: Gatherer, files: Files, name: str):
        self.root, self.cache, self.keep = gatherer.root, gatherer.cache, gatherer.pack
        self.workers, self.report, self.hear_all = gatherer.workers, gatherer.report, gatherer.hear_all
        self.files, self.name = files, name

    def decode(self, clips: list[Clip]) -> Iterator[Decoded]:
        pairs = [(clip, self._state(clip)) for clip in clips]
        unknown = sum(fact is not None and not known for _, (fact, known) in pairs)
        self.report(f"{self.name}: {len(clips):,} files, {unknown:,} to decode")
        with ExitStack() as stack:
            pool: ProcessPoolExecutor | None = None
            if self.hear_all is None and self.workers > 1 and unknown >= _WORTH_A_POOL:
                # spawned: a fork of a process with threads (a flow's) may hang
                context = multiprocessing.get_context("spawn")
                pool = stack.enter_context(ProcessPoolExecutor(min(self.workers, unknown), mp_context=context))
            done = 0
            size = _WINDOW if self.hear_all is None else _HANDED_OUT
            for start in range(0, len(clips), size):
                window = pairs[start : start + size]
                yield from self._window(window, pool)
                before, done = done, done + sum(f is not None and not known for _, (f, known) in window)
                if done // 1000 > before // 1000:
                    self.report(f"{self.name}: {done:,} of {unknown:,} decoded")

    def _window(self, window: list[tuple[Clip, _State]], pool: ProcessPoolExecutor | None) -> Iterator[Decoded]:
        paths = [str(self.root / fact.path) for _, (fact, known) in window if fact is not None and not known]
        try:
            sounds = self._sounds(paths, pool)
            for clip, (fact, known) in window:
                if fact is None or known:
                    yield clip, fact, None
                    continue
                reason, measured, pcm = next(sounds)
                samples = None if pcm is None else np.frombuffer(pcm, dtype="<i2")
                yield clip, replace(fact, reason=reason, **measured), samples
        except BrokenProcessPool:
            raise DataError(
                f"{self.name}: a decoding process died on one of {len(paths)} files, {paths[0]} to {paths[-1]} "
                "(out of memory, or a file that breaks the decoder); what was decoded before is kept, prepare again"
            ) from None

    def _sounds(self, paths: list[str], pool: ProcessPoolExecutor | None) -> Iterator[Sound]:
        if self.hear_all is not None:
            return iter(self.hear_all(paths, self.keep))
        keep = [self.keep] * len(paths)
        return map(hear, paths, keep) if pool is None else pool.map(hear, paths, keep, chunksize=8)

    def _state(self, clip: Clip) -> _State:
        assert clip.audio is not None, clip.name
        try:
            stat = (self.root / clip.audio).stat()
        except OSError:
            return None, False
        path = clip.audio.as_posix()
        known = self.files.get(path, stat.st_size, stat.st_mtime_ns)
        if known is not None and self.keep and not known.reason:
            held = known.pack is not None and self.cache.pack_bytes(known.pack) >= 2 * (known.offset + known.samples)
            known = known if held else None
        return known or FileFact(path=path, size=stat.st_size, mtime_ns=stat.st_mtime_ns), known is not None


#: (what is known of the file or at least which file it is, whether it was decoded before)
_State = tuple[FileFact | None, bool]


def hear(path: str, keep: bool) -> Sound:
    """One file: why it cannot be used, or its digest, length and peak, and its samples if they are to be kept."""
    from core.speech.audio import AudioError, decode, to_int16

    try:
        pcm = to_int16(decode(path))
    except AudioError as error:
        return error.reason, {}, None
    return None, _measured(pcm), pcm.tobytes() if keep else None


def _measured(pcm: np.ndarray) -> dict[str, Any]:
    peak = int(np.abs(pcm.astype(np.int32)).max()) if len(pcm) else 0
    return {"digest": hashlib.sha256(pcm.tobytes()).hexdigest(), "samples": len(pcm), "peak": peak}


def _heard(clip: Clip, fact: FileFact | None, audio: str, offset: int | None) -> Heard | Rejected:
    if fact is None or fact.reason:
        return Rejected(clip.name, "missing_file" if fact is None else str(fact.reason))
    return Heard(clip=clip, digest=fact.digest, samples=fact.samples, peak=fact.peak, audio=audio, offset=offset)


def _shards(reader: SourceReader, name: str) -> Iterator[Shard]:
    if isinstance(reader, ShardedReader):
        yield from reader.shards()
    else:
        yield Shard(name, reader.fingerprint(), reader.clips)


def _by_pack(items: Iterable[Clip | Rejected]) -> Iterator[list[Clip] | Clip | Rejected]:
    """Composed clips a shard at a time, everything else one by one."""
    shard: list[Clip] = []
    for item in items:
        if isinstance(item, Rejected) or item.pcm is None:
            yield item
            continue
        if shard and shard[0].shard != item.shard:
            yield shard
            shard = []
        shard.append(item)
    if shard:
        yield shard
