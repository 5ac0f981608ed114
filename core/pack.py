"""Packed audio: 16 kHz mono int16 samples end to end in files named by their content.

A pack never changes once it has its name, so runs share it and a memory map may stay open for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from core.run_dir import replacing

SUFFIX = ".pcm16"


def write_pack(folder: Path, clips: Iterable[np.ndarray]) -> tuple[Path, list[int]]:
    """One shard with ``clips`` (int16, one axis) end to end; returns its path and the first sample of each clip.

    Raises TypeError for floats: in [-1, 1] they would become silence.
    """
    offsets, chunks, position = [], [], 0
    digest = hashlib.sha256()
    for clip in clips:
        data = np.ascontiguousarray(clip.astype("<i2", casting="safe", copy=False))
        offsets.append(position)
        position += len(data)
        chunks.append(data)
        digest.update(data.tobytes())
    path = folder / f"{digest.hexdigest()[:32]}{SUFFIX}"
    if not (path.is_file() and path.stat().st_size == 2 * position):
        with replacing(path) as file:
            for data in chunks:
                file.write(data.tobytes())
    return path, offsets


def map_pack(path: Path) -> np.ndarray:
    """The samples of a shard, int16, read-only and memory-mapped. Raises FileNotFoundError."""
    if path.stat().st_size == 0:
        # an empty file cannot be mapped
        return np.frombuffer(b"", dtype="<i2")
    return np.memmap(path, dtype="<i2", mode="r")
