"""A child trainer: started, followed and stopped. No Prefect here; whoever wants to hear of events passes a listener.

The child lives in a session of its own (POSIX) or a process group of its own (Windows), so that a Ctrl+C or a
killed front end never cuts it in the middle of a save.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from core.control import Action, StopRequest, ask_to_stop, read_request
from core.errors import BusyError
from core.events import TERMINAL, Emit, Event, Follower, Saved, Started
from core.lock import hold
from core.outcome import Outcome
from core.process import Mark, mark_of
from core.run_dir import RunDir, read_json, write_json
from tasks.ending import Ending, tail, what_it_means
from tasks.watchdog import Seen, patience, verdict

log = logging.getLogger("layl")

CHECKOUT = Path(__file__).resolve().parent.parent
#: A trainer killed this moment may leave loader processes that hold its lock until they notice.
LOCK_WAIT_SECONDS = 5.0
OUTPUT_READ_BYTES = 65_536
#: How long a supervisor that was told to go waits for its child: Prefect kills it 30 s after the first signal.
LEAVE_SECONDS = 25.0


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """What a front end asks for: one session of one run, within limits. ``stop_at`` is in Unix seconds."""

    run: RunDir
    session: str
    frontend: str = "shell"
    stop_at: float | None = None
    until_step: int | None = None
    overrides: tuple[str, ...] = ()
    on_change: str = "refuse"
    on_cancel: Action = "save"
    flow_run: str | None = None
    watch: Mark | None = None


def new_session_id(now: datetime, token: str | None = None) -> str:
    """A session's id, sortable by time; ``token`` tells apart two of the same second."""
    return f"{now:%Y%m%d-%H%M%S}-{token or secrets.token_hex(3)}"


def trainer_command(wanted: SessionRequest, supervisor: Mark) -> list[str]:
    """The command line of the child. Without ``-P`` a folder named core or train where it runs would be imported."""
    options: list[str] = ["--root", str(wanted.run.root), "--session", wanted.session, "--frontend", wanted.frontend]
    options += ["--supervisor", str(supervisor)]
    if wanted.watch is not None:
        options += ["--watch", str(wanted.watch)]
    if wanted.flow_run is not None:
        options += ["--flow-run", wanted.flow_run]
    if wanted.stop_at is not None:
        options += ["--stop-at", f"{wanted.stop_at:.3f}"]
    if wanted.until_step is not None:
        options += ["--until-step", str(wanted.until_step)]
    for override in wanted.overrides:
        options += ["--set", override]
    options += ["--on-change", wanted.on_change]
    return [sys.executable, "-P", "-m", "train", wanted.run.name, *options]


def trainer_environment(environ: Mapping[str, str], checkout: Path = CHECKOUT) -> dict[str, str]:
    """The child's environment: finds this layl from any folder, and prints Arabic, unbuffered, on every system."""
    changed = {**environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    # Threads that spin long while they wait for each other hold a training up when others compute on the same cores.
    # Two threads beside another two-thread torch process, 12 s each, three times: 119, 154, 145 x real time with short
    # spinning; 78 x and twice next to nothing without. On a quiet machine it costs a few per cent, sleeping a quarter.
    if "OMP_WAIT_POLICY" not in environ:
        changed.setdefault("GOMP_SPINCOUNT", "1000")
    # an installed layl is found anyway, and site-packages ahead of the standard library would shadow it
    if checkout != Path(sysconfig.get_path("purelib")).resolve():
        changed["PYTHONPATH"] = os.pathsep.join(p for p in (str(checkout), environ.get("PYTHONPATH", "")) if p)
    return changed


def supervise(
    wanted: SessionRequest,
    listeners: Sequence[Emit] = (),
    *,
    say: Callable[[str], None] = print,
    command: Callable[[SessionRequest, Mark], list[str]] = trainer_command,
    clock: Callable[[], float] = time.time,
    poll_seconds: float = 0.2,
    own_signals: bool = True,
) -> Outcome:
    """Train in a child until it ends, handing each of its events to the listeners; how long it takes is up to people.

    Ctrl+C, SIGTERM and SIGHUP ask for a stop with save; again: the child leaves at once; a third time: it is killed.
    Without ``own_signals`` they are left to whoever hears them in this process, and raises. Any other exception asks
    the child to end as ``on_cancel`` says, closes its stdin, gives it LEAVE_SECONDS and is raised again.
    """
    run, since = wanted.run, clock()
    standing = read_request(run)
    if standing and standing.session == wanted.session:
        step = _step_of(run.last_facts)
        kind = "discarded" if standing.action == "discard" else "stopped"
        return Outcome(kind, step, step, f"asked to stop ({standing.by or 'somebody'}) before it started")
    run.path.mkdir(parents=True, exist_ok=True)
    feed = _Feed(wanted, listeners)
    with run.output.open("ab") as output, run.output.open("rb") as written, _stop_signals(own_signals) as signals:
        began_at = written.seek(0, os.SEEK_END)
        child = _start(command(wanted, mark_of()), run.root, output)
        try:
            _wait(child, feed, signals, wanted, since, say, clock, poll_seconds)
        except BaseException as error:
            _ask(wanted, type(error).__name__, clock(), say, wanted.on_cancel)
            _end_input(child)
            _signal(child)
            with suppress(subprocess.TimeoutExpired):
                # no longer: who cancels kills this process, and the child, in a session of its own, goes on saving
                child.wait(LEAVE_SECONDS)
            feed.drain()
            raise
        finally:
            _end_input(child)
        feed.drain()
        words = _end_of(written, began_at)
    ending = _ending(child.returncode, feed, words, since, bool(signals.count))
    outcome = what_it_means(ending)
    if ending.result is None and outcome.kind not in ("busy", "invalid"):
        _record(wanted, outcome, clock(), say)
    return outcome


def _ending(code: int, feed: _Feed, words: str, since: float, signalled: bool) -> Ending:
    run, session = feed.wanted.run, feed.wanted.session
    request = read_request(run)
    asked: Action | None = request.action if request and request.concerns(session, since) else None
    return Ending(
        code=code,
        result=_own_result(run, session),
        last_event=feed.last_terminal,
        asked=asked or ("save" if signalled else None),
        from_step=feed.from_step,
        saved_step=_step_of(run.last_facts),
        words=tail(words),
    )


def _end_of(written: BinaryIO, began_at: int) -> str:
    end = written.seek(0, os.SEEK_END)
    written.seek(max(began_at, end - OUTPUT_READ_BYTES))
    return written.read().decode("utf-8", errors="replace")


def _start(arguments: list[str], root: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        arguments,
        cwd=root,
        env=trainer_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=os.name != "nt",
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _wait(
    child: subprocess.Popen[bytes],
    feed: _Feed,
    signals: _Signals,
    wanted: SessionRequest,
    since: float,
    say: Callable[[str], None],
    clock: Callable[[], float],
    poll_seconds: float,
) -> None:
    passed_on = 0
    watch = _Watch(child, feed, since, clock, say)
    while child.poll() is None:
        feed.drain()
        watch.look()
        if signals.count > passed_on:
            passed_on += 1
            if passed_on == 1:
                _ask(wanted, signals.last, clock(), say)
                _say(say, "stopping: the step is finished and saved; once more leaves at once, without saving")
            elif passed_on == 2:
                _say(say, "leaving at once; the last checkpoint stays as it is")
            if passed_on < 3:
                _signal(child)
            else:
                _kill(child)
            continue
        time.sleep(poll_seconds)


class _Watch:
    """Ends a child that does not: the watchdog's verdicts, carried out."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        feed: _Feed,
        since: float,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ):
        self._child, self._feed, self._since, self._clock, self._say = child, feed, since, clock, say
        self._patience = patience(os.environ)
        self._seen = Seen()

    def look(self) -> None:
        now, feed = self._clock(), self._feed
        request = read_request(feed.wanted.run)
        ours = request if request and request.concerns(feed.wanted.session, self._since) else None
        self._seen = replace(
            self._seen,
            asked=ours.action if ours else None,
            # a clock of before, or of another machine, gives no reason to hurry
            asked_at=None if ours is None else self._seen.asked_at if self._seen.asked == ours.action else now,
            saved_at=now if feed.take_saved() else self._seen.saved_at,
            ended_at=(self._seen.ended_at or now) if feed.last_terminal is not None else None,
        )
        match verdict(self._seen, now, self._patience):
            case "terminate":
                _say(self._say, "the trainer does not end by itself: it is told to leave at once")
                self._seen = replace(self._seen, terminated_at=now)
                _signal(self._child)
            case "kill":
                _say(self._say, "the trainer hears nothing: it is killed; the last checkpoint stays as it is")
                _kill(self._child)
            case "wait":
                pass


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The child with its loader processes, which are of its group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()


def _signal(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        # a process group of its own is deaf to Ctrl+C on Windows, not to Ctrl+Break
        child.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))


def _end_input(child: subprocess.Popen[bytes]) -> None:
    if child.stdin:
        child.stdin.close()


def _ask(wanted: SessionRequest, by: str, now: float, say: Callable[[str], None], action: Action = "save") -> None:
    request = StopRequest(request=secrets.token_hex(6), session=wanted.session, action=action, by=by, at=now)
    try:
        ask_to_stop(wanted.run, request)
    except OSError as error:
        _say(say, f"the request to stop could not be written down ({error}); the trainer is told by a signal alone")


def _say(say: Callable[[str], None], sentence: str) -> None:
    try:
        say(sentence)
    except OSError as error:
        # the terminal is gone: that is often why we are stopping
        log.debug("cannot say %r: %s", sentence, error)


class _Feed:
    """The events of this session, handed on: those of a session that held the run before are not ours."""

    def __init__(self, wanted: SessionRequest, listeners: Sequence[Emit]):
        self.wanted = wanted
        self.from_step = _step_of(wanted.run.last_facts)
        self.last_terminal: Event | None = None
        self._saved = False
        self._listeners = listeners
        self._ours = False
        self._follower = Follower(wanted.run.events, from_end=True)

    def drain(self) -> None:
        try:
            events = [event for event, _ in self._follower.poll()]
        except OSError as error:
            log.warning("cannot read %s now: %s", self.wanted.run.events, error)
            return
        if not self._ours and events:
            owner = read_json(self.wanted.run.owner)
            self._ours = isinstance(owner, dict) and owner.get("session") == self.wanted.session
            self._ours = self._ours or any(self._starts(event) for event in events)
        for event in events if self._ours else ():
            if self._starts(event):
                self.from_step, self.last_terminal = event.step, None
            if isinstance(event, TERMINAL):
                self.last_terminal = event
            self._saved = self._saved or isinstance(event, Saved)
            for listener in self._listeners:
                self._tell(listener, event)

    def take_saved(self) -> bool:
        """Whether the child has saved since this was asked last."""
        saved, self._saved = self._saved, False
        return saved

    def _starts(self, event: Event) -> bool:
        return isinstance(event, Started) and event.session == self.wanted.session

    def _tell(self, listener: Emit, event: Event) -> None:
        try:
            listener(event)
        except Exception as error:  # whoever listens must not end the training
            log.warning("%s was not told of %s: %s: %s", listener, type(event).__name__, type(error).__name__, error)


class _Signals:
    """How often this process was asked to stop, and by what."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""

    def __call__(self, number: int, frame: object) -> None:
        self.count += 1
        self.last = signal.Signals(number).name


@contextmanager
def _stop_signals(heard: bool) -> Iterator[_Signals]:
    signals = _Signals()
    former: dict[int, Any] = {}
    if heard and threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
            number = getattr(signal, name, None)
            # an ignored signal was ignored on purpose: nohup, a job in the background
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, signals)
    try:
        yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _step_of(facts_file: Path) -> int:
    facts = read_json(facts_file)
    step = facts.get("step") if isinstance(facts, dict) else None
    return step if isinstance(step, int) else 0


def _own_result(run: RunDir, session: str) -> dict[str, Any] | None:
    result = read_json(run.result)
    return result if isinstance(result, dict) and result.get("session") == session else None


def _record(wanted: SessionRequest, outcome: Outcome, now: float, say: Callable[[str], None]) -> None:
    """Write the result that the child could not, unless another session has the run by now."""
    values = {
        "session": wanted.session,
        "outcome": outcome.kind,
        "from_step": outcome.from_step,
        "to_step": outcome.to_step,
        "reason": outcome.reason,
        "resumable": outcome.resumable,
        "exit_code": outcome.exit_code,
        "ended_at": now,
    }
    try:
        with hold(wanted.run, wait_seconds=LOCK_WAIT_SECONDS):
            write_json(wanted.run.result, values)
    except BusyError:
        log.debug("another session has the run: its result will be written by it")
    except OSError as error:
        _say(say, f"{wanted.run.result} could not be written: {error}")
