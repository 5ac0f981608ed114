"""The process that speaks Arabic: espeak-ng is GPL-3, so nothing imports this module, it is run beside us.

    python -P -m prepare.voice    one JSON request a line on stdin, one reply each on stdout

A request is {"text", "voice", "rate" (words a minute), "pitch", "range" (0 to 99)}; a reply is a little-endian
int32 n and n bytes of int16 samples at 22,050 Hz, or -n and n bytes of UTF-8 that say what went wrong.

espeak-ng keeps state from one clip to the next that no call resets. So this process never speaks itself: each
clip is spoken by a fork of it, which makes a clip a function of its request alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

SPEECH_RATE_HZ = 22_050

_SYNCHRONOUS, _DO_NOT_EXIT, _UTF8 = 2, 0x8000, 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_ONCE = "--once"

_OnSamples = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class VoiceError(Exception):
    """What cannot be spoken, as a sentence for the process that asked."""


class Espeak:
    """espeak-ng's library, initialised and silent so far. Raises VoiceError."""

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError:
            raise VoiceError("espeakng-loader is not installed") from None
        self.data = Path(espeakng_loader.get_data_path())
        self.library = ctypes.CDLL(espeakng_loader.get_library_path())
        rate_hz = self.library.espeak_Initialize(_SYNCHRONOUS, 0, str(self.data).encode(), _DO_NOT_EXIT)
        if rate_hz != SPEECH_RATE_HZ:
            raise VoiceError(f"espeak-ng starts with {rate_hz} Hz, expected {SPEECH_RATE_HZ}")

    def speak(self, request: dict[str, Any]) -> bytes:
        """int16 samples at 22,050 Hz. To be called once in the life of a process."""
        chunks: list[bytes] = []

        @_OnSamples
        def on_samples(samples: Any, count: int, _events: Any) -> int:
            if samples and count > 0:
                chunks.append(ctypes.string_at(samples, 2 * count))
            return 0

        self._choose(request["voice"])
        self.library.espeak_SetSynthCallback(on_samples)
        for parameter, name in ((_RATE, "rate"), (_PITCH, "pitch"), (_RANGE, "range")):
            self.library.espeak_SetParameter(parameter, int(request[name]), 0)
        self.library.espeak_ng_SetRandSeed(1)
        text = request["text"].encode() + b"\0"
        failed = self.library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 0, 0, _UTF8, None, None)
        samples = b"".join(chunks)
        if failed or not any(samples):
            raise VoiceError(f"espeak-ng (status {failed}) has no sound for the text {request['text'][:60]!r}")
        return samples

    def _choose(self, voice: str) -> None:
        language, _, variant = voice.partition("+")
        # an unknown variant is no error to espeak-ng: it would quietly speak with the plain voice
        known = not variant or (self.data / "voices" / "!v" / variant).is_file()
        if not known or self.library.espeak_SetVoiceByName(voice.encode()):
            raise VoiceError(f"espeak-ng has no voice {voice!r} (language {language}, variant {variant or 'none'})")


def reply(speak: Callable[[], bytes]) -> bytes:
    """What goes over the pipe for one clip: its samples, or why there are none."""
    try:
        data = speak()
    except (VoiceError, OSError, KeyError, ValueError) as error:
        data = f"{error}" if isinstance(error, VoiceError) else f"{type(error).__name__}: {error}"
        data = data.encode()
        return struct.pack("<i", -len(data)) + data
    return struct.pack("<i", len(data)) + data


def spoken_by_fork(espeak: Espeak, line: bytes) -> bytes:
    """The reply to one request, made by a child that dies with its espeak."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(reply(lambda: espeak.speak(json.loads(line))))
            status = 0
        finally:
            # never the parent's exit handlers and unwritten buffers
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return answer if status == 0 else _died(os.waitstatus_to_exitcode(status))


def spoken_by_process(line: bytes) -> bytes:
    """The reply to one request where there is no fork: by a whole new process."""
    command = [sys.executable, "-P", "-m", "prepare.voice", _ONCE]
    done = subprocess.run(command, input=line, stdout=subprocess.PIPE, check=False)
    return done.stdout if done.returncode == 0 else _died(done.returncode)


def _died(status: int) -> bytes:
    def speak() -> bytes:
        raise VoiceError(f"the speaking process died with status {status}")

    return reply(speak)


def serve(requests: BinaryIO, replies: BinaryIO, answer: Callable[[bytes], bytes]) -> None:
    """Answer line after line until there are none."""
    for line in requests:
        replies.write(answer(line))
        replies.flush()


def main(arguments: list[str]) -> int:
    # a Ctrl-C reaches the whole process group: whoever asked decides, and closes our stdin
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    if arguments == [_ONCE]:
        line = requests.readline()
        replies.write(reply(lambda: Espeak().speak(json.loads(line))))
        replies.flush()
        return 0
    try:
        if not hasattr(os, "fork"):
            serve(requests, replies, spoken_by_process)
            return 0
        espeak = Espeak()
        serve(requests, replies, lambda line: spoken_by_fork(espeak, line))
    except VoiceError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # whoever asked is gone; keep the interpreter from trying once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
