"""One supervised replica, from its start to its exit: record, probes, drain, parking.

The supervisor starts it once it has its GPUs. What runs it is a `Launcher` (launcher.py), which reports here.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.supervisor import gpus
from pilotlight.targets.local.supervisor.launcher import (
    Ended,
    Launcher,
    ReplicaAddress,
    ReplicaHandle,
    located,
    start_failure,
)
from pilotlight.targets.local.supervisor.probes import STOPPING, predictor_state, read_status, run_probes
from pilotlight.targets.local.supervisor.process_inspection import Identity
from pilotlight.targets.local.supervisor.replica_record import PARKED_STATES, Launch, Replica, Usage
from pilotlight.targets.secret_redaction import redact

Json = Any
RESEND_S: Final = 1.0
FAILED_GRACE_S: Final = 5.0  # a predictor that never served has nothing to finish
log = logging.getLogger("pilotlight.supervisor")


class SupervisedReplica:
    """Implements `LaunchObserver` and `ReplicaObserver`. `launch` is None if another supervisor started it."""

    def __init__(
        self,
        record: Replica,
        launch: Launch | None,
        changed: Callable[[Replica], None],
        ended: Callable[["SupervisedReplica", Ended], None],
    ) -> None:
        self.record, self.launch = record, launch
        self.stop_requested = self.muted = False
        self.end_reason = record.reason if record.state == "draining" else ""  # of an end caused by the supervisor
        self._changed, self._ended = changed, ended
        self._secrets: Mapping[str, str] = {}
        self._handle: ReplicaHandle | None = None  # None: not started, or its start has failed
        self._probing: asyncio.Task[None] | None = None
        self._parking: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[Mapping[str, Json]] | None = None
        self._killer: asyncio.TimerHandle | None = None

    def start(self, launcher: Launcher, secrets: Mapping[str, str]) -> None:
        """Start it; a failure is reported after this has returned. `secrets` appear in no reason."""
        assert self.launch is not None
        self._secrets = secrets
        self.update(started_at=utc_now("seconds"))
        try:
            launcher.check(self.launch.revision)
            launch = dataclasses.replace(self.launch, secrets=secrets)
            self._handle = launcher.start(launch, self.record, self)
        except Exception as error:  # no descriptor left, for one; whatever it is, the start has failed and says why
            if not isinstance(error, OSError | PlatformError):
                log.exception("%s cannot be started", self.record.id)
            asyncio.get_running_loop().call_soon(self.on_exited, Ended(reason=start_failure(error)))
        else:
            if self.record.state == "draining":  # since a callback that the start has made
                self._handle.terminate()

    def adopt(self, handle: ReplicaHandle) -> None:
        """Continue supervising what another supervisor started."""
        self._handle = handle
        if self.record.state == "draining":
            self._kill_in(self.record.checks.grace_s)
            self._probing = asyncio.get_running_loop().create_task(self._resend_sigterm())
        elif self.record.state not in (*PARKED_STATES, "pending"):
            self.probe(handle.age_s())

    async def _resend_sigterm(self) -> None:
        """Send SIGTERM again unless the predictor reports that it stops.

        The last supervisor may have died between storing `draining` and sending the signal.
        """
        if not self.record.checks.predictor:
            return
        state = await predictor_state(self.record.checks)
        while not state:
            await asyncio.sleep(RESEND_S)
            state = await predictor_state(self.record.checks)
        if state != STOPPING and self._handle is not None:
            self._handle.terminate()

    def probe(self, age: float = 0.0) -> None:
        """Start probing; the pid need not be known yet."""
        self._probing = asyncio.get_running_loop().create_task(run_probes(self.record, self, age))

    def read_status(self) -> None:
        """Read the predictor's /status once more, unless a read is under way; `on_status` gets it."""
        if self._probing is not None and (self._reading is None or self._reading.done()):
            self._reading = asyncio.ensure_future(read_status(self.record.checks, self))

    def usage(self) -> Usage:
        return self._handle.usage() if self._handle is not None else Usage()

    def update(self, **fields: Any) -> None:
        if "reason" in fields:
            fields["reason"] = redact(fields["reason"], self._secrets, self._secrets)
        record = replace(self.record, **fields)
        if record != self.record:
            self.record = record
            if not self.muted:
                self._changed(record)

    def drain(self, grace_s: float, reason: str = "") -> None:
        """Send SIGTERM and kill after `grace_s`; a second call can only shorten the time."""
        if self.record.state != "draining":  # a second SIGTERM would make the predictor drop its requests
            self.stop_probing()
            self.update(state="draining", reason=reason)
            if self._handle is not None:
                self._handle.terminate()
        self._kill_in(grace_s)

    def park(self, token: str, done: Callable[["SupervisedReplica", str], None]) -> None:
        """Start parking; `done` gets the error, or an empty string on success."""
        self.stop_probing()
        self.update(state="parking", reason="")
        self._parking = asyncio.get_running_loop().create_task(self._park(token, done))

    async def _park(self, token: str, done: Callable[["SupervisedReplica", str], None]) -> None:
        started = time.monotonic()
        result = await gpus.park(self.record, token)
        self._parking = None
        if not result.error:
            swap_s = gpus.swap_seconds(result, time.monotonic() - started)
            self.update(state="parked", parked_at=time.time(), parked_bytes=result.host_bytes, swap_s=swap_s)
        done(self, result.error)

    def unpark(self) -> None:
        """Make it ready again, even while it is being parked: its models wake with the first request."""
        self.stop_probing()
        self.update(state="ready", reason="")
        self.probe(self._handle.age_s() if self._handle is not None else 0.0)

    def kill(self, why: str = "") -> None:
        self.end_reason = self.end_reason or why
        self.stop_probing()
        if self._handle is None:
            self._kill_in(0.0)  # it is being started
        self._kill_now()

    def _kill_now(self) -> None:
        if self._handle is not None:
            self._handle.kill()

    def _kill_in(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + grace_s
        if self._killer is not None:
            at = min(at, self._killer.when())
            self._killer.cancel()
        self._killer = loop.call_at(at, self._kill_now)

    def on_pending(self, reason: str, handle: str = "") -> None:
        pending = {"state": "pending", "reason": reason} if self.record.state in ("starting", "pending") else {}
        self.update(handle=handle or self.record.handle, **pending)

    def on_started(self, address: ReplicaAddress, handle: str = "", node: str = "") -> None:
        starting = {"state": "starting", "reason": ""} if self.record.state != "draining" else {}
        record = located(self.record, address)
        self.update(
            checks=record.checks, port=record.port, grpc_port=record.grpc_port, metrics_port=record.metrics_port,
            handle=handle or record.handle, node=node, **starting,
        )  # fmt: skip
        if starting:
            self.probe()

    def on_process(self, identity: Identity, forked: bool = False) -> None:
        self.update(**identity._asdict(), forked=forked)

    def on_ready(self) -> None:
        self.update(state="ready", reason="")

    def on_unready(self, reason: str) -> None:
        self.update(state="unready", reason=reason)

    def on_status(self, status: Mapping[str, Json]) -> None:
        reason = redact(str(status.get("reason") or ""), self._secrets, self._secrets)
        self.update(status={**status, "reason": reason} if reason else status)

    def on_start_failed(self, reason: str) -> None:
        self.end_reason = reason
        self.drain(FAILED_GRACE_S, reason)

    def on_liveness_failed(self, reason: str) -> None:
        self.kill(reason)

    def on_ending(self) -> None:
        self.stop_probing()
        if self._killer is not None:
            self._killer.cancel()

    def on_exited(self, ended: Ended) -> None:
        self.on_ending()
        self._ended(self, ended)

    def stop_probing(self) -> None:
        for task in (self._parking, self._reading, self._probing):
            if task is not None:
                task.cancel()
        self._parking = self._reading = self._probing = None

    async def detach(self) -> None:
        """Stop watching and leave it running."""
        self.on_ending()
        if self._handle is not None:
            await self._handle.detach()
