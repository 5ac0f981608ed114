"""Which flow run drives a session: written down with its process, so that the next flow can tell one that died.

After a power cut, when worker and flow are killed together, or when the server was away at the end, nobody tells the
server: that flow run says Running for ever. ``flow.json`` outlives them all.
"""

from __future__ import annotations

import os
from typing import Any

from core.process import owner_facts, owner_is_alive
from core.run_dir import RunDir, read_json, write_json


def take_over(run: RunDir, flow_run: str, session: str) -> str | None:
    """Be the run's driver from now on; returns the flow run of a driver before whose process is gone, or None.

    Whether that one could still tell its end, only the server knows. A driver that lives stays what it is: this one
    will find the run busy.
    """
    before = read_json(run.flow)
    if _lives_elsewhere(before):
        return None
    run.path.mkdir(parents=True, exist_ok=True)
    write_json(run.flow, owner_facts("prefect", session, flow_run))
    gone = before.get("flow_run") if isinstance(before, dict) else None
    return gone if isinstance(gone, str) and gone != flow_run else None


def _lives_elsewhere(driver: Any) -> bool:
    # one of before in this very process has ended, or this one could not have begun
    return owner_is_alive(driver) and driver.get("pid") != os.getpid()
