"""The checkpoint file: a torch archive of plain types and tensors, written whole or not at all, and verified when read.

torch's loader checks no CRC, and those of its archive do not cover the archive's own directory: a flipped byte there
gives tensors of something else. So the SHA-256 of all bytes stands at the end of the file, as the archive's comment,
which leaves it a file that ``torch.load`` reads. ``read`` checks it first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from core.errors import CheckpointError, UnknownFormatError
from core.run_dir import TEMPORARY, rename, replacing

FORMAT = 1
#: What the comment says before the digest: the last bytes of the file, in hex, over all bytes before them.
_SEAL = b"layl sha256 "
_DIGEST_BYTES = 64


class _Sealing:
    """A file that hashes what passes through it (torch writes its archives front to back) and ends with the digest.

    A zip archive ends with the length of its comment in two bytes: they are held back until there is a comment.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._held = b""
        self._hash = hashlib.sha256()
        self.refused: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if len(view) >= 2:
            self._pass(self._held)
            self._pass(view[:-2])
            self._held = bytes(view[-2:])
        else:
            tail = self._held + bytes(view)
            self._pass(tail[:-2])
            self._held = tail[-2:]
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> str:
        """Write the comment; returns the SHA-256 of the whole file."""
        assert self._held == b"\0\0", "torch's archives end with an empty comment"
        self._pass((len(_SEAL) + _DIGEST_BYTES).to_bytes(2, "little"))
        self._pass(_SEAL)
        self._pass(self._hash.hexdigest().encode())
        return self._hash.hexdigest()

    def _pass(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            self.refused = error
            raise


def write(path: Path, value: dict[str, Any], *, previous: Path | None = None) -> str:
    """Replace ``path`` by ``value``, keeping the former file as ``previous``; returns the SHA-256 of the new file.

    Raises OSError, RuntimeError (torch's) or TypeError (a value that is not plain); the old files then are as before.
    """
    assert "format" not in value
    _refuse_objects(value, "checkpoint")
    # a second name for the former bytes, so that at no moment neither name exists, and there is a way back
    former = None
    if previous is not None and path.exists():
        former = previous.with_name(f".{previous.name}.link{TEMPORARY}")
    linked = False
    try:
        with replacing(path) as file:
            sealing = _Sealing(file)
            _save({"format": FORMAT, **value}, sealing)
            digest = sealing.seal()
            if former is not None:
                _link(path, former)
                linked = True
        if former is not None and previous is not None:
            rename(former, previous)
    except BaseException:
        if former is not None and linked:
            rename(former, path)
        raise
    finally:
        if former is not None:
            former.unlink(missing_ok=True)
    return digest


def _save(value: dict[str, Any], file: _Sealing) -> None:
    try:
        torch.save(value, file)  # type: ignore[arg-type]
    except RuntimeError:
        # torch says "unexpected pos" of a full disk
        if file.refused is not None:
            raise file.refused from None
        raise


def _refuse_objects(value: Any, where: str) -> None:
    # what torch saves without a word it may refuse to load with weights_only, when it is too late
    if type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            _refuse_objects(key, where)
            _refuse_objects(inner, f"{where}.{key}")
    elif type(value) in (list, tuple):
        for i, inner in enumerate(value):
            _refuse_objects(inner, f"{where}[{i}]")
    elif type(value) not in (str, int, float, bool, type(None), torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint holds plain types and tensors only")


def _link(path: Path, beside: Path) -> None:
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:
        # a file system without links
        shutil.copyfile(path, beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())


def verify(path: Path) -> None:
    """Raises CheckpointError unless every byte of the file is what was written."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                digest.update(data)
                left -= len(data)
            sealed = file.read()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if sealed != digest.hexdigest().encode():
        raise CheckpointError(f"{path} is damaged or no layl checkpoint: its bytes and its checksum disagree")


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
        found = f"{path} has format {value['format']}, this layl reads {FORMAT}"
        raise UnknownFormatError(f"{found}; update layl, nothing was touched")
    return value
