"""``python -m tests.e2e``: a real Prefect server, pool and worker, the real commands, and what users fear.

Everything lies in a temporary folder: a copy of this checkout with a corpus of tones, a database of its own, a free
port. Prints a table of rows with times; ends with 1 when a row does not hold. ``python -m tests.e2e cancel zombie``
takes the rows whose name holds one of the words.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from core.events import Started, read_events
from core.process import Mark, is_alive
from core.run_dir import RunDir, read_json
from flows.local import QUIET, Local
from tests.test_dvc_real import CONFIG, Corpus

ROOT = Path(__file__).parent.parent
COPIED = ("core", "prepare", "train", "export", "tasks", "flows", "cli")
FILES = ("dvc.yaml", "prefect.yaml", "pyproject.toml", ".dvcignore", ".dvc/config")
TRAIN = {
    **CONFIG["train"], "epochs": 40, "log_every_steps": 5, "eval_every_steps": 60, "checkpoint_minutes": 0.03,
    "min_session_minutes": 0.05,
}  # fmt: skip
#: What python runs before anything else: saves of a trainer take as long as the file ``slow`` says.
SLOW = """
import os, sys, time
from pathlib import Path
if "-m" in sys.orig_argv and "train" in sys.orig_argv:
    real = os.fsync
    def fsync(handle):
        name = os.readlink(f"/proc/self/fd/{handle}") if isinstance(handle, int) else ""
        slow = Path.cwd() / "slow"
        if ".last.pt" in name and slow.exists():
            (Path.cwd() / "saving").touch()
            time.sleep(float(slow.read_text()))
        real(handle)
    os.fsync = fsync
"""


class Stage:
    """The project and its Prefect; commands as a user types them."""

    def __init__(self, folder: Path):
        self.root = folder / "project"
        for name in COPIED:
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        (self.root / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")
        (self.root / "configs").mkdir()
        self.configure()
        self.corpus = Corpus(self.root / "data/raw/tones")
        self.run = RunDir(self.root, "quran")
        python = self._python(folder / "venv")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        os.environ.update(
            QUIET,
            PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            PREFECT_HOME=str(folder / "home"),
            PREFECT_API_URL=f"http://127.0.0.1:{self.port}/api",
            LAYL_PREFECT_PORT=str(self.port),
            OMP_NUM_THREADS="1",
        )
        self.python = str(python)
        self.local = Local(self.root, self.port)

    def configure(self, **train: Any) -> None:
        config = {**CONFIG, "train": {**TRAIN, **train}}
        (self.root / "configs/quran.yaml").write_text(json.dumps(config))

    def _python(self, folder: Path) -> Path:
        """An interpreter that finds this project's packages, not the checkout's, and what is installed beside them."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        packages = next((folder / "lib").glob("python*/site-packages"))
        (packages / "layl.pth").write_text(f"{self.root}\n{Path(psutil.__file__).parent.parent}\n")
        (packages / "sitecustomize.py").write_text(SLOW)
        command = folder / "bin/layl"
        command.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -P -m cli "$@"\n')
        command.chmod(0o755)
        return folder / "bin/python"

    def prefect(self, *arguments: str, timeout: float = 300) -> tuple[int, str]:
        return self.command(self.python, "-m", "prefect", *arguments, timeout=timeout)

    def command(self, *arguments: str, timeout: float = 300) -> tuple[int, str]:
        done = subprocess.run(
            arguments, cwd=self.root, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def up(self) -> str:
        code, said = self.command(self.python, "-m", "flows.local", "up")
        assert code == 0, said
        return said

    def down(self) -> str:
        return self.command(self.python, "-m", "flows.local", "down")[1]

    def start(self, deployment: str = "train/quran", **parameters: Any) -> str:
        """``prefect deployment run``, not waited for; the flow run's id."""
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
        code, said = self.prefect("deployment", "run", deployment, *given)
        assert code == 0, said
        return said.split("UUID: ")[1].split()[0]

    def state(self, flow_run: str) -> Any:
        return self.flow_run(flow_run).state

    def flow_run(self, flow_run: str) -> Any:
        with self.client() as client:
            return client.read_flow_run(flow_run)

    @contextmanager
    def client(self) -> Iterator[Any]:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            yield client

    def ends(self, flow_run: str, seconds: float = 240) -> str:
        """The name of the state in which a flow run ends, and its message."""
        return until(lambda: (s := self.state(flow_run)) and s.is_final() and f"{s.name}: {s.message or ''}", seconds)

    def step(self) -> int:
        return int((read_json(self.run.status) or {}).get("step") or 0)

    def saved(self) -> int:
        return int((read_json(self.run.last_facts) or {}).get("step") or 0)

    def starts(self) -> list[Started]:
        """How each attempt of the run began."""
        return [event for event, _ in read_events(self.run.events)[0] if isinstance(event, Started)]

    def trains(self, beyond: int = 0) -> Mark:
        """The trainer's mark, once it has trained beyond a step."""
        until(lambda: self.run.owner.exists() and self.step() > beyond)
        owner = read_json(self.run.owner)
        return Mark(owner["pid"], owner["start_time"])

    def anew(self, **train: Any) -> None:
        """A run that has not begun, with manifests."""
        shutil.rmtree(self.run.path, ignore_errors=True)
        for path in (self.run.train_metrics, self.run.metrics):
            path.unlink(missing_ok=True)
        self.configure(**train)
        code, said = self.command("layl", "prepare", "quran")
        assert code == 0, said


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What ``what`` gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.1)
    return found


def steps_in_log(run: RunDir) -> list[int]:
    with run.log_csv.open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["loss"]]


def deploy_all(stage: Stage) -> str:
    _, said = stage.prefect("deployment", "ls")
    for name in ("train/quran", "pipeline/quran", "prepare/quran", "export/quran"):
        assert name in said, said
    assert not stage.local._active_schedules()
    return "four deployments, the nightly schedule off"


def to_the_end(stage: Stage) -> str:
    stage.anew()
    began = time.monotonic()
    flow_run = stage.start()
    stage.trains(0)
    start = time.monotonic() - began
    ended = stage.ends(flow_run)
    assert ended.startswith("Completed: "), ended
    planned = read_json(stage.run.last_facts)["planned"]
    assert steps_in_log(stage.run) == list(range(5, planned + 1, 5))
    again = stage.start()
    assert "nothing to train" in (said := stage.ends(again)), said
    return f"{planned} steps, first step {start:.0f} s after the command; again: nothing to train"


def pause_and_continue(stage: Stage) -> str:
    stage.anew(epochs=4000)
    at = datetime.now() + timedelta(seconds=45)
    first = stage.ends(stage.start(stop_at=f"{at:%H:%M:%S}"))
    overrun = time.time() - at.timestamp()
    assert first.startswith("PausedAtDeadline: saved at step "), first
    step = stage.saved()
    assert step > 0
    second = stage.ends(stage.start(until_step=step + 50))
    assert second.startswith(f"PausedAtDeadline: saved at step {step + 50:,} of"), second
    assert steps_in_log(stage.run) == list(range(5, step + 51, 5))
    return f"paused at step {step} ({overrun:.0f} s after the deadline the state is known), went on to {step + 50}"


def retry(stage: Stage) -> str:
    stage.anew(epochs=4000)
    flow_run = stage.start(until_step=4000)
    trainer = stage.trains(100)
    os.kill(trainer.pid, signal.SIGKILL)
    saved = stage.saved()
    again = until(lambda: (o := read_json(stage.run.owner)) and o["pid"] != trainer.pid and o, 120)
    assert again["flow_run"] == flow_run
    resumed = until(lambda: len(begun := stage.starts()) > 1 and begun[-1].step)
    assert resumed >= saved > 0
    code, said = stage.command("layl", "stop", "quran")
    assert code == 0, said
    ended = stage.ends(flow_run)
    assert ended.startswith("StoppedByUser: saved at step"), ended
    return f"killed after step {saved} was saved, attempt 2 went on at step {resumed}"


def cancel(stage: Stage) -> str:
    stage.anew(epochs=4000)
    flow_run = stage.start()
    trainer = stage.trains(50)
    (stage.root / "slow").write_text("40")
    (stage.root / "saving").unlink(missing_ok=True)
    step = stage.step()
    began = time.monotonic()
    code, said = stage.prefect("flow-run", "cancel", flow_run)
    assert code == 0, said
    ended = stage.ends(flow_run)
    shown = time.monotonic() - began
    until(lambda: not is_alive(trainer), 150)
    gone = time.monotonic() - began
    (stage.root / "slow").unlink()
    assert ended.startswith("Cancelled"), ended
    assert gone > 40 and stage.saved() >= step and not stage.run.owner.exists()
    result = read_json(stage.run.result)
    assert (result["outcome"], result["to_step"]) == ("stopped", stage.saved()), result
    return f"Cancelled after {shown:.0f} s, saved at step {stage.saved()} and gone after {gone:.0f} s"


def zombie(stage: Stage) -> str:
    stage.anew(epochs=4000)
    flow_run = stage.start()
    trainer = stage.trains(50)
    flow, worker = read_json(stage.run.flow), stage.local._mark("worker")
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    os.kill(flow["pid"], signal.SIGKILL)
    until(lambda: not is_alive(trainer), 60)
    saved = stage.saved()
    assert read_json(stage.run.result)["outcome"] == "stopped" and saved > 0
    assert stage.state(flow_run).is_running()
    stage.up()
    second = stage.ends(stage.start(until_step=saved + 20))
    assert second.startswith(f"PausedAtDeadline: saved at step {saved + 20:,} of"), second
    marked = stage.state(flow_run)
    assert marked.is_crashed() and "its process is gone" in marked.message, marked
    return f"saved at step {saved}; the next session marked the flow run {marked.name} and went on"


def server_gone(stage: Stage) -> str:
    stage.anew(epochs=400)
    flow_run = stage.start()
    trainer = stage.trains(50)
    server = stage.local._mark("server")
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    step = stage.step()
    until(lambda: not is_alive(trainer), 240)
    result = until(lambda: read_json(stage.run.result))
    assert result["outcome"] == "finished" and stage.run.train_metrics.exists(), result
    flow = _mark(read_json(stage.run.flow))
    until(lambda: not is_alive(flow), 240)
    stage.local.down()
    stage.up()
    before = stage.state(flow_run).name
    again = stage.ends(stage.start())
    assert "nothing to train" in again, again
    after = stage.state(flow_run)
    assert after.is_final(), after
    return f"killed at step {step}, finished at step {result['to_step']}; {before}, then {after.name}: {after.message}"


def _mark(facts: Any) -> Mark:
    return Mark(int(facts["pid"]), float(facts["start_time"]))


def busy(stage: Stage) -> str:
    stage.anew(epochs=4000)
    shell = subprocess.Popen(["layl", "train", "quran"], cwd=stage.root, stdout=subprocess.DEVNULL)
    try:
        trainer = stage.trains(5)
        ended = stage.ends(stage.start())
        assert ended.startswith("SkippedBusy: ") and str(trainer.pid) in ended, ended
        assert is_alive(trainer)
    finally:
        shell.send_signal(signal.SIGINT)
        code = shell.wait(60)
    assert code == 75
    return ended


def three_nights(stage: Stage) -> str:
    from prefect.states import Scheduled

    stage.anew(epochs=4000)
    with stage.client() as client:
        deployment = client.read_deployment_by_name("train/quran")
        runs = [
            client.create_flow_run_from_deployment(
                deployment.id,
                parameters={"until_step": 20},
                state=Scheduled(scheduled_time=datetime.now(UTC) - timedelta(days=days, minutes=1)),
            ).id
            for days in (2, 1, 0)
        ]
    names = [stage.ends(str(each)).partition(":")[0] for each in runs]
    assert names == ["SkippedLate", "SkippedLate", "PausedAtDeadline"], names
    assert [begun.step for begun in stage.starts()] == [0]
    return ", ".join(names)


def schedule_stays(stage: Stage) -> str:
    with stage.client() as client:
        deployment = client.read_deployment_by_name("train/quran")
        client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=True)
    said = stage.up()
    assert stage.local._active_schedules() == {("train/quran", "nightly")}, said
    with stage.client() as client:
        deployment = client.read_deployment_by_name("train/quran")
        client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=False)
    stage.up()
    assert not stage.local._active_schedules()
    return "on stays on, off stays off"


def handshake(stage: Stage) -> str:
    stage.anew()
    ended = stage.ends(stage.start("pipeline/quran"))
    assert ended.startswith("Completed: "), ended
    assert (stage.run.models / "model.int8.onnx").exists()
    code, said = stage.command(stage.python, "-m", "dvc", "repro")
    assert code == 0, said
    for name in ("train@quran", "export@quran"):
        assert f"Stage '{name}' didn't change, skipping" in said, said
    return "dvc repro skips train and export"


def new_data(stage: Stage) -> str:
    """After ``handshake``: the finished run meets a changed transcript."""
    stage.corpus.rows[0]["text"] = "two two three"
    stage.corpus.write()
    ended = stage.ends(stage.start("pipeline/quran"))
    assert ended.startswith("Completed: "), ended
    said = "; ".join(stage.starts()[-1].notes)
    assert "data changed: +0 -0 ~1 clips" in said and "learning rate warms up again" in said
    code, repro = stage.command(stage.python, "-m", "dvc", "repro")
    assert code == 0 and "Stage 'train@quran' didn't change, skipping" in repro, repro
    return "data changed: +0 -0 ~1 clips -> learning rate warms up again; dvc repro skips train"


def invalid(stage: Stage) -> str:
    said = []
    for parameters, words in (
        ({"run": "quram"}, "did you mean quran?"),
        ({"stop_at": "1410"}, "YAML 1.1"),
        ({"stop_at": "25:00"}, "no time of day"),
    ):
        ended = stage.ends(stage.start(**parameters))
        assert ended.startswith("Failed: ") and words in ended, ended
        said.append(words)
    code, output = stage.prefect("deployment", "run", "train/quran", "-p", "foo=1")
    assert code != 0 and "not found on the deployment" in output
    return "; ".join([*said, "foo not found on the deployment"])


ROWS: dict[str, Callable[[Stage], str]] = {
    "deploy all": deploy_all,
    "a run to its end, and again": to_the_end,
    "a deadline, and the next session": pause_and_continue,
    "the trainer is killed: retry": retry,
    "cancel during a save of 40 s": cancel,
    "flow and worker are killed: zombie": zombie,
    "two at once: busy": busy,
    "three missed nights": three_nights,
    "deploying again: schedule": schedule_stays,
    "pipeline, then dvc repro: handshake": handshake,
    "new data: handshake goes on": new_data,
    "wrong input": invalid,
    "the server is killed": server_gone,
}


def main() -> int:
    words = sys.argv[1:]
    chosen = {name: row for name, row in ROWS.items() if not words or any(word in name for word in words)}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="layl-e2e-") as folder:
        stage = Stage(Path(folder))
        try:
            began = time.monotonic()
            stage.up()
            print(f"up in {time.monotonic() - began:.0f} s", flush=True)
            for name, row in chosen.items():
                began = time.monotonic()
                try:
                    said = f"holds   {row(stage)}"
                except Exception as error:
                    failed += 1
                    said = f"BROKEN  {type(error).__name__}: {error}"
                    traceback.print_exc()
                print(f"{name:<38} {time.monotonic() - began:4.0f} s  {said}", flush=True)
        finally:
            print(stage.down().strip().replace("\n", "; "), flush=True)
    print(f"{len(chosen)} rows, {len(chosen) - failed} hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
