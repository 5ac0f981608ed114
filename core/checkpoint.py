"""The checkpoint file: a torch archive of plain types and tensors, written whole or not at all and verified before it is believed.

torch's loader does not check the CRCs that its own archive carries: a flipped byte or a zeroed hole loads
silently. ``read`` checks them first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from core.errors import CheckpointError
from core.run_dir import TEMPORARY, replacing

FORMAT = 1


class _Hashing:
    """A file that hashes what passes through it (torch writes its archives front to back)."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def write(path: Path, value: dict[str, Any], *, previous: Path | None = None) -> str:
    """Replace ``path`` by ``value``, keeping the former file as ``previous``; returns the SHA-256 of the new file.

    Raises OSError or RuntimeError (torch's, on a full disk); then the old files are as they were.
    """
    _refuse_objects(value, "checkpoint")
    with replacing(path) as file:
        hashing = _Hashing(file)
        torch.save({"format": FORMAT, **value}, hashing)  # type: ignore[arg-type]
        file.flush()
        if previous is not None and path.exists():
            _keep(path, previous)
    return hashing.digest.hexdigest()


def _refuse_objects(value: Any, where: str) -> None:
    # what torch saves without a word it may refuse to load with weights_only, when it is too late
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_objects(key, where)
            _refuse_objects(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _refuse_objects(inner, f"{where}[{i}]")
    elif type(value) not in (str, int, float, bool, type(None)) and not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint holds plain types and tensors only")


def _keep(path: Path, previous: Path) -> None:
    # a second name for the same bytes, so that at no moment neither name exists
    beside = previous.with_name(f".{previous.name}.link{TEMPORARY}")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:
        shutil.copyfile(path, beside)
    os.replace(beside, previous)


def verify(path: Path) -> None:
    """Raises CheckpointError unless every byte of the archive is what was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: {damaged} fails its checksum")


def read(path: Path) -> dict[str, Any]:
    """The content of a verified checkpoint, tensors on the CPU. Raises CheckpointError, never half a state."""
    verify(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {first}") from error
    if not isinstance(value, dict) or "format" not in value:
        raise CheckpointError(f"{path} is no layl checkpoint")
    if value["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {value['format']}, this layl reads {FORMAT}; update layl, nothing was touched")
    return value

