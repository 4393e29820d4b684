"""Probes of one replica: startup, then readiness and liveness, reported to an observer.

As in Knative a starting replica is probed every few milliseconds whatever the startupProbe's period: the probe only
sets the budget of the start, so readiness is not delayed by the rest of a period. Thresholds and intervals are pure.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.supervisor.replica_record import Checks, Replica
from pilotlight.wire.http_client import accepts_connections, request

Json = Any
MIN_INTERVAL_S: Final = 0.01
MAX_INTERVAL_S: Final = 0.1
RELATIVE_INTERVAL: Final = 0.05  # a start that took 1 s is seen at most 50 ms late
STATUS_S: Final = 0.1  # between two reads of /status during startup
STATUS_TIMEOUT_S: Final = 1.0
STATUS_FIELDS: Final = ("state", "reason", "progress", "phases", "verified", "unverified_failures", "warmup_failure")
STOPPING: Final = "stopping"  # state of a predictor that is shutting down
TOTAL_PHASE: Final = "total"  # reported once all other phases are over


class ReplicaObserver(Protocol):
    """Callbacks of the probe loops, called from the event loop; must return at once."""

    def on_ready(self) -> None: ...
    def on_unready(self, reason: str) -> None: ...
    def on_status(self, status: Mapping[str, Json]) -> None: ...
    def on_start_failed(self, reason: str) -> None: ...
    def on_liveness_failed(self, reason: str) -> None: ...


@dataclass
class ProbeCounter:
    """Consecutive results of one probe. `passing` changes only when a threshold is reached."""

    probe: Probe
    due: float
    passing: bool = True
    failures: int = 0
    successes: int = 0

    def record(self, ok: bool, now: float) -> bool:
        """Count a result; return whether `passing` changed."""
        self.due = now + self.probe.period_s
        self.successes = self.successes + 1 if ok else 0
        self.failures = 0 if ok else self.failures + 1
        before = self.passing
        if self.failures >= self.probe.failure_threshold:
            self.passing = False
        elif self.successes >= self.probe.success_threshold:
            self.passing = True
        return self.passing != before


async def run_probes(replica: Replica, observer: ReplicaObserver, age_s: float = 0.0) -> None:
    """Probe a replica until cancelled. One that has been ready, under another supervisor, skips startup."""
    checks = replica.checks
    began = monotonic() - age_s
    starting = replica.state == "starting"
    alive = (
        asyncio.ensure_future(_watch_liveness(checks, observer, age_s)) if not (starting and checks.startup) else None
    )
    try:
        if starting:
            if not await _await_startup(checks, observer, began):
                return
            observer.on_ready()
            alive = alive or asyncio.ensure_future(_watch_liveness(checks, observer, monotonic() - began))
        known = not checks.predictor or await _startup_recorded(checks, observer)
        await _watch_readiness(checks, observer, replica.state != "unready", known)
    finally:
        if alive is not None:
            alive.cancel()


def start_interval(elapsed_s: float) -> float:
    """Return the seconds to the next probe of a replica that has been starting for `elapsed_s`."""
    return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, elapsed_s * RELATIVE_INTERVAL))


def start_budget(startup: Probe | None, progress_deadline_s: float) -> float:
    """Return the seconds that a start may take: by the startupProbe, else the progress deadline."""
    if startup is None:
        return progress_deadline_s
    return startup.initial_delay_s + startup.period_s * startup.failure_threshold


def start_failed(startup: Probe | None, budget_s: float, last_reason: str) -> str:
    """Return why a start that exceeded its budget was ended, with the predictor's last reason."""
    reason = f": {last_reason}" if last_reason else ""
    if startup is None:
        return f"not ready within the progress deadline of {budget_s:g} s{reason}"
    return f"startup probe failed {startup.failure_threshold} times in {budget_s:g} s{reason}"


async def _await_startup(checks: Checks, observer: ReplicaObserver, began: float) -> bool:
    """Return whether it became ready; fails at once when the predictor reports `failed`."""
    first, ready = checks.startup, checks.readiness
    # A startupProbe equal to readiness is not run twice.
    pending = [ready] if first is None or (first.port, first.path) == (ready.port, ready.path) else [first, ready]
    status_at, reason = monotonic(), ""
    while True:
        if await _passes(pending[0], checks.host):
            pending.pop(0)
            if not pending:
                return True
            continue
        now = monotonic()
        if checks.predictor and now - status_at >= STATUS_S:
            status_at, status = now, await read_status(checks, observer)
            reason = str(status.get("reason") or reason)
            if status.get("state") == "failed":
                observer.on_start_failed(reason)
                return False
            if status.get("state") == "ready":
                continue
        if now - began > checks.start_budget_s:
            observer.on_start_failed(start_failed(checks.startup, checks.start_budget_s, reason))
            return False
        await asyncio.sleep(start_interval(now - began))


async def read_status(checks: Checks, observer: ReplicaObserver) -> Mapping[str, Json]:
    """Read and report the predictor's /status; empty: no response, or it needs a token."""
    answer = await request(checks.readiness.port, "/status", STATUS_TIMEOUT_S, host=checks.host)
    status = {name: value for name, value in answer.json().items() if name in STATUS_FIELDS} if answer.ok else {}
    if status:
        observer.on_status(status)
    return status


async def predictor_state(checks: Checks) -> str:
    """Return the predictor's lifecycle state; empty: no response."""
    answer = await request(checks.readiness.port, "/status", STATUS_TIMEOUT_S, host=checks.host)
    return str(answer.json().get("state") or "") if answer.ok else ""


async def _startup_recorded(checks: Checks, observer: ReplicaObserver) -> bool:
    return TOTAL_PHASE in (await read_status(checks, observer)).get("phases", ())


async def _watch_readiness(checks: Checks, observer: ReplicaObserver, holds: bool, known: bool) -> None:
    """Watch readiness after startup, and read /status until the startup phases are `known`."""
    count = ProbeCounter(checks.readiness, monotonic() + checks.readiness.period_s, holds)
    while True:
        await asyncio.sleep(count.due - monotonic())
        passed = await _passes(count.probe, checks.host)
        known = known or (passed and await _startup_recorded(checks, observer))
        if not count.record(passed, monotonic()):
            continue
        if count.passing:
            observer.on_ready()
            continue
        observer.on_unready(_failure_reason("readiness", count))
        reason = (await read_status(checks, observer)).get("reason") if checks.predictor else ""
        if reason:
            observer.on_unready(str(reason))


async def _watch_liveness(checks: Checks, observer: ReplicaObserver, age_s: float) -> None:
    if (probe := checks.liveness) is None:
        return
    # The initial delay runs from the start of the process.
    count = ProbeCounter(probe, monotonic() + max(0.0, probe.initial_delay_s - age_s))
    while True:
        await asyncio.sleep(count.due - monotonic())
        if count.record(await _passes(count.probe, checks.host), monotonic()):
            observer.on_liveness_failed(_failure_reason("liveness", count))
            return


async def _passes(probe: Probe, host: str) -> bool:
    if probe.kind == "tcp":
        return await accepts_connections(probe.port, probe.timeout_s, host=host)
    return (await request(probe.port, probe.path, probe.timeout_s, host=host)).ok


def _failure_reason(kind: str, count: ProbeCounter) -> str:
    return f"{kind} probe failed {count.probe.failure_threshold} times"
