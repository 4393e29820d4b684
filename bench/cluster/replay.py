"""One load generator for all: replays the trace against several autoscalers at once and counts their replicas.

Open loop: a request is sent when it is due, however long others take, so that nobody gets less for being slow.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.cluster.scalers import Scaler
from bench.cluster.trace import SERVICE_S, Piece, length, sendings

if TYPE_CHECKING:
    from aiohttp import ClientSession

SAMPLE_S: Final = 1.0
ANSWER_S: Final = 60.0
BODY: Final = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [SERVICE_S]}]})


@dataclass(slots=True)
class Played:
    """Replicas second by second, and what became of the requests."""

    name: str
    wanted: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def play(trace: Sequence[Piece], scalers: Sequence[Scaler]) -> list[Played]:
    return asyncio.run(_play(trace, scalers))


async def _play(trace: Sequence[Piece], scalers: Sequence[Scaler]) -> list[Played]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    played = [Played(scaler.name) for scaler in scalers]
    async with AsyncExitStack() as stack:
        begin = time.monotonic() + 1
        async with asyncio.TaskGroup() as group:
            for scaler, result in zip(scalers, played, strict=True):
                connector = aiohttp.TCPConnector(limit=0)
                session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
                group.create_task(_send(session, scaler, trace, begin, result))
                group.create_task(_sample(scaler, length(trace), begin, result))
    return played


async def _send(session: "ClientSession", scaler: Scaler, trace: Sequence[Piece], begin: float, result: Played) -> None:
    async with asyncio.TaskGroup() as group:
        for at in sendings(trace):
            await asyncio.sleep(begin + at - time.monotonic())
            group.create_task(_ask(session, scaler, result))


async def _ask(session: "ClientSession", scaler: Scaler, result: Played) -> None:
    import aiohttp

    headers = {"Content-Type": "application/json", **scaler.headers}
    asked = time.monotonic()
    try:
        async with session.post(scaler.base + scaler.path, data=BODY, headers=headers) as answer:
            text = await answer.text()
            if answer.status != 200:
                result.failed.append(f"{answer.status} {text[:200]}")
    except (aiohttp.ClientError, TimeoutError) as error:
        result.failed.append(repr(error))
    result.seconds.append(round(time.monotonic() - asked, 4))


async def _sample(scaler: Scaler, seconds: float, begin: float, result: Played) -> None:
    for number in range(round(seconds / SAMPLE_S)):
        await asyncio.sleep(begin + number * SAMPLE_S - time.monotonic())
        counted = await asyncio.to_thread(scaler.count)
        result.wanted.append(counted.wanted)
        result.ready.append(counted.ready)


def summary(played: Played) -> dict[str, Any]:
    """As it is kept: the series, and the requests in a few figures."""
    ordered = sorted(played.seconds)
    return {
        "wanted": played.wanted, "ready": played.ready, "requests": len(ordered), "failed": len(played.failed),
        "failures": sorted(set(played.failed))[:5], "p50_s": _at(ordered, 0.5), "p99_s": _at(ordered, 0.99),
        "longest_s": ordered[-1] if ordered else 0.0,
    }  # fmt: skip


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
