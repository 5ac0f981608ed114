"""``python -m flows.local up`` and ``down``: a Prefect server, a work pool and a worker on this machine alone.

Nothing is installed into the system: three processes, their output and their pids under ``runs/.prefect/``, and a
``prefect.toml`` in the project's folder (ignored by git) that points Prefect's commands here to this server.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.process import Mark, is_alive, mark_of
from core.run_dir import find_root, read_json, write_json, write_text

HOST = "127.0.0.1"
PORT = 4200
POOL = "layl"
#: An empty database takes half a minute.
SERVER_SECONDS = 120.0
WORKER_SECONDS = 60.0
#: Longer than a session needs to save: a worker that is told to end ends its flow.
END_SECONDS = 150.0
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    # a busy laptop keeps SQLite waiting
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    # a cancelled flow may still be telling its last words
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


class Local:
    """The processes of one project, known by pid and start time."""

    def __init__(self, root: Path, port: int):
        self.root = root
        self.folder = root / "runs" / ".prefect"
        self.port = port
        self.url = f"http://{HOST}:{port}/api"
        self.environment = {**os.environ, **QUIET, "PREFECT_API_URL": self.url}

    def up(self) -> None:
        """Start what does not run, and deploy. Raises RuntimeError with what went wrong and where it is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._answers():
            print(f"a server answers at {self.url}")
        else:
            print(f"starting a server at {self.url} (half a minute the first time)", flush=True)
            self._start("server", "server", "start", "--host", HOST, "--port", str(self.port))
            self._wait("server", self._answers, SERVER_SECONDS)
        write_text(self.root / "prefect.toml", f'# written by `make prefect-up`\n[api]\nurl = "{self.url}"\n')
        self._run("work-pool", "create", POOL, "--type", "process", "--overwrite")
        kept = self._active_schedules()
        self._run("--no-prompt", "deploy", "--all")
        self._activate(kept)
        if not self._runs("worker"):
            # one session at a time: a second one waits, and is skipped if it is late by then
            self._start("worker", "worker", "start", "--pool", POOL, "--limit", "1")
        print(f"up: the pages are at http://{HOST}:{self.port}")
        print("now: prefect deployment run train/quran")

    def down(self) -> None:
        """End worker, then server; a session that runs is saved first."""
        for name in ("worker", "server"):
            mark = self._mark(name)
            if mark is None or not is_alive(mark):
                print(f"no {name} of this project runs")
                continue
            os.kill(mark.pid, signal.SIGINT)
            deadline = time.monotonic() + END_SECONDS
            while is_alive(mark) and time.monotonic() < deadline:
                time.sleep(0.2)
            print(f"{name} ended" if not is_alive(mark) else f"{name} does not end; its pid is {mark.pid}")
        (self.root / "prefect.toml").unlink(missing_ok=True)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def _mark(self, name: str) -> Mark | None:
        try:
            return Mark.parse(str(read_json(self.folder / f"{name}.json")))
        except ValueError:
            return None

    def _runs(self, name: str) -> bool:
        mark = self._mark(name)
        return mark is not None and is_alive(mark)

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "prefect", *arguments], cwd=self.root, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=os.name != "nt",
            )  # fmt: skip
        write_json(self.folder / f"{name}.json", str(mark_of(child.pid)))

    def _wait(self, name: str, ready: Any, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline or not self._runs(name):
                raise RuntimeError(f"the {name} did not come up; {self.folder / f'{name}.log'} says why")
            time.sleep(0.3)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments], cwd=self.root, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"prefect {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )

    def _active_schedules(self) -> set[tuple[str, str]]:
        """(deployment, slug) of schedules that somebody turned on."""
        return {
            (name, schedule.slug or "")
            for name, schedules in self._schedules().items()
            for schedule, _ in schedules
            if schedule.active
        }

    def _activate(self, kept: set[tuple[str, str]]) -> None:
        """Deploying sets every schedule to what prefect.yaml says: turn on again what was on."""
        for name, schedules in self._schedules().items():
            for schedule, deployment in schedules:
                if (name, schedule.slug or "") in kept and not schedule.active:
                    with self._client() as client:
                        client.update_deployment_schedule(deployment, schedule.id, active=True)
                    print(f"{name}: schedule {schedule.slug} stays on")

    def _schedules(self) -> dict[str, list[tuple[Any, Any]]]:
        with self._client() as client:
            flows = {found.id: found.name for found in client.read_flows()}
            return {
                f"{flows[deployment.flow_id]}/{deployment.name}": [(s, deployment.id) for s in deployment.schedules]
                for deployment in client.read_deployments()
            }

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.url}), get_client(sync_client=True) as client:
            yield client


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m flows.local")
    parser.add_argument("what", choices=["up", "down"])
    parser.add_argument("--port", type=int, default=int(os.environ.get("LAYL_PREFECT_PORT", PORT)))
    args = parser.parse_args(argv)
    local = Local(find_root(), args.port)
    try:
        local.up() if args.what == "up" else local.down()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
