"""Follows one replica by its probes, from the start to its end: asks, counts, and tells what changed."""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, Protocol

from pilotlight.targets.local.model import Probe
from pilotlight.targets.local.supervisor.asking import ask
from pilotlight.targets.local.supervisor.probes import Tally, start_failed, start_interval, tally
from pilotlight.targets.local.supervisor.replica import Checks, Replica

Json = Any
STATUS_S: Final = 0.1  # between two looks at /status while it starts
STATUS_TIMEOUT_S: Final = 1.0
SHOWN: Final = ("state", "reason", "progress", "phases")
STOPPING: Final = "stopping"  # the state of a predictor that was told to end
TOTAL: Final = "total"  # the phase that is told once all others are over


class Followed(Protocol):
    """Who is told. Each is called from the event loop and must return at once."""

    def became_ready(self) -> None: ...
    def became_unready(self, reason: str) -> None: ...
    def learned(self, status: Mapping[str, Json]) -> None: ...
    def failed_to_start(self, reason: str) -> None: ...
    def hung(self, reason: str) -> None: ...


async def follow(replica: Replica, told: Followed, age_s: float = 0.0) -> None:
    """Until it is cancelled. One that was ready before, under another supervisor, is not asked to start again."""
    checks = replica.checks
    began = monotonic() - age_s
    starting = replica.state == "starting"
    alive = asyncio.ensure_future(_watch_life(checks, told, age_s)) if not (starting and checks.startup) else None
    try:
        if starting:
            if not await _start(checks, told, began):
                return
            told.became_ready()
            alive = alive or asyncio.ensure_future(_watch_life(checks, told, monotonic() - began))
        known = not checks.predictor or await _start_known(checks, told)
        await _serve(checks, told, replica.state != "unready", known)
    finally:
        if alive is not None:
            alive.cancel()


async def _start(checks: Checks, told: Followed, began: float) -> bool:
    """Whether it became ready. It fails at once when the predictor says that it cannot."""
    pending = _to_pass(checks)
    looked, said = monotonic(), ""
    while True:
        if (await ask(pending[0].port, pending[0].path, pending[0].timeout_s)).ok:
            pending.pop(0)
            if not pending:
                return True
            continue
        now = monotonic()
        if checks.predictor and now - looked >= STATUS_S:
            looked, status = now, await _look(checks, told)
            said = str(status.get("reason") or said)
            if status.get("state") == "failed":
                told.failed_to_start(said)
                return False
            if status.get("state") == "ready":
                continue
        if now - began > checks.start_budget_s:
            told.failed_to_start(start_failed(checks.startup, checks.start_budget_s, said))
            return False
        await asyncio.sleep(start_interval(now - began))


def _to_pass(checks: Checks) -> list[Probe]:
    """A startupProbe that asks what readiness asks is not asked twice."""
    first, ready = checks.startup, checks.readiness
    same = first is None or (first.port, first.path) == (ready.port, ready.path)
    return [ready] if same or first is None else [first, ready]


async def _look(checks: Checks, told: Followed) -> Mapping[str, Json]:
    answer = await ask(checks.readiness.port, "/status", STATUS_TIMEOUT_S)
    status = {name: value for name, value in answer.json().items() if name in SHOWN} if answer.ok else {}
    if status:
        told.learned(status)
    return status


async def state_of(checks: Checks) -> str:
    """Of its life, as the predictor names it; empty: it does not answer."""
    answer = await ask(checks.readiness.port, "/status", STATUS_TIMEOUT_S)
    return str(answer.json().get("state") or "") if answer.ok else ""


async def _start_known(checks: Checks, told: Followed) -> bool:
    return TOTAL in (await _look(checks, told)).get("phases", ())


async def _serve(checks: Checks, told: Followed, holds: bool, known: bool) -> None:
    """Readiness of a replica that has started. While it is ready, its start is asked for until that is `known`."""
    count = Tally(checks.readiness, monotonic() + checks.readiness.period_s, holds)
    while True:
        await asyncio.sleep(count.due - monotonic())
        passed = await _passes(count)
        known = known or (passed and await _start_known(checks, told))
        if not count.note(passed, monotonic()):
            continue
        if count.holds:
            told.became_ready()
            continue
        told.became_unready(_failed("readiness", count))
        said = (await _look(checks, told)).get("reason") if checks.predictor else ""
        if said:
            told.became_unready(str(said))


async def _watch_life(checks: Checks, told: Followed, age_s: float) -> None:
    count = tally(checks.liveness, monotonic(), age_s)
    while count is not None:
        await asyncio.sleep(count.due - monotonic())
        if count.note(await _passes(count), monotonic()):
            told.hung(_failed("liveness", count))
            return


async def _passes(count: Tally) -> bool:
    return (await ask(count.probe.port, count.probe.path, count.probe.timeout_s)).ok


def _failed(kind: str, count: Tally) -> str:
    return f"{kind} probe failed {count.probe.failure_threshold} times"
