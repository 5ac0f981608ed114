"""What is asked of the Prefect server beside reports; it may be gone, and then nothing depends on it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.states import Crashed


def mark_crashed(flow_run: str, why: str, logger: Any) -> bool:
    """Give a flow run that says it runs, and whose process is gone, its end; whether it needed one."""
    try:
        with get_client(sync_client=True) as client:
            found = client.read_flow_run(UUID(flow_run))
            if found.state is None or found.state.is_final():
                return False
            client.set_flow_run_state(UUID(flow_run), Crashed(message=why), force=True)
    except Exception as error:  # a run of another server, or no server: training does not depend on it
        logger.warning("flow run %s could not be marked as crashed: %s: %s", flow_run, type(error).__name__, error)
        return False
    logger.info("flow run %s was left running by a process that is gone; marked as crashed: %s", found.name, why)
    return True
