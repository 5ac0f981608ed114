"""How long an mp3 really is: libsndfile believes the stream's own frame count, or guesses it, and reads no further.

A stream of varying bitrate without that count (or with a zero in it) would lose most of its sound in silence. So the
frames are counted by walking over their headers, and the count is written where the decoder looks for it.

Source of the layout: ISO/IEC 11172-3 and 13818-3 (frame header), and the Xing tag as LAME writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

_KBITS = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


@dataclass(frozen=True)
class Stream:
    """Bytes that decode to their end, the frames found in them, and how many the stream itself promised (0: none)."""

    data: bytes
    frames: int = 0
    promised: int = 0


@dataclass(frozen=True)
class _Frame:
    size: int
    tag: int  # where in the frame a Xing tag would stand


def with_true_length(data: bytes) -> Stream:
    """The stream with its true number of frames in its Xing tag. What is no mp3 of layer III comes back as it is."""
    start = _after_id3(data)
    first = _frame(data, start)
    if first is None or data[:4] in (b"RIFF", b"OggS", b"fLaC"):
        return Stream(data)
    tagged = data[start + first.tag : start + first.tag + 4] in (b"Xing", b"Info")
    body = start + first.size if tagged else start
    count = _count(data, body)
    if not count:
        return Stream(data)
    if not tagged:
        return Stream(data[:start] + _tag_frame(data[start : start + 4], first.tag, count) + data[start:], count)
    at = start + first.tag + 8
    if not data[at - 1] & 1:  # a tag without a count: nothing to correct, so the whole tag gives way
        return Stream(data[:start] + _tag_frame(data[start : start + 4], first.tag, count) + data[body:], count)
    promised = int.from_bytes(data[at : at + 4], "big")
    return Stream(data[:at] + count.to_bytes(4, "big") + data[at + 4 :], count, promised)


def _after_id3(data: bytes) -> int:
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        a, b, c, d = data[at + 6 : at + 10]
        at += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if data[at + 5] & 0x10 else 0)
    return at


def _frame(data: bytes, at: int) -> _Frame | None:
    header = data[at : at + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    bitrate, rate = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return None
    first = version == 3
    bits_a_second = 1000 * _KBITS[1 if first else 2][bitrate]
    padding = header[2] >> 1 & 1
    size = (144 if first else 72) * bits_a_second // _RATES_HZ[version][rate] + padding
    mono = header[3] >> 6 == 3
    side = (17 if mono else 32) if first else (9 if mono else 17)
    return _Frame(size, 4 + side)


def _count(data: bytes, at: int) -> int:
    """Whole or cut frames from ``at`` on; up to 4 KiB of damage between two frames is stepped over."""
    count = lost = 0
    while at < len(data) - 4 and lost < 4096:
        frame = _frame(data, at)
        if frame is None:
            at, lost = at + 1, lost + 1
        else:
            at, count, lost = at + frame.size, count + 1, 0
    return count


def _tag_frame(header: bytes, tag: int, count: int) -> bytes:
    # no checksum, and a bitrate whose frame has room for the tag at every sample rate
    like = bytes((header[0], header[1] | 1, header[2] & 0x0D | 0x80, header[3]))
    frame = _frame(like, 0)
    assert frame is not None
    body = like + bytes(tag - 4) + b"Xing" + (1).to_bytes(4, "big") + count.to_bytes(4, "big")
    return body.ljust(frame.size, b"\0")
