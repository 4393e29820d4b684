"""Parking a replica: its predictor is told to give the GPU's memory back, and says how much of the host's it keeps.

supervisor.py has it told when nobody asks any more; `beyond` says who has to go when all of them keep too much.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import quote

from pilotlight.targets.local.supervisor.asking import Answer, ask
from pilotlight.targets.local.supervisor.replica import Replica

PARK_S: Final = 120.0  # the first parking pins memory as large as the weights
STATUS_S: Final = 5.0
MEMORY: Final = Path("/proc/meminfo")
CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
BUSY: Final = 503
AGAIN_S: Final = 0.1
SHARE: Final = 0.25  # of the machine's memory, for all parked replicas together


class Outcome(NamedTuple):
    """`refused` says why it is not parked; empty: it is, and keeps so many bytes."""

    kept_bytes: int = 0
    refused: str = ""


async def park(port: int, token: str) -> Outcome:
    """All models of the replica that serve, one after the other. An ensemble has nothing to give back."""
    seen = await ask(port, "/status", STATUS_S, token=token)
    if not seen.ok or not _names(seen, "READY", "PARKED"):
        return Outcome(refused=_why("/status", seen))
    left: set[str] = set()
    for name in _names(seen, "READY"):
        path = f"/v2/repository/models/{quote(name, safe='')}/park"
        answer = await _told(port, path, token)
        if not answer.ok and not await _is_ensemble(port, name, token):
            return Outcome(refused=_why(path, answer))
        left |= set() if answer.ok else {name}
    seen = await ask(port, "/status", STATUS_S, token=token)
    awake = [name for name in _names(seen, "READY") if name not in left]
    if not seen.ok or awake:
        return Outcome(refused=f"{', '.join(awake) or 'its state'} was not parked when all had been told to")
    return Outcome(int(seen.json().get("parked_bytes") or 0))


def _names(status: Answer, *states: str) -> list[str]:
    rows = status.json().get("models") or ()
    return list(dict.fromkeys(str(row.get("name")) for row in rows if row.get("state") in states))


async def _is_ensemble(port: int, name: str, token: str) -> bool:
    found = await ask(port, f"/v2/models/{quote(name, safe='')}/config", STATUS_S, token=token)
    return "ensemble_scheduling" in found.json()


async def _told(port: int, path: str, token: str) -> Answer:
    """Again while it is busy: what was on its way when the gateway took it off the table is answered first."""
    until = monotonic() + PARK_S
    while True:
        answer = await ask(port, path, PARK_S, tell=True, token=token)
        if answer.status != BUSY or monotonic() > until:
            return answer
        await asyncio.sleep(AGAIN_S)


def _why(path: str, answer: Answer) -> str:
    return str(answer.json().get("error") or f"{path} answered {answer.status or 'nothing'}")


def beyond(replicas: Sequence[Replica], budget: int) -> list[Replica]:
    """Those that end so that the others keep no more than the budget: whoever has been parked longest goes first.

    One that serves again keeps its memory for the next time, and does not end.
    """
    over, leaving = sum(replica.parked_bytes for replica in replicas) - budget, list[Replica]()
    for replica in sorted(replicas, key=lambda replica: replica.parked_at):
        if over <= 0:
            break
        if replica.parked_bytes and replica.state == "parked":
            leaving.append(replica)
            over -= replica.parked_bytes
    return leaving


def budget(meminfo: str, limit: str) -> int:
    """Bytes, by what /proc/meminfo says of the machine and memory.max of the container that we may be in."""
    lines = (line.split() for line in meminfo.splitlines())
    total = next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemTotal:"), 0)
    return int((min(total, int(limit)) if limit.strip().isdigit() else total) * SHARE)


def machine_budget() -> int:
    limit = ""
    with suppress(OSError):
        limit = CONTAINER_LIMIT.read_text()
    return budget(MEMORY.read_text(), limit)
