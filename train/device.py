"""Where and in which precision training computes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from core.errors import BusyError, ConfigError
from core.saying import say


def pick_device(name: str) -> torch.device:
    """``auto`` is the CUDA GPU with most free memory, else mps, else cpu.

    Raises ConfigError, or BusyError for a device that is taken.
    """
    if name == "auto":
        if torch.cuda.is_available():
            free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
            return torch.device("cuda", free.index(max(free)))
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError("train.device", [f"{name!r}; expected auto, cpu, mps, cuda or cuda:N"]) from None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        if "out of memory" in first or "busy" in first:
            raise BusyError(f"train.device: {name} is taken: {first}") from None
        raise ConfigError("train.device", [f"{name} cannot be used here: {first}"]) from None
    return device


class Precision:
    """Autocast for a device and, for fp16 alone, a gradient scaler."""

    def __init__(self, name: str, device: torch.device):
        if name == "auto":
            name = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
        if name == "fp16" and device.type == "cpu":
            raise ConfigError("train.precision", ["fp16 on a CPU; expected fp32 or bf16"])
        self.name = name
        self._device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True

    def autocast(self) -> AbstractContextManager[object]:
        if self.name == "fp32":
            return contextlib.nullcontext()
        kind = torch.bfloat16 if self.name == "bf16" else torch.float16
        return torch.autocast(self._device.type, dtype=kind)


def device_words(device: torch.device, precision: Precision) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return (
        f"{name}, {precision.name}, {torch.get_num_threads()} threads"
        if device.type == "cpu"
        else f"{name}, {precision.name}"
    )


def peak_memory(device: torch.device) -> int | None:
    """Bytes allocated on a GPU at most since the last call, None elsewhere."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


@contextlib.contextmanager
def kept_awake(why: str) -> Iterator[None]:
    """Ask the machine not to sleep while the body runs, where it can be asked."""
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.windll.kernel32
        # ES_CONTINUOUS | ES_SYSTEM_REQUIRED
        kernel.SetThreadExecutionState(0x80000000 | 0x00000001)
        try:
            yield
        finally:
            kernel.SetThreadExecutionState(0x80000000)
        return
    process = _inhibit(why)
    try:
        yield
    finally:
        if process is not None and process.stdin is not None:
            # the inhibitor's command is `cat`, which ends with its input: also when we are killed
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


def _inhibit(why: str) -> subprocess.Popen[bytes] | None:
    command = _inhibitor(why)
    if command is None:
        return None
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        say(f"the machine may fall asleep while training: {command[0]}: {error}")
        return None


def _inhibitor(why: str) -> list[str] | None:
    if sys.platform == "darwin" and shutil.which("caffeinate"):
        return ["caffeinate", "-i", "cat"]
    if shutil.which("systemd-inhibit"):
        return ["systemd-inhibit", "--what=sleep:idle", "--who=layl", f"--why={why}", "cat"]
    return None
