"""Parking of replicas: the predictor moves its models from GPU to host memory and keeps its process.

Called by supervisor.py at scale to zero; `over_budget` selects parked replicas to end when they hold too much memory.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import quote

from pilotlight.targets.local.supervisor.asking import LoopbackResponse, request
from pilotlight.targets.local.supervisor.replica import Replica

PARK_S: Final = 120.0  # the first parking pins host memory of the size of the weights
STATUS_S: Final = 5.0
MEMORY: Final = Path("/proc/meminfo")
CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
BUSY: Final = 503
RETRY_S: Final = 0.1
MEMORY_SHARE: Final = 0.25  # of the machine's memory, for all parked replicas together


class ParkResult(NamedTuple):
    """Result of parking: host memory in use, or the error."""

    host_bytes: int = 0
    error: str = ""


async def park(port: int, token: str) -> ParkResult:
    """Park all ready models of a replica, one after the other; ensembles hold no GPU memory and are skipped."""
    status = await request(port, "/status", STATUS_S, token=token)
    if not status.ok or not _names(status, "READY", "PARKED"):
        return ParkResult(error=_error("/status", status))
    ensembles: set[str] = set()
    for name in _names(status, "READY"):
        path = f"/v2/repository/models/{quote(name, safe='')}/park"
        response = await _request_park(port, path, token)
        if not response.ok and not await _is_ensemble(port, name, token):
            return ParkResult(error=_error(path, response))
        ensembles |= set() if response.ok else {name}
    status = await request(port, "/status", STATUS_S, token=token)
    awake = [name for name in _names(status, "READY") if name not in ensembles]
    if not status.ok or awake:
        return ParkResult(error=f"{', '.join(awake) or 'its state'} was not parked when all had been told to")
    return ParkResult(int(status.json().get("parked_bytes") or 0))


def _names(status: LoopbackResponse, *states: str) -> list[str]:
    rows = status.json().get("models") or ()
    return list(dict.fromkeys(str(row.get("name")) for row in rows if row.get("state") in states))


async def _is_ensemble(port: int, name: str, token: str) -> bool:
    config = await request(port, f"/v2/models/{quote(name, safe='')}/config", STATUS_S, token=token)
    return "ensemble_scheduling" in config.json()


async def _request_park(port: int, path: str, token: str) -> LoopbackResponse:
    """Retry while the model is busy: requests routed before the table changed are finished first."""
    until = monotonic() + PARK_S
    while True:
        response = await request(port, path, PARK_S, post=True, token=token)
        if response.status != BUSY or monotonic() > until:
            return response
        await asyncio.sleep(RETRY_S)


def _error(path: str, answer: LoopbackResponse) -> str:
    return str(answer.json().get("error") or f"{path} answered {answer.status or 'nothing'}")


def over_budget(replicas: Sequence[Replica], budget: int) -> list[Replica]:
    """Return the parked replicas to end so that the rest stays within `budget` bytes, longest parked first.

    A replica that is ready again still holds its host memory: it counts, but is not ended.
    """
    over, leaving = sum(replica.parked_bytes for replica in replicas) - budget, list[Replica]()
    for replica in sorted(replicas, key=lambda replica: replica.parked_at):
        if over <= 0:
            break
        if replica.parked_bytes and replica.state == "parked":
            leaving.append(replica)
            over -= replica.parked_bytes
    return leaving


def parking_budget(meminfo: str, limit: str) -> int:
    """Return the budget in bytes, from /proc/meminfo and the memory.max of a surrounding container."""
    lines = (line.split() for line in meminfo.splitlines())
    total = next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemTotal:"), 0)
    return int((min(total, int(limit)) if limit.strip().isdigit() else total) * MEMORY_SHARE)


def machine_budget() -> int:
    limit = ""
    with suppress(OSError):
        limit = CONTAINER_LIMIT.read_text()
    return parking_budget(MEMORY.read_text(), limit)
