"""Servers that park themselves when they are called for it: our predictor, and engines that can sleep.

Our predictor moves the weights of each model to host memory. `sleep` in catalogue/engine_programs.yaml has the engines.
All keep process and CUDA context.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pilotlight.catalogue.engine_programs import SleepCall, SleepSupport, engines
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.wire.http_client import LoopbackResponse, request

PARK_S: Final = 120.0  # the first parking pins host memory of the size of the weights
SLEEP_S: Final = 300.0  # weights to host memory, or again from their files
STATUS_S: Final = 5.0
LINK_BYTES_PER_S: Final = 10e9  # from pinned memory to a GPU, at least (PCIe 3.0 x16: 12 GB/s)
BUSY: Final = 503
RETRY_S: Final = 0.1


class ParkResult(NamedTuple):
    """Host memory in use, or why it was not parked; `never`: nor will it be another time."""

    host_bytes: int = 0
    wake_s: float = 0.0  # mean of its wakes so far, 0: none
    error: str = ""
    never: bool = False
    checkpointed: bool = False
    discarded: bool = False  # the weights are not in host memory: its engine loads them again
    known_answer: str = ""


def swap_seconds(result: ParkResult, parking_s: float) -> float:
    """Return what the next parking and wake will take: as the last ones, before the first wake by the bytes alone.

    The first parking allocates the host memory and copies the weights to it, which later ones need not.
    """
    return parking_s + result.wake_s if result.wake_s else result.host_bytes / LINK_BYTES_PER_S


async def park_predictor(replica: Replica, token: str) -> ParkResult:
    """Park all ready models of a replica, one after the other; ensembles hold no GPU memory and are skipped."""
    send = partial(request, replica.port, host=replica.host, token=token)
    status = await send("/status", STATUS_S)
    if not status.ok or not _names(status, "READY", "PARKED"):
        return ParkResult(error=_error("/status", status))
    ensembles: set[str] = set()
    for name in _names(status, "READY"):
        path = f"/v2/repository/models/{quote(name, safe='')}/park"
        response = await _request_park(send, path)
        if not response.ok:
            config = await send(f"/v2/models/{quote(name, safe='')}/config", STATUS_S)
            if "ensemble_scheduling" not in config.json():
                return ParkResult(error=_error(path, response))
            ensembles.add(name)
    status = await send("/status", STATUS_S)
    awake = [name for name in _names(status, "READY") if name not in ensembles]
    if not status.ok or awake:
        return ParkResult(error=f"{', '.join(awake) or 'its state'} was not parked")
    found = status.json()
    return ParkResult(int(found.get("parked_bytes") or 0), float(found.get("wake_seconds") or 0.0))


def _names(status: LoopbackResponse, *states: str) -> list[str]:
    rows = status.json().get("models") or ()
    return list(dict.fromkeys(str(row.get("name")) for row in rows if row.get("state") in states))


async def _request_park(send: "partial[Coroutine[Any, Any, LoopbackResponse]]", path: str) -> LoopbackResponse:
    """Retry while the model is busy: requests routed before the table changed are finished first."""
    until = monotonic() + PARK_S
    while True:
        response = await send(path, PARK_S, post=True)
        if response.status != BUSY or monotonic() > until:
            return response
        await asyncio.sleep(RETRY_S)


def _error(path: str, answer: LoopbackResponse) -> str:
    return str(answer.json().get("error") or f"{path} answered {answer.status or 'nothing'}")


def _sleep_of(replica: Replica) -> SleepSupport:
    return next(each.sleep for each in engines() if each.name == replica.parking.engine and each.sleep is not None)


async def sleep_engine(replica: Replica, *, discard: bool) -> str:
    """Free the GPU memory; `discard`: keep no weights in host memory. Return the error, empty: it sleeps."""
    support = _sleep_of(replica)
    if error := await _post_all(replica, (support.discard if discard and support.discard else support.sleep,)):
        return error
    if support.asleep:
        state = await request(replica.port, support.asleep, STATUS_S, host=replica.host)
        if b"true" not in state.body:
            return f"{support.asleep} responded {state.body[:100].decode(errors='replace') or state.status}"
    return ""


async def wake_engine(replica: Replica) -> str:
    """Return the error; empty: it has its memory again."""
    support = _sleep_of(replica)
    return await _post_all(replica, support.reload if replica.discarded else support.wake)


async def _post_all(replica: Replica, calls: Iterable[SleepCall]) -> str:
    for call in calls:
        response = await request(
            replica.port, call.path, SLEEP_S, host=replica.host, post=True, body=call.body.encode()
        )
        if not response.ok:
            detail = response.body[:200].decode(errors="replace")
            return f"{call.path} responded {response.status or 'nothing'}{f': {detail}' if detail else ''}"
    return ""
