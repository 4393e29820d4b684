"""One supervised process, from its start to its exit.

The supervisor calls `Spawner` for a replica that has its GPUs: ports, environment and log, then a shim or a pilot
light. `ReplicaProcess` probes the process, watches its exit through the kernel, and reports both.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.model_snapshots import ModelChanged, ModelSnapshots
from pilotlight.targets.local.supervisor import container_command, gpus, shim
from pilotlight.targets.local.supervisor.cgroups import Limits
from pilotlight.targets.local.supervisor.container_command import Command
from pilotlight.targets.local.supervisor.forkserver_client import ForkRequest, PilotLights, family_of
from pilotlight.targets.local.supervisor.logs import out_of_memory
from pilotlight.targets.local.supervisor.output_pipes import OutputPipes
from pilotlight.targets.local.supervisor.probes import STOPPING, predictor_state, read_status, run_probes
from pilotlight.targets.local.supervisor.process_inspection import (
    ExitWatch,
    Identity,
    age_s,
    boot_id,
    exit_recorder,
    identify,
)
from pilotlight.targets.local.supervisor.replica_record import PARKED_STATES, Launch, Replica
from pilotlight.targets.local.supervisor.shim import Exit

Json = Any
RESEND_S: Final = 1.0
FAILED_GRACE_S: Final = 5.0  # a predictor that never served has nothing to finish
log = logging.getLogger("pilotlight.supervisor")


class ReplicaProcess:
    """Process of a replica; implements `ReplicaObserver`. `launch` is None if another supervisor started it."""

    def __init__(
        self,
        record: Replica,
        launch: Launch | None,
        exit_file: Path,
        limits: Limits,
        outputs: OutputPipes,
        changed: Callable[[Replica], None],
        ended: Callable[["ReplicaProcess", Exit], None],
    ) -> None:
        self.record, self.launch, self.exit_file = record, launch, exit_file
        self.stop_requested = self.muted = False
        self.end_reason = record.reason if record.state == "draining" else ""  # of an end caused by the supervisor
        self.queue_position = 0  # among replicas that wait for GPUs; 0: not waiting
        self.log_offset = 0  # of this start in the log file
        self._limits, self._outputs, self._changed, self._ended = limits, outputs, changed, ended
        self._confining: asyncio.Future[None] | None = None
        self._shim_pid, self._output = 0, -1
        self._watch: ExitWatch | None = None
        self._recorder: Identity | None = None
        self._probing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._parking: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[Mapping[str, Json]] | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._pending: signal.Signals | None = None  # sent once the pid is known

    def attach_shim(self, started: shim.Shim) -> None:
        """Read the pid from a started shim as soon as it is written."""
        self._shim_pid, self._output = started
        asyncio.get_running_loop().add_reader(self._output, lambda: self.attach(self._read_pid()))

    def _read_pid(self) -> int:
        output, self._output = self._output, -1
        asyncio.get_running_loop().remove_reader(output)
        return shim.read_pid(output)

    def attach_fork(self, pid: int) -> None:
        self._shim_pid = 0
        self.update(forked=True)
        self.attach(pid)

    def attach(self, pid: int) -> None:
        """Watch and confine the process `pid`; 0: it could not be started."""
        identity = identify(pid)
        self.update(pid=pid, boot_id=boot_id(), start_ticks=identity.start_ticks if identity else 0)
        if identity is None:
            self._finish()
            return
        self.watch(identity)
        if self.launch is not None:  # in a thread: moving a process into a cgroup may take milliseconds
            container, loop = self.launch.revision.container, asyncio.get_running_loop()
            limited = self.record.id, pid, container.memory_limit, container.cpu_limit
            self._confining = loop.run_in_executor(None, self._limits.confine, *limited)
        if self._pending is not None:
            self.send(self._pending)

    def watch(self, identity: Identity) -> None:
        self._recorder = exit_recorder(identity.pid)
        self._watch = ExitWatch(identity.pid, self._finish)

    def probe(self, age: float = 0.0) -> None:
        """Start probing; the pid need not be known yet."""
        self._probing = asyncio.get_running_loop().create_task(run_probes(self.record, self, age))

    def read_status(self) -> None:
        """Read the predictor's /status once more, unless a read is under way; `on_status` gets it."""
        if self._probing is not None and (self._reading is None or self._reading.done()):
            self._reading = asyncio.ensure_future(read_status(self.record.checks, self))

    def adopt(self, identity: Identity) -> None:
        """Continue supervising a process that another supervisor started."""
        self.watch(identity)
        self.send(signal.SIGCONT)  # the last supervisor may have died while it had frozen the process
        if self.record.state == "draining":
            self._kill_in(self.record.checks.grace_s)
            self._probing = asyncio.get_running_loop().create_task(self._resend_sigterm())
        elif self.record.state not in PARKED_STATES:
            self.probe(age_s(identity))

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
        if state != STOPPING:
            self.send(signal.SIGTERM)

    def update(self, **fields: Any) -> None:
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
            self.send(signal.SIGTERM)
        self._kill_in(grace_s)

    def park(self, token: str, done: Callable[["ReplicaProcess", str], None]) -> None:
        """Start parking; `done` gets the error, or an empty string on success."""
        self.stop_probing()
        self.update(state="parking", reason="")
        self._parking = asyncio.get_running_loop().create_task(self._park(token, done))

    async def _park(self, token: str, done: Callable[["ReplicaProcess", str], None]) -> None:
        result = await gpus.park(self.record, token)
        self._parking = None
        if not result.error:
            self.update(state="parked", parked_at=time.time(), parked_bytes=result.host_bytes)
        done(self, result.error)

    def unpark(self) -> None:
        """Make it ready again, even while it is being parked: its models wake with the first request."""
        self.stop_probing()
        self.update(state="ready", reason="")
        self.probe(age_s(Identity(self.record.pid, self.record.boot_id, self.record.start_ticks)))

    def kill(self, why: str = "") -> None:
        self.end_reason = self.end_reason or why
        self.stop_probing()
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        if self._watch is not None:
            self._watch.send(number)
        else:
            self._pending = number

    def _kill_in(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + grace_s
        if self._killer is not None:
            at = min(at, self._killer.when())
            self._killer.cancel()
        self._killer = loop.call_at(at, self.send, signal.SIGKILL)

    def on_ready(self) -> None:
        self.update(state="ready", reason="")

    def on_unready(self, reason: str) -> None:
        self.update(state="unready", reason=reason)

    def on_status(self, status: Mapping[str, Json]) -> None:
        self.update(status=status)

    def on_start_failed(self, reason: str) -> None:
        self.end_reason = reason
        self.drain(FAILED_GRACE_S, reason)

    def on_liveness_failed(self, reason: str) -> None:
        self.kill(reason)

    def _finish(self) -> None:
        self.stop_probing()
        if self._killer is not None:
            self._killer.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._collect_exit())

    async def _collect_exit(self) -> None:
        ended = await shim.wait_exit(self._shim_pid, self.exit_file, self._recorder)
        await self._outputs.finish(self.record.log)  # the reason of a crash is in its last lines
        if self._confining is not None:
            await self._confining
        if await asyncio.to_thread(self._limits.finish, self.record.id):
            self.end_reason = self.end_reason or out_of_memory(self.record.checks.memory_limit)
        self._watch, self._recorder, self._shim_pid, self._killer, self._pending = None, None, 0, None, None
        self._ended(self, ended)

    def stop_probing(self) -> None:
        if self._parking is not None:
            self._parking.cancel()
            self._parking = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None

    async def detach(self) -> None:
        """Stop watching and leave it running."""
        self.stop_probing()
        if self._killer is not None:
            self._killer.cancel()
        if self._watch is not None:
            self._watch.close()
        if self._output >= 0:
            self._read_pid()
        if self._ending is not None:
            await self._ending


class Spawner:
    """Starts processes of replicas; `on_failed` is called for one that could not be started."""

    def __init__(
        self,
        home: Home,
        gateway_url: str,
        pilot: PilotLights | None,
        python: str,
        outputs: OutputPipes,
        on_failed: Callable[[ReplicaProcess, Exit, str], None],
    ) -> None:
        self._home, self._gateway_url, self._pilot, self._python = home, gateway_url, pilot, python
        self._outputs, self._on_failed = outputs, on_failed

    def command(self, launch: Launch) -> Command:
        """Return the command of a launch. Raise PlatformError if it cannot run here."""
        return container_command.command(launch.revision.container, self._python)

    def spawn(self, running: ReplicaProcess) -> None:
        try:
            self._start(running)
        except Exception as error:  # no descriptor left, for one; whatever it is, the start has failed and says why
            if not isinstance(error, OSError | ModelChanged):
                log.exception("%s cannot be started", running.record.id)
            self._report_failure(running, error)

    def _report_failure(self, running: ReplicaProcess, error: Exception) -> None:
        """Report the failure after the caller of `spawn` has returned."""
        if isinstance(error, ModelChanged):
            reason = f"{error}; {error.hint}"
        else:
            reason = f"could not be started: {getattr(error, 'strerror', None) or error}"
        asyncio.get_running_loop().call_soon(self._on_failed, running, Exit(), reason)

    def _start(self, running: ReplicaProcess) -> None:
        assert running.launch is not None
        launch = container_command.with_pinned_models(running.launch, ModelSnapshots(self._home.models))
        env = container_command.variables(launch, running.record.gpus, self._home, self._gateway_url, os.environ)
        command = self.command(launch)
        (self._home.sockets / running.record.id).mkdir(mode=0o700, parents=True, exist_ok=True)
        running.update(started_at=utc_now("seconds"), status={}, pid=0, boot_id="", start_ticks=0)
        log, running.log_offset = self._outputs.open(running.record.log)
        try:
            if self._pilot is None or command.predictor_args is None:
                self._execute(running, command.argv, env, log)
            else:
                self._fork(running, self._pilot, command, env, log)
        finally:
            os.close(log)
        running.probe()

    def _execute(self, running: ReplicaProcess, argv: Sequence[str], env: Mapping[str, str], log: int) -> None:
        try:
            running.attach_shim(shim.start(argv, env, self._home.root, log, running.exit_file))
        except OSError as error:
            self._report_failure(running, error)

    def _fork(
        self, running: ReplicaProcess, pilot: PilotLights, command: Command, env: Mapping[str, str], log: int
    ) -> None:
        """Fork from a pilot light; without one, or if it refuses, start a fresh process."""
        own_log = os.dup(log)

        def answered(pid: int) -> None:
            try:
                if pid:
                    running.attach_fork(pid)
                elif running.stop_requested:
                    self._on_failed(running, Exit(), "ended before it could start")
                else:
                    self._execute(running, command.argv, env, own_log)
            finally:
                os.close(own_log)

        running.exit_file.unlink(missing_ok=True)
        fork_request = ForkRequest(command.predictor_args or (), env, str(self._home.root), str(running.exit_file))
        pilot.fork(family_of(env), fork_request, log, answered)
