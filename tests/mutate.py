"""``python -m tests.mutate``: breaks one promise at a time in a copy of the project and sees whether a test notices.

Prints caught or MISSED for each and ends with 1 when one was missed. ``python -m tests.mutate rewarm`` takes those
whose name holds the word.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
COPIED = ("core", "prepare", "train", "export", "tasks", "cli", "tests", "configs")
SECONDS = 300.0

LOOP, STATE, LOADER, CHECKPOINTS = "train/loop.py", "train/state.py", "train/loader.py", "train/checkpoints.py"
STEP = "train/step.py"
FILE, RUN_DIR, SESSION, RESUME = "core/checkpoint.py", "core/run_dir.py", "train/session.py", "train/resume.py"
START, SITTING, SUPERVISE, SCHEDULE = "train/start.py", "train/sitting.py", "tasks/supervise.py", "train/schedule.py"


@dataclass(frozen=True)
class Break:
    """One line that is made wrong, and the tests that have to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


def _not_restored(part: str) -> Break:
    old = "            if f.name not in state:\n"
    return Break(
        f"{part} is not restored",
        STATE,
        old,
        f"            if f.name == {part!r}:\n                continue\n{old}",
        "tests/train/test_resume.py tests/train/test_state.py",
    )


def _forgotten(field: str, tests: str = "tests/train/test_resume.py") -> Break:
    old = "            setattr(self, name, value)\n"
    return Break(f"{field} is forgotten", STATE, old, f"            if name != {field!r}:\n    {old}", tests)


BREAKS = (
    *map(_not_restored, ("model", "optimizer", "scaler", "place", "progress", "averages", "identity")),
    *(_forgotten(field) for field in ("epoch", "batch", "consumed", "values", "step", "units_seen")),
    *(
        _forgotten(field, "tests/train/test_changes.py tests/train/test_start.py")
        for field in ("warm_from", "best_score", "origins", "classes")
    ),
    _forgotten("skipped", "tests/train/test_bad_steps.py tests/train/test_start.py"),
    Break(
        "an epoch depends on what was drawn before",
        "train/batching.py",
        'random = random_for("batches", seed, epoch)',
        "random = np.random.default_rng()",
        "tests/train/test_batching.py",
    ),
    Break(
        "an epoch begins with its second batch",
        LOADER,
        "place.epoch + 1, 0",
        "place.epoch + 1, 1",
        "tests/train/test_loader.py tests/train/test_resume.py",
    ),
    Break(
        "every epoch sounds alike",
        "train/recipes/speech_data.py",
        "random_for(draw.seed, draw.epoch,",
        "random_for(draw.seed, 0,",
        "tests/train/recipes/test_speech_data.py",
    ),
    Break(
        "the rate begins anew with each session",
        LOOP,
        "self.plan.schedule.lr(progress.step)",
        "self.plan.schedule.lr(progress.step - self._first_step)",
        "tests/train/test_resume.py",
    ),
    Break(
        "another length does not warm up",
        RESUME,
        'rewarm.append(f"length changed',
        'notes.append(f"length changed',
        "tests/train/test_reconcile.py tests/train/test_changes.py",
    ),
    Break(
        "a damaged checkpoint has nobody to stand in",
        CHECKPOINTS,
        "for path in (self._run.last, self._run.last_previous):",
        "for path in (self._run.last,):",
        "tests/train/test_checkpoints.py",
    ),
    Break(
        "loader processes hear signals",
        LOADER,
        "        signal.signal(number, signal.SIG_IGN)\n",
        "        pass\n",
        "tests/train/test_loader.py",
    ),
    Break(
        "clips too short for their letters are trained",
        "train/recipes/speech_data.py",
        "if _fits(row, vocabulary, fastest)]",
        "if True]",
        "tests/train/recipes/test_speech_data.py",
    ),
    Break(
        "a clip without letters needs no frame",
        "train/recipes/speech_data.py",
        "max(1, frames_needed(",
        "max(0, frames_needed(",
        "tests/train/recipes/test_speech_data.py",
    ),
    Break(
        "a file that somebody holds is given up at once",
        RUN_DIR,
        "range(RENAME_TRIES - 1)",
        "range(0)",
        "tests/core/test_run_dir.py",
    ),
    Break(
        "what is not plain is saved",
        FILE,
        '    _refuse_objects(value, "checkpoint")\n',
        "",
        "tests/core/test_checkpoint.py",
    ),
    Break(
        "a step draws from a generator with a past",
        STEP,
        "        torch.manual_seed((int(",
        "        hash((int(",
        "tests/train/test_resume.py",
    ),
    Break(
        "the place counts batches that were drawn",
        LOADER,
        "clean=place.consumed + ahead <",
        "clean=place.consumed <",
        "tests/train/test_resume.py tests/train/test_loader.py",
    ),
    Break(
        "a running epoch takes a new plan",
        LOADER,
        "if not place.values or place.batch == 0:",
        "if True:",
        "tests/train/test_changes.py tests/train/test_loader.py",
    ),
    Break(
        "a gradient that is not finite is taken",
        STEP,
        "finite = bool(torch.isfinite(norm))",
        "finite = True",
        "tests/train/test_bad_steps.py",
    ),
    Break(
        "memory that ran out ends the session",
        STEP,
        "            if not is_out_of_memory(error):\n",
        "            if True:\n",
        "tests/train/test_out_of_memory.py",
    ),
    Break(
        "a skipped batch keeps its gradients",
        STEP,
        "        self._state.optimizer.zero_grad(set_to_none=True)\n        gc.collect()",
        "        gc.collect()",
        "tests/train/test_out_of_memory.py",
    ),
    Break(
        "the heaviest batch is not tried",
        LOOP,
        "        if progress.step < progress.planned:\n            self._try_heaviest()\n",
        "",
        "tests/train/test_out_of_memory.py",
    ),
    Break(
        "a trial leaves its draws behind",
        STEP,
        'with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):',
        "if device:",
        "tests/train/test_out_of_memory.py",
    ),
    Break(
        "a row is appended to a torn one",
        RUN_DIR,
        "        self._torn = True\n",
        "        self._torn = False\n",
        "tests/core/test_run_dir.py",
    ),
    Break(
        "bad batches never end the session",
        LOOP,
        "if self._bad_in_a_row >= BAD_STEPS_IN_A_ROW:",
        "if False:",
        "tests/train/test_bad_steps.py tests/train/test_out_of_memory.py",
    ),
    Break(
        "a validation is begun too late",
        LOOP,
        "if progress.validation_seconds and (stop",
        "if False and (stop",
        "tests/train/test_deadlines.py",
    ),
    Break(
        "nothing is reserved for the save",
        LOOP,
        "return RESERVE * self.checkpoints.save_seconds",
        "return 0.0",
        "tests/train/test_deadlines.py",
    ),
    Break(
        "the deadline is never read",
        SESSION,
        "if self.stop_at is not None and (now := self.clock()) + reserve >=",
        "if self.stop_at is not None and (now := self._started) + reserve >=",
        "tests/train/test_session.py",
    ),
    Break(
        "another session's request is obeyed",
        SESSION,
        "asked.concerns(self.id, self._started) else None",
        "True else None",
        "tests/train/test_session.py tests/train/test_start.py",
    ),
    Break(
        "a second signal waits",
        SESSION,
        "        if self._signals > 1:",
        "        if self._signals > 2:",
        "tests/train/test_session.py",
    ),
    Break(
        "handlers are not given back",
        SESSION,
        "                    signal.signal(number, handler)\n",
        "                    pass\n",
        "tests/train/test_session.py",
    ),
    Break(
        "weights with NaN are saved",
        CHECKPOINTS,
        "if value.is_floating_point() and not",
        "if False and not",
        "tests/train/test_checkpoints.py tests/train/test_background_saves.py",
    ),
    Break(
        "the log may lag behind the checkpoint",
        CHECKPOINTS,
        "            self._sync_events()\n",
        "            pass\n",
        "tests/train/test_checkpoints.py",
    ),
    Break(
        "the former checkpoint is not kept",
        CHECKPOINTS,
        "value, previous=self._previous)",
        "value)",
        "tests/train/test_checkpoints.py",
    ),
    Break(
        "a save takes what training does meanwhile",
        CHECKPOINTS,
        'return value.detach().to("cpu", copy=True)',
        "return value.detach()",
        "tests/train/test_background_saves.py",
    ),
    Break(
        "two saves are in flight",
        CHECKPOINTS,
        "        self.settle()\n        began",
        "        began",
        "tests/train/test_background_saves.py",
    ),
    Break(
        "candidates from beyond the step stay",
        CHECKPOINTS,
        'if int(path.stem.removeprefix("step_")) > step:',
        "if False:",
        "tests/train/test_checkpoints.py",
    ),
    Break(
        "a crash forgets the save in flight",
        LOOP,
        "            # whatever broke, a save that has begun is worth waiting for\n"
        "            self.checkpoints.settle()\n",
        "            pass\n",
        "tests/train/test_background_saves.py",
    ),
    Break(
        "a file is not flushed to the disk",
        RUN_DIR,
        "            os.fsync(file.fileno())\n",
        "",
        "tests/core/test_run_dir.py tests/core/test_checkpoint.py",
    ),
    Break(
        "a rename is not flushed to the disk",
        RUN_DIR,
        "    sync_folder(path.parent)\n",
        "",
        "tests/core/test_run_dir.py",
    ),
    Break(
        "a partial file stays",
        RUN_DIR,
        "            beside.unlink(missing_ok=True)\n        raise",
        "            pass\n        raise",
        "tests/core/test_run_dir.py tests/core/test_checkpoint.py",
    ),
    Break(
        "the former file is gone when the new one gets its name",
        FILE,
        "            rename(former, previous)\n",
        "            pass\n",
        "tests/core/test_checkpoint.py",
    ),
    Break(
        "a checkpoint is not verified",
        FILE,
        "    verify(path)\n    try:\n        value",
        "    try:\n        value",
        "tests/core/test_checkpoint.py",
    ),
    Break(
        "a checkpoint may hold code", FILE, "weights_only=True", "weights_only=False", "tests/core/test_checkpoint.py"
    ),
    Break(
        "an unknown format is read", FILE, 'if value["format"] != FORMAT:', "if False:", "tests/core/test_checkpoint.py"
    ),
    Break(
        "new data does not warm up",
        RESUME,
        "            rewarm.append(what)\n",
        "            pass\n",
        "tests/train/test_reconcile.py",
    ),
    Break(
        "new data does not end the epoch",
        RESUME,
        "new_epoch = new_data and point.batch > 0",
        "new_epoch = False",
        "tests/train/test_reconcile.py",
    ),
    Break("a fixed field may change", RESUME, "    if refused:\n", "    if False:\n", "tests/train/test_reconcile.py"),
    Break(
        "who was trained on may test",
        RESUME,
        "if seen and not now.allow_seen:",
        "if False:",
        "tests/train/test_reconcile.py tests/train/test_changes.py",
    ),
    Break(
        "what was trained on is forgotten at the next session",
        SITTING,
        "    if state.progress.step:\n        now.origins",
        "    if False:\n        now.origins",
        "tests/train/test_changes.py",
    ),
    Break(
        "a rewarm warms nothing",
        SCHEDULE,
        "return scheduled * self.rewarm_factor(step)",
        "return scheduled",
        "tests/train/test_schedule.py",
    ),
    Break(
        "two sessions hold a run",
        "core/lock.py",
        "        lock.acquire(timeout=wait_seconds, poll_interval=0.1)\n",
        "        pass\n",
        "tests/core/test_lock.py tests/train/test_start.py",
    ),
    Break(
        "an old result stays",
        START,
        "    run.result.unlink(missing_ok=True)\n",
        "",
        "tests/train/test_start.py",
    ),
    Break(
        "an ended session stays its run's owner",
        START,
        "                run.owner.unlink(missing_ok=True)\n",
        "                pass\n",
        "tests/train/test_start.py",
    ),
    Break(
        "a result that a disk refuses hides what broke",
        START,
        "            with or_said():\n                _write_result",
        "            if True:\n                _write_result",
        "tests/train/test_small_disk.py",
    ),
    Break(
        "a disk that takes no words ends the training",
        "core/saying.py",
        "    with suppress(OSError, ValueError):\n",
        "    if True:\n",
        "tests/train/test_small_disk.py",
    ),
    Break(
        "norms stay as slow engines have them",
        "export/onnx_file.py",
        "    _norms_by_instance(proto.graph)\n",
        "",
        "tests/export/test_onnx_file.py",
    ),
    Break(
        "targets are such as cuDNN takes",
        "train/recipes/speech_data.py",
        "targets_NL = torch.zeros(len(examples), longest, dtype=torch.int64)",
        "targets_NL = torch.zeros(len(examples), longest, dtype=torch.int32)",
        "tests/train/recipes/test_speech.py",
    ),
    Break(
        "an input that has ended stops a session without a supervisor",
        "train/__main__.py",
        "stdin=args.supervisor is not None",
        "stdin=True",
        "tests/test_whoever_is_gone.py::test_without_a_supervisor_an_input_that_has_ended_is_no_stop",
    ),
    Break(
        "nobody notices that the supervisor is gone",
        "train/__main__.py",
        "            watch_parent(",
        "            (lambda *_, **__: None)(",
        "tests/test_whoever_is_gone.py::test_a_trainer_whose_supervisor_is_killed_saves_and_ends",
    ),
    Break(
        "nobody notices that DVC is gone",
        "cli/train.py",
        "watch=_watched() if frontend is Frontend.dvc else None",
        "watch=None",
        "tests/test_whoever_is_gone.py::test_a_trainer_under_dvc_saves_and_ends_when_dvc_is_terminated",
    ),
    Break(
        "the intent is not written before the signal",
        SUPERVISE,
        "                _ask(wanted, signals.last, clock(), say)\n",
        "",
        "tests/tasks/test_supervise.py",
    ),
    Break(
        "a child that is stuck stays",
        "tasks/watchdog.py",
        'return "terminate" if limits and now >= min(limits) else "wait"',
        'return "wait"',
        "tests/tasks/test_watchdog.py",
    ),
    Break(
        "a torn line swallows the next event",
        RUN_DIR,
        "        self._torn = _ends_torn(path)\n",
        "        self._torn = False\n",
        "tests/core/test_events.py",
    ),
)


def tried(one: Break, copy: Path) -> str:
    """ "caught", "MISSED", or what is wrong with the break itself."""
    path = copy / one.file
    text = path.read_text(encoding="utf-8")
    if text.count(one.old) != 1:
        return f"STALE: {text.count(one.old)} places hold {one.old.strip()!r}"
    path.write_text(text.replace(one.old, one.new), encoding="utf-8")
    # not in the copy: from there a test's project would find the copy's, and be run in that
    scratch = copy.with_name(f"{copy.name}-scratch")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--basetemp={scratch}"]
    command += one.tests.split()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS, check=False)
        # 1: tests failed; 2 to 5 are pytest's own troubles; anything else is what the break did to the process
        trouble = ended.returncode in (2, 3, 4, 5)
        return (
            "MISSED" if ended.returncode == 0 else f"STALE: pytest ended with {ended.returncode}" * trouble or "caught"
        )
    except subprocess.TimeoutExpired:
        return "caught"
    finally:
        path.write_text(text, encoding="utf-8")
        end_what_is_left(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def end_what_is_left(folder: Path) -> None:
    """Kill whoever works for a test's project in ``folder``: a broken promise may be that nobody is left behind."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline()):
                process.kill()


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [one for one in BREAKS if wanted in one.name]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="layl-mutate-") as folder:
        copy = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "dvc.yaml", "Makefile", "README.md", ".dvc/config", ".dvcignore"):
            (copy / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        for one in chosen:
            verdict = tried(one, copy)
            missed += verdict != "caught"
            print(f"{verdict:<7} {one.name}", flush=True)
    print(f"{len(chosen)} breaks, {len(chosen) - missed} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
