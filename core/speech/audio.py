"""Sound as samples: float32, one channel, 16 kHz, whatever the file was. Content decides the format, never the suffix.

A row's samples are its int16 samples, from a pack or from a file alike, so that packing a corpus changes no result.
"""

from __future__ import annotations

import functools
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import DataError
from core.manifest import SAMPLE_RATE_HZ, Row
from core.pack import map_pack
from core.speech import mp3

#: Every ``AudioError.reason``.
AUDIO_REASONS = ("missing_file", "unreadable", "empty_file", "not_audio", "truncated", "not_finite")

#: A stream is cut when this part of what its header promises is missing. Encoders' rounding is far below (a real
#: ayah of 135 s decodes to 2,240 samples fewer than its header says), half a download is far above.
_MISSING_SHARE = 0.1


class AudioError(DataError):
    """Audio that cannot be used. ``reason`` is one of AUDIO_REASONS."""

    def __init__(self, reason: str, message: str):
        assert reason in AUDIO_REASONS, reason
        self.reason = reason
        super().__init__(message)

    def __reduce__(self) -> tuple[type[AudioError], tuple[str, str]]:
        # the default would call __init__ with the message alone, and decoding happens in other processes
        return type(self), (self.reason, str(self))


def decode(path_or_bytes: Path | str | bytes) -> np.ndarray:
    """Samples of a wav, flac, ogg or mp3: float32 [samples] in [-1, 1] at 16 kHz, channels averaged.

    The length is what decodes, not what a header claims. Raises AudioError with its reason.
    """
    if isinstance(path_or_bytes, bytes):
        return _decode(path_or_bytes, "these bytes")
    return _decode(_read(Path(path_or_bytes)), str(path_or_bytes))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise AudioError("missing_file", f"{path}: a folder; expected a file") from None
    except (FileNotFoundError, NotADirectoryError):
        raise AudioError("missing_file", f"{path}: no such file") from None
    except OSError as error:
        raise AudioError("unreadable", f"{path}: {error.strerror or error}") from None


def _decode(data: bytes, where: str) -> np.ndarray:
    if not data:
        raise AudioError("empty_file", f"{where}: zero bytes; expected audio")
    samples, rate_hz = _frames(data, where)
    if not len(samples):
        raise AudioError("truncated", f"{where}: a header without a single sample behind it")
    mono = samples.mean(axis=1, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise AudioError("not_finite", f"{where}: holds samples that are not numbers")
    return resample(mono, rate_hz, SAMPLE_RATE_HZ)


def _frames(data: bytes, where: str) -> tuple[np.ndarray, int]:
    """Samples [samples, channels] and their rate."""
    import soundfile

    stream = mp3.with_true_length(data)
    _refuse_cut(stream.frames, stream.promised, "mp3 frames", where)
    try:
        # bytes, not a path: libsndfile takes an unknown file's format from its suffix
        file = soundfile.SoundFile(io.BytesIO(stream.data))
    except soundfile.LibsndfileError:
        raise AudioError("not_audio", f"{where}: {_looks_like(data)}; expected wav, flac, ogg or mp3") from None
    with file:
        try:
            samples = file.read(dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise AudioError("truncated", f"{where}: {file.format} that breaks off ({_reason(error)})") from None
        _refuse_cut(len(samples), file.frames, "samples", where)
        return samples, file.samplerate


def _refuse_cut(found: int, promised: int, unit: str, where: str) -> None:
    if found < (1 - _MISSING_SHARE) * promised:
        raise AudioError("truncated", f"{where}: {found:,} {unit} of the {promised:,} that its header promises")


def _reason(error: Any) -> str:
    return " ".join(str(error).split()).removeprefix("Error : ").rstrip(".")


def _looks_like(data: bytes) -> str:
    head = data[:64].lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page"
    return f"no audio that we know (begins with {data[:8]!r})"


def resample(samples: np.ndarray, from_hz: float, to_hz: float) -> np.ndarray:
    """Float32 [samples] at another rate; the very same array when the rates are equal."""
    if from_hz == to_hz or not len(samples):
        return samples
    import soxr

    return soxr.resample(samples, from_hz, to_hz).astype(np.float32, copy=False)


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Float samples in [-1, 1] as int16, rounded, clipped at full scale."""
    return np.clip(np.rint(samples * 32768.0), -32768, 32767).astype("<i2")


def from_int16(samples: np.ndarray) -> np.ndarray:
    """Int16 samples as float32 in [-1, 1); to_int16 of it gives them back exactly."""
    return samples.astype(np.float32) / np.float32(32768)


def digest(samples: np.ndarray) -> str:
    """SHA-256 over the int16 samples: one recording in wav and flac is one recording. Takes float or int16."""
    pcm = samples if samples.dtype == np.int16 else to_int16(samples)
    return hashlib.sha256(np.ascontiguousarray(pcm, dtype="<i2").tobytes()).hexdigest()


def load(row: Row, root: Path) -> np.ndarray:
    """The samples of a manifest's row, float32 [samples] at 16 kHz. Raises AudioError naming the row.

    ``row.audio`` is relative to ``root``, the project; an absolute path stays what it is.
    """
    path = root / row.audio
    if row.offset is None:
        try:
            return from_int16(to_int16(decode(path)))
        except AudioError as error:
            raise AudioError(error.reason, f"row {row.name}: {error}") from None
    try:
        pack = _pack(path)
    except FileNotFoundError:
        raise AudioError("missing_file", f"row {row.name}: {path} is gone; run `layl prepare` again") from None
    end = row.offset + row.samples
    if end > len(pack):
        raise AudioError("truncated", f"row {row.name}: {path} ends at sample {len(pack):,}, the row at {end:,}")
    return from_int16(pack[row.offset : end])


@functools.lru_cache(maxsize=256)
def _pack(path: Path) -> np.ndarray:
    # a pack never changes under its name, so a map may stay open
    return map_pack(path)
