"""The whole stage on real files: every kind of file, incremental, resumable, byte for byte the same."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import soundfile
from filelock import FileLock

from core.config import build
from core.errors import BusyError, DataError
from core.manifest import Row, read_prepared
from core.run_dir import TEMPORARY, RunDir
from core.speech.audio import decode, digest, load
from core.speech.config import SpeechRun
from prepare import gather
from prepare.clip import Clip, Rejected, Shard
from prepare.pipeline import prepare
from prepare.sources import SOURCES

WORDS = ("zero", "one", "two", "three", "four")


def noise(seed: int, seconds: float = 1.5, rate_hz: int = 16_000) -> np.ndarray:
    return (np.random.default_rng(seed).normal(0, 0.1, round(seconds * rate_hz)) * 32768).astype(np.int16)


def encoded(samples: np.ndarray, rate_hz: int = 16_000, form: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=form)
    return file.getvalue()


def write_corpus(folder: Path, rows: list[dict[str, Any]], files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "m.jsonl").write_text(text, encoding="utf-8")


def corpus(project: Path, clips: int = 12, folder: str = "data/raw") -> None:
    """Readers r0 to r3 in turn, a second and a half each."""
    names = [f"{i:03}.wav" for i in range(clips)]
    rows = [{"audio": n, "text": f"{WORDS[i % 5]} one", "reciter": f"r{i % 4}"} for i, n in enumerate(names)]
    write_corpus(project / folder, rows, {n: encoded(noise(i)) for i, n in enumerate(names)})


def config(**data: Any) -> SpeechRun:
    named = {"valid": ["r1"], "test": ["r2"], "valid_share": 0.0, "test_share": 0.0}
    fields = {"sources": [{"kind": "nemo", "manifest": "data/raw/m.jsonl"}], "text": "plain", "split": named, **data}
    return build(SpeechRun, {"data": fields}, "a test")


class Said(list[str]):
    """A report that remembers."""

    def __call__(self, line: str) -> None:
        self.append(line)

    def has(self, part: str) -> bool:
        return any(part in line for line in self)


def prepared(project: Path, *, name: str = "mine", strict: bool = False, workers: int = 1, **data: Any) -> Said:
    said = Said()
    prepare(RunDir(project, name), config(**data), strict=strict, report=said, workers=workers)
    return said


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows_of(project: Path, name: str = "mine") -> list[Row]:
    return [row for manifest in read_prepared(RunDir(project, name).manifests).splits.values() for row in manifest.rows]


def claiming_2_gib(wav: bytes) -> bytes:
    at = wav.index(b"data") + 4
    return wav[:at] + 0x7FFFFFFF.to_bytes(4, "little") + wav[at + 4 :]


CASES: dict[str, tuple[Callable[[], bytes] | None, str, str | None]] = {
    "good.wav": (lambda: encoded(noise(0)), "three one four", None),
    "good.mp3": (lambda: encoded(noise(1), form="MP3"), "three one four", None),
    "page.mp3": (lambda: b"<html><body>404</body></html>" * 20, "three", "not_audio"),
    "empty.mp3": (lambda: b"", "three", "empty_file"),
    "cut.flac": (lambda: encoded(noise(2), form="FLAC")[:9000], "three", "truncated"),
    "ogg_named.wav": (lambda: encoded(noise(3), form="OGG"), "two seven one", None),
    "flac_named.mp3": (lambda: encoded(noise(4), form="FLAC"), "eight two", None),
    "size_7fffffff.wav": (lambda: claiming_2_gib(encoded(noise(5))), "one eight two", None),
    "stereo_44k.wav": (
        lambda: encoded(np.stack([noise(6, rate_hz=44_100)] * 2, axis=1), 44_100),
        "five nine zero",
        None,
    ),
    "eight_k.wav": (lambda: encoded(noise(7, rate_hz=8_000), 8_000), "six", None),
    "silence.wav": (lambda: encoded(np.zeros(32_000, np.int16)), "one two three", "silent"),
    "short.wav": (lambda: encoded(noise(8, 0.1)), "seven seven seven seven seven", "text_too_long_for_audio"),
    "same_as_good.flac": (lambda: encoded(noise(0), form="FLAC"), "three one four", "duplicate_audio"),
    "missing.wav": (None, "three one four", "missing_file"),
    "no_text.wav": (lambda: encoded(noise(9)), "", "empty_text"),
    "direction_mark.wav": (lambda: encoded(noise(10)), " \u200f \t", "empty_text"),
    "../outside.wav": (lambda: encoded(noise(11)), "one", "outside_root"),
}


@pytest.fixture(scope="module", params=[False, True], ids=["files", "packed"])
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("cases")
    rows = [{"audio": name, "text": text} for name, (_, text, _) in CASES.items()]
    write_corpus(project / "data/raw", rows, {name: make() for name, (make, _, _) in CASES.items() if make})
    manifest = project / "data/raw/m.jsonl"
    windows = manifest.read_bytes().replace(b"\n", b"\r\n")
    manifest.write_bytes(b"\xef\xbb\xbf" + windows + b'{"audio": "good.wav", "te')
    prepared(project, max_drop_share=1, pack=request.param, split={"valid_share": 0.0, "test_share": 0.0})
    return project


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_file_is_kept_or_has_its_reason(cases: Path, name: str) -> None:
    meta = read_prepared(RunDir(cases, "mine").manifests).meta
    reason = CASES[name][2]
    rows = {row.name: row for row in rows_of(cases)}

    if reason is None:
        assert rows[name].duration == pytest.approx(1.5, abs=0.001)
        samples = load(rows[name], cases)
        assert digest(samples) == rows[name].digest and len(samples) == rows[name].samples
        assert np.abs(samples - decode(cases / "data/raw" / name)).max() < 1e-4
    else:
        assert name not in rows and name in meta["dropped"][reason]["examples"]


def test_a_torn_last_line_is_counted_and_named(cases: Path) -> None:
    meta = read_prepared(RunDir(cases, "mine").manifests).meta

    assert meta["dropped"]["torn_line"] == {"count": 1, "examples": [f"m.jsonl:{len(CASES) + 1}"]}


def test_packing_changes_where_samples_lie_and_not_what_they_are(tmp_path: Path) -> None:
    corpus(tmp_path)
    prepared(tmp_path)
    prepared(tmp_path, name="packed", pack=True)
    loose, packed = rows_of(tmp_path), rows_of(tmp_path, "packed")

    assert [r.audio for r in loose][:1] == ["data/raw/000.wav"] and {r.offset for r in loose} == {None}
    assert all(r.audio.startswith("data/packs/") and r.offset is not None for r in packed)
    for a, b in zip(loose, packed, strict=True):
        assert (a.id, a.digest, a.duration) == (b.id, b.digest, b.duration)
        assert np.array_equal(load(a, tmp_path), load(b, tmp_path))


def test_unchanged_says_so_and_reads_no_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(tmp_path)
    first = prepared(tmp_path)
    before = files_of(RunDir(tmp_path, "mine").manifests)
    monkeypatch.setattr(gather, "hear", None)
    again = prepared(tmp_path)

    assert first.has("12 to decode") and again == ["mine: unchanged, " + first[-1].partition("published, ")[2]]
    assert files_of(RunDir(tmp_path, "mine").manifests) == before


def test_unchanged_imports_neither_soundfile_nor_torch(tmp_path: Path) -> None:
    corpus(tmp_path)
    prepared(tmp_path)
    program = (
        "import sys; from pathlib import Path; from tests_config import config; from core.run_dir import RunDir\n"
        "from prepare.pipeline import prepare\n"
        f"prepare(RunDir(Path({str(tmp_path)!r}), 'mine'), config)\n"
        "print(sorted({'soundfile', 'torch', 'soxr'} & set(sys.modules)))"
    )
    (tmp_path / "tests_config.py").write_text(
        "from core.speech.config import SpeechRun\n"
        f"config = SpeechRun.model_validate_json({config().model_dump_json()!r})"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(tmp_path)))}
    done = subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "unchanged" in done.stdout and done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("pack", [False, True])
def test_a_second_full_preparation_has_the_same_bytes(tmp_path: Path, pack: bool) -> None:
    corpus(tmp_path)
    prepared(tmp_path, pack=pack)
    run = RunDir(tmp_path, "mine")
    before = files_of(run.manifests), sorted(p.name for p in run.packs.glob("*"))
    for folder in (run.prepare_cache, run.manifests, run.packs):
        shutil.rmtree(folder, ignore_errors=True)
    said = prepared(tmp_path, pack=pack)

    assert said.has("12 to decode")
    assert (files_of(run.manifests), sorted(p.name for p in run.packs.glob("*"))) == before


@pytest.mark.parametrize("pack", [False, True])
def test_only_a_changed_file_is_decoded_again_and_the_result_is_that_of_a_fresh_start(
    tmp_path: Path, pack: bool
) -> None:
    corpus(tmp_path)
    prepared(tmp_path, pack=pack)
    (tmp_path / "data/raw/005.wav").write_bytes(encoded(noise(99)))
    said = prepared(tmp_path, pack=pack)
    incremental = files_of(RunDir(tmp_path, "mine").manifests)
    shutil.rmtree(tmp_path / "data/cache")
    prepared(tmp_path, pack=pack)

    assert said.has("12 files, 1 to decode")
    assert files_of(RunDir(tmp_path, "mine").manifests) == incremental


def test_a_new_first_line_in_a_manifest_decodes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(tmp_path)
    prepared(tmp_path)
    heard: list[str] = []
    hear = gather.hear
    monkeypatch.setattr(gather, "hear", lambda path, keep: (heard.append(path), hear(path, keep))[1])
    manifest = tmp_path / "data/raw/m.jsonl"
    (tmp_path / "data/raw/new.wav").write_bytes(encoded(noise(77)))
    row = json.dumps({"audio": "new.wav", "text": "one two", "reciter": "r0"})
    manifest.write_text(f"{row}\n{manifest.read_text()}")
    prepared(tmp_path)
    manifest.rename(tmp_path / "data/raw/renamed.jsonl")
    prepared(tmp_path, name="other", sources=[{"kind": "nemo", "manifest": "data/raw/renamed.jsonl"}])

    assert [Path(path).name for path in heard] == ["new.wav"]
    assert len(rows_of(tmp_path)) == len(rows_of(tmp_path, "other")) == 13


def test_a_touched_file_changes_no_byte_of_what_is_published(tmp_path: Path) -> None:
    corpus(tmp_path)
    prepared(tmp_path)
    before = files_of(RunDir(tmp_path, "mine").manifests)
    os.utime(tmp_path / "data/raw/003.wav", ns=(1, 1))
    said = prepared(tmp_path)

    assert said.has("1 to decode") and files_of(RunDir(tmp_path, "mine").manifests) == before


@pytest.mark.parametrize("damage", ["manifest", "meta", "pack", "cache", "torn_cache"])
def test_what_was_lost_or_altered_is_made_again(tmp_path: Path, damage: str) -> None:
    corpus(tmp_path)
    prepared(tmp_path, pack=True)
    run = RunDir(tmp_path, "mine")
    before = files_of(run.manifests)
    if damage == "manifest":
        (run.manifests / "train.jsonl").write_text("{}\n")
    elif damage == "meta":
        (run.manifests / "manifest.meta.json").write_text('{"schema"')
    elif damage == "pack":
        next(run.packs.iterdir()).write_bytes(b"short")
    elif damage == "cache":
        shutil.rmtree(run.prepare_cache)
    else:
        for path in run.prepare_cache.rglob("*.json*"):
            path.write_bytes(path.read_bytes()[:-9])
    said = prepared(tmp_path, pack=True)

    assert not said.has("unchanged") and files_of(run.manifests) == before
    assert prepared(tmp_path, pack=True).has("unchanged")


@pytest.mark.process
def test_worker_processes_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_WORTH_A_POOL", 4)
    monkeypatch.setattr(gather, "_WINDOW", 7)
    results = []
    for name, workers in (("one", 1), ("two", 2)):
        corpus(tmp_path / name, clips=20)
        prepared(tmp_path / name, workers=workers, pack=True)
        results.append(files_of(RunDir(tmp_path / name, "mine").manifests))

    assert results[0] == results[1]


def test_packs_end_where_a_hash_says_so_that_a_new_file_changes_one_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_CLIPS_A_PACK", 3)
    corpus(tmp_path, clips=30)
    prepared(tmp_path, pack=True)
    before = {p.name for p in RunDir(tmp_path, "mine").packs.iterdir()}
    corpus(tmp_path, clips=31)
    prepared(tmp_path, pack=True)
    added = {p.name for p in RunDir(tmp_path, "mine").packs.iterdir()} - before

    assert len(before) > 4 and len(added) == 1


def test_a_pack_is_taken_over_only_for_the_very_clips_that_lie_in_it(tmp_path: Path) -> None:
    corpus(tmp_path, clips=3)
    open_split = {"valid_share": 0.0, "test_share": 0.0}
    prepared(tmp_path, pack=True, split=open_split)
    rows = [{"audio": name, "text": text} for name, text in (("000.wav", "a"), ("000.wav", "b"), ("001.wav", "c"))]
    write_corpus(tmp_path / "data/raw", rows, {})
    prepared(tmp_path, pack=True, split=open_split, max_drop_share=1)

    found = rows_of(tmp_path)
    assert [row.name for row in found] == ["000.wav", "001.wav"]
    assert all(digest(load(row, tmp_path)) == row.digest for row in found)


def test_sources_that_cannot_be_used_leave_what_was_published(tmp_path: Path) -> None:
    corpus(tmp_path)
    prepared(tmp_path)
    before = files_of(RunDir(tmp_path, "mine").manifests)
    for number in range(5):
        (tmp_path / f"data/raw/{number:03}.wav").write_bytes(b"")

    with pytest.raises(DataError, match=r"(?s)data.sources\[0\] \(nemo\): 5 of 12.*5 empty_file.*000.wav"):
        prepared(tmp_path)
    assert files_of(RunDir(tmp_path, "mine").manifests) == before


def test_holding_everybody_out_is_refused(tmp_path: Path) -> None:
    corpus(tmp_path)

    with pytest.raises(DataError, match="no clip is left to train on"):
        prepared(tmp_path, split={"valid": ["r0", "r1"], "test": ["r2", "r3"]})


def test_letters_that_a_begun_run_does_not_know_are_dropped_and_counted(tmp_path: Path) -> None:
    corpus(tmp_path)
    prepared(tmp_path)
    run = RunDir(tmp_path, "mine")
    run.path.mkdir(parents=True)
    shutil.copy(run.manifests / "tokens.txt", run.tokens)
    tokens = run.tokens.read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "data/raw/m.jsonl").read_text().splitlines()]
    write_corpus(tmp_path / "data/raw", [{**row, "text": "xyz"} if i == 4 else row for i, row in enumerate(rows)], {})
    prepared(tmp_path)
    begun = read_prepared(run.manifests)
    run.tokens.unlink()
    prepared(tmp_path)

    assert begun.meta["dropped"] == {"outside_vocabulary": {"count": 1, "examples": ["004.wav"]}}
    assert begun.tokens.encode() == tokens
    assert read_prepared(run.manifests).meta["dropped"] == {} and "x" in read_prepared(run.manifests).tokens


def test_a_pack_that_another_run_is_writing_is_left_alone_and_an_abandoned_one_swept(tmp_path: Path) -> None:
    corpus(tmp_path)
    packs = RunDir(tmp_path, "mine").packs
    packs.mkdir(parents=True)
    fresh, old = packs / f".a.pcm16.1{TEMPORARY}", packs / f".b.pcm16.2{TEMPORARY}"
    for path in (fresh, old):
        path.write_bytes(b"half a pack")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    prepared(tmp_path, pack=True)

    assert fresh.is_file() and not old.exists()


def spoken_by(project: Path, *speakers: str, clips: int = 6) -> None:
    """Everybody's clips in a manifest; a second and a half each."""
    names = [(f"{speaker}{i:02}.wav", speaker) for speaker in speakers for i in range(clips)]
    rows = [{"audio": name, "text": "one two", "speaker": speaker} for name, speaker in names]
    sounds = {name: encoded(noise(zlib.crc32(name.encode()))) for name, _ in names}
    write_corpus(project / "data/raw", rows, sounds)


def places_of(project: Path) -> dict[str, str]:
    splits = read_prepared(RunDir(project, "mine").manifests).splits
    return {row.name: split for split, manifest in splits.items() for row in manifest.rows}


def test_one_speaker_is_split_by_recording_and_report_and_audit_say_so(tmp_path: Path) -> None:
    spoken_by(tmp_path, "anna", clips=12)
    said = prepared(tmp_path, strict=True, split={})
    splits = read_prepared(RunDir(tmp_path, "mine").manifests).splits
    audit = (RunDir(tmp_path, "mine").manifests / "audit.md").read_text()

    assert all(splits[split].rows for split in ("train", "valid", "test"))
    for text in (audit, "\n".join(said)):
        assert "Readers are too few to hold one out: recordings are (anna)." in text


def test_speakers_who_join_move_nobody_and_preparing_that_again_changes_no_byte(tmp_path: Path) -> None:
    spoken_by(tmp_path, "anna", clips=12)
    prepared(tmp_path, split={})
    before = places_of(tmp_path)
    spoken_by(tmp_path, "anna", "bob", "cem", "dan", clips=12)
    prepared(tmp_path, split={})
    published = files_of(RunDir(tmp_path, "mine").manifests)
    after = places_of(tmp_path)
    shutil.rmtree(tmp_path / "data/cache")
    prepared(tmp_path, split={})

    assert after.items() > before.items()
    assert files_of(RunDir(tmp_path, "mine").manifests) == published


def test_a_trained_reader_who_has_to_validate_is_named_loudly_every_time(tmp_path: Path) -> None:
    quiet = {"valid_share": 0.0001, "test_share": 0.0001}
    spoken_by(tmp_path, "anna", "bob", "cem", "dan", "eve")
    prepared(tmp_path, split=quiet)
    places = places_of(tmp_path)
    left = [who for who in ("anna", "bob", "cem", "dan", "eve") if places[f"{who}00.wav"] == "train"]
    spoken_by(tmp_path, *left)
    run = RunDir(tmp_path, "mine")

    for expected in ("published", "unchanged"):
        said = prepared(tmp_path, split=quiet)
        assert said.has(expected) and said.has("was in train before and is in valid now")
    assert "**Warning: reader" in (run.manifests / "audit.md").read_text()
    published = files_of(run.manifests)
    shutil.rmtree(run.prepare_cache)
    prepared(tmp_path, split=quiet)
    assert files_of(run.manifests) == published


def test_a_torn_publication_still_tells_who_was_trained_on(tmp_path: Path) -> None:
    spoken_by(tmp_path, "anna", "bob", "cem", "dan")
    prepared(tmp_path, split={"valid": ["bob"], "test": ["cem"]})
    run = RunDir(tmp_path, "mine")
    (run.manifests / "audit.md").write_text("cut off")
    (run.manifests / "valid.jsonl").write_text('{"id"')
    said = prepared(tmp_path, split={"valid": ["bob"], "test_share": 0.9})
    places = places_of(tmp_path)

    assert said.has("data/manifests/mine is not as it was published")
    assert [places[f"{who}00.wav"] for who in ("anna", "bob", "cem", "dan")] == ["train", "valid", "test", "train"]
    (run.manifests / "manifest.meta.json").unlink()
    assert prepared(tmp_path, split={"valid": ["bob"], "test": ["cem"]}).has("decided afresh")


def test_another_publication_put_in_place_of_ours_is_not_taken_for_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "mine")
    corpus(tmp_path)
    prepared(tmp_path, split={"valid": ["r3"], "test": ["r0"]})
    shutil.copytree(run.manifests, tmp_path / "kept")
    prepared(tmp_path)
    ours = places_of(tmp_path)
    shutil.rmtree(run.manifests)
    shutil.copytree(tmp_path / "kept", run.manifests)

    assert prepared(tmp_path).has("published") and places_of(tmp_path) == ours


def test_a_run_is_prepared_by_one_process_at_a_time(tmp_path: Path) -> None:
    corpus(tmp_path)
    run = RunDir(tmp_path, "mine")
    run.prepare_lock.parent.mkdir(parents=True)

    with FileLock(run.prepare_lock), pytest.raises(BusyError, match="mine"):
        prepared(tmp_path)
    prepared(tmp_path)


class Composed:
    """A source of two shards that counts what it composes and may die in the second."""

    made: ClassVar[list[str]] = []
    dies = False
    parts = ("train", "valid")
    reciter: str | None = None

    def fingerprint(self) -> str:
        return "composed"

    def clips(self) -> Iterator[Clip | Rejected]:
        for shard in self.shards():
            yield from shard.clips()

    def shards(self) -> Iterator[Shard]:
        for number, part in enumerate(self.parts):
            yield Shard(f"shard-{part}", f"f{number}", lambda number=number, part=part: self._clips(number, part))

    def _clips(self, number: int, part: str) -> Iterator[Clip | Rejected]:
        yield Rejected(f"{part}/bad", "not_audio")
        for index in range(10):
            if self.dies and number and index:
                raise KeyboardInterrupt
            self.made.append(f"{part}/{index}")
            yield Clip(
                name=f"{part}/{index}", text="one", source="composed", group="ordinary", split=part,
                pcm=noise(100 * number + index), shard=f"shard-{part}", reciter=self.reciter,
            )  # fmt: skip


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> type[Composed]:
    monkeypatch.setitem(SOURCES, "digits", lambda config, root, where: Composed())
    monkeypatch.setattr(Composed, "made", [])
    monkeypatch.setattr(Composed, "dies", False)
    monkeypatch.setattr(Composed, "parts", Composed.parts)
    monkeypatch.setattr(Composed, "reciter", None)
    return Composed


DIGITS: dict[str, Any] = {"sources": [{"kind": "digits"}], "split": {}}


def test_a_killed_preparation_goes_on_with_the_shard_it_was_at(tmp_path: Path, composed: type[Composed]) -> None:
    composed.dies = True
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path, **DIGITS)
    composed.dies = False
    composed.made.clear()
    said = prepared(tmp_path, **DIGITS)

    assert said.has("shard-train: 11 clips as before")
    assert composed.made == [f"valid/{index}" for index in range(10)]
    assert read_prepared(RunDir(tmp_path, "mine").manifests).meta["dropped"]["not_audio"]["count"] == 2


def test_another_run_with_the_same_shards_composes_nothing(tmp_path: Path, composed: type[Composed]) -> None:
    prepared(tmp_path, **DIGITS)
    composed.made.clear()
    prepared(tmp_path, name="other", **DIGITS)
    one, two = rows_of(tmp_path), rows_of(tmp_path, "other")

    assert composed.made == [] and one == two
    for row in one:
        part, index = row.name.split("/")
        assert np.array_equal(load(row, tmp_path) * 32768, noise(100 * (part == "valid") + int(index)))
    assert len(list(RunDir(tmp_path, "mine").packs.iterdir())) == 2


def test_a_pack_that_was_removed_is_composed_again(tmp_path: Path, composed: type[Composed]) -> None:
    prepared(tmp_path, **DIGITS)
    before = files_of(RunDir(tmp_path, "mine").manifests)
    composed.made.clear()
    gone = tmp_path / rows_of(tmp_path)[0].audio
    gone.unlink()
    prepared(tmp_path, **DIGITS)

    assert gone.is_file() and {name.split("/")[0] for name in composed.made} == {"train"}
    assert files_of(RunDir(tmp_path, "mine").manifests) == before


def test_strict_publishes_nothing_that_leaks_and_otherwise_it_is_said_every_time(
    tmp_path: Path, composed: type[Composed]
) -> None:
    composed.parts, composed.reciter = ("train", "test"), "ann"
    with pytest.raises(DataError, match=r"(?s)1 leak.*reader ann stands in train and test") as error:
        prepared(tmp_path, strict=True, **DIGITS)
    assert error.value.exit_code == 65 and not RunDir(tmp_path, "mine").manifests.exists()

    for expected in ("published", "unchanged"):
        said = prepared(tmp_path, **DIGITS)
        assert said.has("reader ann stands in train and test") and said.has(expected)
    with pytest.raises(DataError, match="1 leak"):
        prepared(tmp_path, strict=True, **DIGITS)


def test_a_leak_free_source_passes_the_strict_check(tmp_path: Path, composed: type[Composed]) -> None:
    composed.reciter = "ann"

    assert prepared(tmp_path, strict=True, **DIGITS).has("published")
