"""What a GPU makes of training: speed of an epoch by precision, resume equality, and model FLOP utilisation.

``benchmarks/gpu.sh`` runs it. Every part works on the CPU too (``--device cpu --small``), which is how it is tested.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from core import checkpoint
from core.project import read_run
from core.run_dir import RunDir
from core.speech.config import ModelSection
from core.speech.features import FILTERS
from core.speech.model import SpeechModel
from prepare.pipeline import prepare
from train.views import read_log

CHECKOUT = Path(__file__).resolve().parent.parent
SYMBOLS = 37
#: A sample that even a CPU trains in a minute.
SMALL = ("data.sources=[{kind: sample, voices: 4, suras: [112]}]", "train.max_batch_seconds=20")


def scratch_project(folder: Path, overrides: tuple[str, ...]) -> None:
    """A project with the shipped quran configuration and its manifests."""
    (folder / "configs").mkdir(parents=True)
    shutil.copy(CHECKOUT / "configs" / "quran.yaml", folder / "configs")
    (folder / "dvc.yaml").write_text("stages: {}\n")
    run, config = read_run(folder, "quran", overrides)
    prepare(run, config, report=lambda line: None)


def session(root: Path, overrides: tuple[str, ...], until_step: int | None = None) -> None:
    """One session in a process of its own, as users run it. Raises CalledProcessError unless it finished or paused."""
    command = [sys.executable, "-P", "-m", "train", "quran", "--root", str(root), "--session", f"gpu-{time.time():.3f}"]
    for override in overrides:
        command += ["--set", override]
    if until_step is not None:
        command += ["--until-step", str(until_step)]
    done = subprocess.run(command, capture_output=True, text=True, env=None)
    if done.returncode not in (0, 75):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")


def begin_anew(root: Path) -> RunDir:
    run = RunDir(root, "quran")
    shutil.rmtree(run.path, ignore_errors=True)
    return run


def epoch_speed(root: Path, overrides: tuple[str, ...]) -> tuple[float, float]:
    """Hours of audio an hour (median of the log lines) and seconds of the whole session, for one epoch."""
    run = begin_anew(root)
    began = time.perf_counter()
    session(root, (*overrides, "train.epochs=1", "train.eval_every_steps=1000000", "train.log_every_steps=10"))
    seconds = time.perf_counter() - began
    speeds = [float(row["audio_h_per_h"]) for row in read_log(run) if row["audio_h_per_h"]]
    return statistics.median(speeds) if speeds else float("nan"), seconds


def resume_is_exact(root: Path, overrides: tuple[str, ...], steps: int, cuts: tuple[int, ...]) -> bool:
    """Whether a run cut at ``cuts`` has the very weights of one never cut, in deterministic mode."""
    wanted = (*overrides, "train.deterministic=true", "train.precision=fp32", f"train.steps={steps}")
    run = begin_anew(root)
    session(root, wanted)
    whole = checkpoint.read(run.last)["model"]
    begin_anew(root)
    for cut in (*cuts, None):
        session(root, wanted, until_step=cut)
    cut_up = checkpoint.read(run.last)["model"]
    return all(torch.equal(value, cut_up[name]) for name, value in whole.items())


def step_flops(model: SpeechModel, features_NTF: torch.Tensor, frames_N: torch.Tensor) -> int:
    """Floating-point operations of a forward and a backward pass, counted by torch."""
    with FlopCounterMode(display=False) as counter:
        model(features_NTF, frames_N)[0].sum().backward()
    return counter.get_total_flops()


def median_seconds(act: Callable[[], object], device: torch.device, times: int) -> float:
    taken = []
    for _ in range(times + 2):
        began = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def utilisation(device: torch.device, preset: str, batch_seconds: float, times: int) -> tuple[float, float, float]:
    """TFLOP/s of training steps, TFLOP/s of a large matrix product, and hours of audio an hour; bf16."""
    config = ModelSection.model_validate({"preset": preset})
    model = SpeechModel(config, SYMBOLS).to(device)
    frames = 1000
    clips = max(1, int(batch_seconds * 100 / frames))
    features = torch.randn(clips, frames, FILTERS, device=device)
    frames_N = torch.full((clips,), frames, device=device)
    flops = step_flops(model, features, frames_N)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            model(features, frames_N)[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = median_seconds(step, device, times)
    size = 8192 if device.type == "cuda" else 512
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    peak = 2 * size**3 / median_seconds(lambda: one @ one, device, times)
    return flops / seconds / 1e12, peak / 1e12, clips * frames / 100 / seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="four voices, one sura, few steps")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA GPU here: nothing measured")
        return 0
    device = torch.device(args.device)
    overrides = (*(SMALL if args.small else ()), f"train.device={args.device}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"device: {name}, torch {torch.__version__}")
    preset, batch, times = ("demo", 20.0, 2) if args.small else ("16m", 300.0, 20)
    trained, peak, speed = utilisation(device, preset, batch, times)
    print(
        f"{preset}: {trained:.2f} TFLOP/s of {peak:.1f} in a matrix product: MFU {trained / peak:.1%}, {speed:,.0f} h/h"
    )
    with tempfile.TemporaryDirectory(prefix="layl-gpu-") as folder:
        root = Path(folder) / "project"
        scratch_project(root, overrides)
        for precision in ("bf16", "fp32"):
            speed, seconds = epoch_speed(root, (*overrides, f"train.precision={precision}"))
            print(f"one epoch of the sample, {precision}: {speed:,.0f} h/h, {seconds:.1f} s with start and validation")
        steps, cuts = (6, (2, 3)) if args.small else (40, (7, 23))
        exact = resume_is_exact(root, overrides, steps, cuts)
        print(
            f"{steps} steps cut at {', '.join(map(str, cuts))} against never cut: {'equal' if exact else 'NOT EQUAL'}"
        )
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
