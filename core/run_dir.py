"""Where everything of a project lies. The only module that spells file names, and the one way to replace a file."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from core.errors import ConfigError

TEMPORARY = ".layl-tmp"
RENAME_TRIES = 5
RENAME_WAIT_SECONDS = 0.1


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under ``path`` whole or not at all, also after a power cut.

    The bytes are written beside it, flushed and fsynced, renamed, and the folder is fsynced. If the body
    raises, the old file is untouched and the partial one is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # not tempfile's: those only their owner can read, and the umask cannot be asked for while other threads write
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename(beside, path)
    except BaseException:
        # a disk that has become read-only refuses this too, and what it said first is what counts
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def rename(source: Path, target: Path) -> None:
    """Replace ``target`` by ``source``. Windows refuses while a reader, or a virus scanner, has the old file open:
    for a moment as a rule, so that a few tries are made.
    """
    for _ in range(RENAME_TRIES - 1):
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(RENAME_WAIT_SECONDS)
    os.replace(source, target)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut (a no-op where folders cannot be opened)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in UTF-8, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Replace ``path`` by ``value`` as JSON, Arabic unescaped; NaN and infinities are an error."""
    data = json_bytes(value, indent=indent)
    with replacing(path) as file:
        file.write(data)


def json_bytes(value: Any, *, indent: int | None = 1) -> bytes:
    """``value`` as JSON in UTF-8, Arabic unescaped. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False) + "\n"
    # half a character (of a file name that is not UTF-8) becomes \udcff, which JSON reads back as it was
    return text.encode("utf-8", "backslashreplace")


class Lines:
    """Appends to a file that may end torn (a kill, a full disk): the next line begins on a line of its own.

    ``torn`` ends the torn one, for readers that could take a part for the whole.
    """

    def __init__(self, path: Path, torn: str = "") -> None:
        self._torn_end = torn
        path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = _ends_torn(path)
        # unbuffered: what a full disk refused would else lie in a buffer and come again with the next line, or never
        self._file = path.open("ab", buffering=0)

    def write(self, line: str) -> None:
        """Append ``line``, which ends with a line feed. Raises OSError; a part of it may then stand in the file."""
        left = memoryview((f"{self._torn_end}\n{line}" if self._torn else line).encode("utf-8"))
        self._torn = True
        while left:
            left = left[self._file.write(left) or 0 :]
        self._torn = False

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def read_json(path: Path) -> Any | None:
    """The value of a JSON file, or None when it is missing or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def remove_temporary(folder: Path) -> None:
    """Remove what a killed writer left directly in ``folder``; follows no link."""
    for path in folder.glob(f".*{TEMPORARY}"):
        if path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)


def find_root(start: Path | None = None) -> Path:
    """The project: the nearest folder upwards with ``configs/`` and ``dvc.yaml``, else LAYL_ROOT, else the checkout."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "configs").is_dir() and (folder / "dvc.yaml").is_file():
            return folder
    named = os.environ.get("LAYL_ROOT")
    if named:
        root = Path(named).resolve()
        if not (root / "configs").is_dir():
            raise ConfigError("LAYL_ROOT", [f"{named!r} holds no configs/ folder; name a project's folder"])
        return root
    return Path(__file__).resolve().parent.parent


def known_runs(root: Path) -> list[str]:
    """The names of the configurations of a project."""
    return sorted(path.stem for path in (root / "configs").glob("*.yaml"))


@dataclass(frozen=True)
class RunDir:
    """One run's places, from the project's root and the run's name."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        return self.root / "runs" / self.name

    @property
    def config_file(self) -> Path:
        """What the user wrote: ``configs/<run>.yaml``."""
        return self.root / "configs" / f"{self.name}.yaml"

    @property
    def resolved_config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens.txt"

    @property
    def last(self) -> Path:
        return self.path / "last.pt"

    @property
    def last_previous(self) -> Path:
        return self.path / "last.prev.pt"

    @property
    def last_facts(self) -> Path:
        """last.json: step, planned, data id, config id, digest, for those who must not import torch."""
        return self.path / "last.json"

    @property
    def best(self) -> Path:
        return self.path / "best.pt"

    def step_file(self, step: int) -> Path:
        return self.path / f"step_{step:07d}.pt"

    def step_files(self) -> list[Path]:
        """Candidates for averaging, oldest first."""
        found = [(p.stem.removeprefix("step_"), p) for p in self.path.glob("step_*.pt")]
        return [p for _, p in sorted((int(step), p) for step, p in found if step.isdecimal())]

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def log_csv(self) -> Path:
        return self.path / "log.csv"

    @property
    def samples(self) -> Path:
        return self.path / "samples.json"

    @property
    def heard(self) -> Path:
        return self.path / "heard"

    @property
    def rows(self) -> Path:
        """rows.json: name -> id of the clips trained on, to say what a change of data changed."""
        return self.path / "rows.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def control(self) -> Path:
        return self.path / "control.json"

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    @property
    def owner(self) -> Path:
        return self.path / "owner.json"

    @property
    def flow(self) -> Path:
        """flow.json: the Prefect flow run that drives this run's session, and its process."""
        return self.path / "flow.json"

    @property
    def output(self) -> Path:
        """What the trainer printed, all sessions."""
        return self.path / "output.log"

    @property
    def plots(self) -> Path:
        """Curves as SVG pictures, drawn from log.csv."""
        return self.path / "plots"

    @property
    def lock(self) -> Path:
        """The run's OS lock: outside the run, which may be archived."""
        return self.root / "runs" / ".locks" / self.name

    @property
    def archive(self) -> Path:
        return self.root / "runs" / "archive"

    @property
    def manifests(self) -> Path:
        return self.root / "data" / "manifests" / self.name

    @property
    def prepare_lock(self) -> Path:
        return self.root / "data" / ".locks" / self.name

    @property
    def packs(self) -> Path:
        """Shards of decoded audio, named by their content, shared by runs."""
        return self.root / "data" / "packs"

    @property
    def prepare_cache(self) -> Path:
        """What preparation remembers of files and shards it has seen: rebuilt at will, never versioned."""
        return self.root / "data" / "cache"

    @property
    def models(self) -> Path:
        return self.root / "models" / self.name

    @property
    def metrics(self) -> Path:
        return self.root / "metrics" / f"{self.name}.json"

    @property
    def train_metrics(self) -> Path:
        """What the train stage hands on: which checkpoints of which data, with digests."""
        return self.root / "metrics" / f"{self.name}.train.json"
