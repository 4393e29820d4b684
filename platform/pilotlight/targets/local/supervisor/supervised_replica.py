"""One supervised replica, from its start to its exit: record, probes, drain, parking.

The supervisor starts it once it has its GPUs. What runs it is a `Launcher` (launcher.py), which reports here.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.process_identity import Identity
from pilotlight.targets.local.supervisor.container_command import missing_file_fix
from pilotlight.targets.local.supervisor.launcher import (
    Ended,
    Launcher,
    ReplicaAddress,
    ReplicaHandle,
    located,
    start_failure,
)
from pilotlight.targets.local.supervisor.parking.replica_parking import ReplicaParking
from pilotlight.targets.local.supervisor.parking.self_parking import ParkResult, swap_seconds
from pilotlight.targets.local.supervisor.probes import STOPPING, predictor_state, read_status, run_probes
from pilotlight.targets.local.supervisor.replica_record import PARKED_STATES, Launch, Replica, Usage
from pilotlight.targets.secret_redaction import redact

Json = Any
RESEND_S: Final = 1.0
FAILED_GRACE_S: Final = 5.0  # a predictor that never served has nothing to finish
CHECKPOINTED_GRACE_S: Final = 1.0  # calls of CUDA at its exit would wait for a restore
log = logging.getLogger("pilotlight.supervisor")
Parked = Callable[["SupervisedReplica", ParkResult], None]


class SupervisedReplica:
    """Implements `LaunchObserver` and `ReplicaObserver`. `launch` is None if another supervisor started it."""

    def __init__(
        self,
        record: Replica,
        launch: Launch | None,
        parking: ReplicaParking,
        changed: Callable[[Replica], None],
        ended: Callable[["SupervisedReplica", Ended], None],
    ) -> None:
        self.record, self.launch, self._parker = record, launch, parking
        self.stop_requested = self.muted = False
        self.end_reason = record.reason if record.state == "draining" else ""  # of an end caused by the supervisor
        self._changed, self._ended = changed, ended
        self._secrets: Mapping[str, str] = {}
        self._handle: ReplicaHandle | None = None  # None: not started, or its start has failed
        self._probing: asyncio.Task[None] | None = None
        self._parking: asyncio.Task[None] | None = None
        self._freeing: asyncio.Task[None] | None = None
        self._has_context = True  # that the driver could take; false once it has found none
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
        elif self.record.state not in (*PARKED_STATES, "pending", "waking"):
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
        grace_s = min(grace_s, CHECKPOINTED_GRACE_S) if self.record.checkpointed else grace_s
        if self.record.state != "draining":  # a second SIGTERM would make the predictor drop its requests
            self.stop_probing()
            self.update(state="draining", reason=reason)
            if self._handle is not None:
                self._handle.terminate()
        self._kill_in(grace_s)

    def park(self, gpu_bytes: int, done: Parked) -> None:
        """Start parking a replica that uses `gpu_bytes`; `done` gets the result."""
        self.stop_probing()
        self.update(state="parking", reason="")
        self._parking = asyncio.get_running_loop().create_task(self._park(gpu_bytes, done))

    async def _park(self, gpu_bytes: int, done: Parked) -> None:
        began = time.monotonic()
        result = await self._parker.park(self.record, self.processes, gpu_bytes)
        self._parking = None
        if not result.error:
            if result.checkpointed:  # also where its own method has failed
                self.update(parking=replace(self.record.parking, method="driver"))
            past = result._replace(wake_s=result.wake_s or self.record.wake_s)
            swap_s = swap_seconds(past, time.monotonic() - began)
            self.update(
                state="parked", swap_s=swap_s, parked_at=time.time(), parked_bytes=result.host_bytes,
                discarded=result.discarded, checkpointed=result.checkpointed, known_answer=result.known_answer,
            )  # fmt: skip
        done(self, result)

    def free_context(self, done: Callable[[], object]) -> None:
        """Let the driver take the CUDA context of a parked replica, then call `done`."""
        possible = self._has_context and not self.record.checkpointed and not self.record.context_kept
        if possible and self._freeing is None:
            self._freeing = asyncio.get_running_loop().create_task(self._free_context(done))

    async def _free_context(self, done: Callable[[], object]) -> None:
        # Before the call: if this supervisor ends during it, the next one must restore it.
        self.update(checkpointed=True)
        error = await self._parker.free_context(self.processes)
        self._freeing = None
        if error == "":
            done()
        else:
            self._has_context = error is not None
            self.update(checkpointed=False, context_kept=error or "")

    def unpark(self, failed: Callable[["SupervisedReplica", str], None]) -> None:
        """Make it ready again, even while it is being parked, or call `failed`.

        Models of our predictor wake with the first request, unless it has a known request to answer before.
        """
        self.stop_probing()
        record = self.record
        if record.parking.method != "predictor" or record.checkpointed or record.known_answer:
            self.update(state="waking", reason="")
            self._parking = asyncio.get_running_loop().create_task(self._wake(failed))
        else:
            self._awake()

    async def _wake(self, failed: Callable[["SupervisedReplica", str], None]) -> None:
        began = time.monotonic()
        error = await self._parker.wake(self.record, self.processes)
        self._parking = None
        if error:
            failed(self, error)
            return
        if self.record.parking.method != "predictor":
            self.update(parked_bytes=0)  # ours keeps its copy of the weights
        self.update(checkpointed=False, discarded=False, wake_s=round(time.monotonic() - began, 3))
        self._awake()

    def _awake(self) -> None:
        self.update(state="ready", reason="")
        self.probe(self._handle.age_s() if self._handle is not None else 0.0)

    def processes(self) -> Sequence[int]:
        return self._handle.processes() if self._handle is not None else ()

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
            checks=record.checks, port=record.port, grpc_port=record.grpc_port,
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
        fix = missing_file_fix(self.launch.revision.container, reason) if self.launch is not None else ""
        self.end_reason = reason = f"{reason}; {fix}" if fix else reason
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
        for task in (self._parking, self._freeing, self._reading, self._probing):
            if task is not None:
                task.cancel()
        self._parking = self._freeing = self._reading = self._probing = None

    async def detach(self) -> None:
        """Stop watching and leave it running."""
        self.on_ending()
        if self._handle is not None:
            await self._handle.detach()
