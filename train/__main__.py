"""``python -P -m train RUN``: one session of training. The supervisor starts this; people use ``layl train``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from core.errors import LaylError
from core.process import Mark
from core.project import read_run
from core.saying import say
from train.session import Session, watch_parent
from train.start import run_session

#: How long a session whose parent is gone may still take to save.
SAVE_GRACE_SECONDS = 120.0


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m train", description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--root", type=Path, required=True, help="the project's folder")
    parser.add_argument("--session", required=True, help="id of the session")
    parser.add_argument("--frontend", default="shell", choices=["shell", "dvc", "prefect"])
    parser.add_argument("--flow-run", help="id of the Prefect flow run that asks")
    parser.add_argument(
        "--supervisor", type=Mark.parse, help="PID:START_TIME of who started this; its end and stdin's are watched"
    )
    parser.add_argument(
        "--watch", type=Mark.parse, help="PID:START_TIME of a further process whose end ends the session"
    )
    parser.add_argument("--stop-at", type=float, help="Unix seconds at which the session ends")
    parser.add_argument("--until-step", type=int, help="absolute step at which the session ends")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override of the configuration")
    parser.add_argument("--on-change", default="refuse", choices=["refuse", "archive"])
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(sys.argv[1:] if argv is None else argv)
    try:
        run, config = read_run(args.root, args.run, args.set)
        session = Session(run, args.session, stop_at=args.stop_at, until_step=args.until_step)
        with session.signals():
            watched = [mark for mark in (args.supervisor, args.watch) if mark is not None]
            watch_parent(session, watched, stdin=args.supervisor is not None, grace_seconds=SAVE_GRACE_SECONDS)
            outcome = run_session(
                run, config, session, frontend=args.frontend, on_change=args.on_change, flow_run=args.flow_run
            )
            return outcome.exit_code
    except LaylError as error:
        say(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
