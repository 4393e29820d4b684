"""Starts replicas, watches them, ends them, and takes over those that a supervisor before it has left.

Called from one event loop; every call returns at once, and `on_change` tells what comes of it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor import environment, reasons, shim
from pilotlight.targets.local.supervisor.environment import Command
from pilotlight.targets.local.supervisor.gpus import Device, Gpus, find_devices
from pilotlight.targets.local.supervisor.limits import Limits
from pilotlight.targets.local.supervisor.pilot import Errand, PilotLights, family_of
from pilotlight.targets.local.supervisor.process import Identity, boot_id, marked, usage
from pilotlight.targets.local.supervisor.replica import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.rotation import open_log, prune
from pilotlight.targets.local.supervisor.running import Running
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.targets.local.supervisor.tending import Tending

PORT_TRIES: Final = 5
# A process has no environment while it begins its program, so one that was just being started is seen only later.
ORPHAN_LOOKS_S: Final = (0.1, 0.5, 2.0, 10.0)


class Supervisor:
    """All replicas of one home. `replicas` are those that have not exited."""

    def __init__(
        self,
        home: Home,
        on_change: Callable[[Replica], None],
        gateway_url: str,
        pilot: PilotLights | None = None,
        python: str = sys.executable,
        devices: Callable[[], Sequence[Device]] = find_devices,
    ) -> None:
        self._home, self._tell, self._gateway_url = home, on_change, gateway_url
        self._pilot, self._python = pilot, python
        self._gpus = Gpus(devices)
        self._running: dict[str, Running] = {}
        self._none_left = asyncio.Event()
        self._looks: list[asyncio.TimerHandle] = []
        self._limits = Limits(home)
        self._tending = Tending(self._running, self._limits, home.process_logs)

    @property
    def limits(self) -> str:
        """How limits are kept on this machine: `cgroup v2`, `cgroup v1` or `watchdog`."""
        return self._limits.name

    def replicas(self) -> Sequence[Replica]:
        return [running.record for running in self._running.values()]

    def usage(self, replica_id: str) -> Usage:
        pid = self._find(replica_id).record.pid
        return usage(pid) if pid else Usage()

    def launch(self, launch: Launch) -> Replica:
        """Raises PlatformError for what cannot run here. The state is `starting`, or `waiting` for a GPU."""
        if launch.replica in self._running:
            raise PlatformError(f"replica = {launch.replica} runs already; every start needs an id of its own")
        environment.command(launch.revision.container, self._python)
        running = self._take_on(_record(launch, self._home), launch)
        running.quiet = True  # the caller sees what is returned
        try:
            self._try(running)
        finally:
            running.quiet = False
        return running.record

    def drain(self, replica_id: str, grace_s: float) -> None:
        """SIGTERM; SIGKILL when it still runs after that time."""
        running = self._find(replica_id)
        running.asked = True
        if running.record.state == "waiting":
            self._forget(running, Exit(), "ended before it could start")
        else:
            running.drain(grace_s)

    def kill(self, replica_id: str) -> None:
        running = self._find(replica_id)
        running.asked = True
        if running.record.state == "waiting":
            self._forget(running, Exit(), "ended before it could start")
        else:
            running.kill("killed when asked to")

    def adopt(self, replicas: Sequence[Replica]) -> None:
        """Goes on with the living among those that the store remembers; ends processes that no record knows."""
        for record in replicas:
            if record.state == "exited" or record.id in self._running:
                continue
            running = self._take_on(record, None)
            running.asked = record.state == "draining" and not record.reason
            identity = Identity(record.pid, record.boot_id, record.start_ticks)
            if identity.alive:
                self._gpus.hold(record.id, _service(record), record.gpus)
                running.adopt(identity)
            elif reason := _lost(record):
                running.asked = True
                self._forget(running, Exit(), reason)
            else:
                self._ended(running, shim.read_exit(running.exit_file) or Exit())
        self._end_orphans()
        loop = asyncio.get_running_loop()
        self._looks = [loop.call_later(seconds, self._end_orphans) for seconds in ORPHAN_LOOKS_S]
        self._limits.sweep(self._running)

    async def close(self, leave_running: bool) -> None:
        """Ends all replicas, or leaves them to the supervisor that comes next."""
        if not leave_running and self._running:
            for running in list(self._running.values()):
                self.drain(running.record.id, running.record.checks.grace_s)
            await self._none_left.wait()
        for running in list(self._running.values()):
            await running.leave()
        self._running.clear()
        self._tending.close()
        for look in self._looks:
            look.cancel()
        if not leave_running:
            await asyncio.to_thread(self._limits.sweep, ())
        if self._pilot is not None:
            self._pilot.close(leave_running)

    def _find(self, replica_id: str) -> Running:
        if replica_id not in self._running:
            raise NotFound(f"replica {replica_id} does not run here")
        return self._running[replica_id]

    def _take_on(self, record: Replica, launch: Launch | None) -> Running:
        exit_file = self._home.run / f"{record.id}.exit"
        running = Running(record, launch, exit_file, self._limits, self._tell, self._ended)
        self._running[record.id] = running
        self._none_left.clear()
        self._tending.wake()
        return running

    def _try(self, running: Running) -> None:
        """Starts it when the GPUs that it needs are free."""
        assert running.launch is not None
        record, count = running.record, running.launch.revision.container.gpus
        gpus, reason = self._gpus.take(record.id, _service(record), count)
        if reason:
            running.update(state="waiting", reason=reason)
            return
        running.update(state="starting", reason="", gpus=gpus)
        self._spawn(running)

    def _spawn(self, running: Running) -> None:
        try:
            self._begin(running)
        except OSError as error:  # no descriptor left, for one
            self._not_started(running, error)

    def _not_started(self, running: Running, error: OSError) -> None:
        """In a moment: whoever asked for the start hears first that it was begun."""
        reason = f"could not be started: {error.strerror or error}"
        asyncio.get_running_loop().call_soon(self._forget, running, Exit(), reason)

    def _begin(self, running: Running) -> None:
        launch = running.launch
        assert launch is not None
        ports = environment.free_ports()
        env = environment.variables(launch, ports, running.record.gpus, self._home, self._gateway_url, os.environ)
        command = environment.command(launch.revision.container, self._python)
        running.starts += 1
        running.update(
            port=ports.http, grpc_port=ports.grpc, metrics_port=ports.metrics, started_at=_utc(),
            checks=environment.checks(launch, ports), status={}, pid=0, boot_id="", start_ticks=0,
        )  # fmt: skip
        log, running.log_from = open_log(running.record.log)
        try:
            if self._pilot is None or command.predictor_args is None:
                self._execute(running, command.argv, env, log)
            else:
                self._fork(running, self._pilot, command, env, log)
        finally:
            os.close(log)
        running.probe()

    def _execute(self, running: Running, argv: Sequence[str], env: Mapping[str, str], log: int) -> None:
        try:
            running.started_by(shim.start(argv, env, self._home.root, log, running.exit_file))
        except OSError as error:
            self._not_started(running, error)

    def _fork(self, running: Running, pilot: PilotLights, command: Command, env: Mapping[str, str], log: int) -> None:
        """By a pilot light where one burns; without it, or when it says no, as any other process."""
        own_log = os.dup(log)

        def answered(pid: int) -> None:
            try:
                if pid:
                    running.forked_by(pid)
                elif running.asked:
                    self._forget(running, Exit(), "ended before it could start")
                else:
                    self._execute(running, command.argv, env, own_log)
            finally:
                os.close(own_log)

        running.exit_file.unlink(missing_ok=True)
        errand = Errand(command.predictor_args or (), env, str(self._home.root), str(running.exit_file))
        pilot.fork(family_of(env), errand, log, answered)

    def _ended(self, running: Running, ended: Exit) -> None:
        lines = reasons.tail(running.record.log, running.log_from)
        unlucky = running.record.state == "starting" and not running.asked and reasons.port_was_taken(ended, lines)
        if unlucky and running.launch is not None and running.starts < PORT_TRIES:
            self._spawn(running)
            return
        self._forget(running, ended, running.why or ("" if running.asked else reasons.describe(ended, lines)))

    def _forget(self, running: Running, ended: Exit, reason: str) -> None:
        """The last word on a replica. What it held goes to those who wait."""
        record = running.record
        running.stop_probing()
        if self._running.pop(record.id, None) is None:
            return  # it was told before, or left to the supervisor that comes next
        if not self._running:
            self._none_left.set()
        running.exit_file.unlink(missing_ok=True)
        running.update(
            state="exited", reason=reason, exit_code=ended.code, signal=ended.signal, crashed=not running.asked
        )
        prune(Path(record.log).parent, self._running)
        if self._gpus.release(record.id):
            for waiting in list(self._running.values()):
                if waiting.record.state == "waiting":
                    self._try(waiting)

    def _end_orphans(self) -> None:
        """A shim goes with its replica: nobody is left who would want to know."""
        for pid, replica in marked(self._home):
            if replica not in self._running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _record(launch: Launch, home: Home) -> Replica:
    revision = launch.revision
    return Replica(
        id=launch.replica,
        namespace=revision.namespace,
        service=revision.service,
        workload=revision.workload,
        revision=revision.name,
        checks=environment.checks(launch, environment.Ports(0, 0, 0)),
        log=str(home.logs / revision.namespace / revision.service / f"{launch.replica}.log"),
    )


def _lost(record: Replica) -> str:
    """Why a replica is gone that did nothing wrong; empty: it may have crashed."""
    if not record.pid:
        return "the control process ended before this had started"
    return "the machine was restarted" if record.boot_id != boot_id() else ""


def _service(record: Replica) -> str:
    return f"{record.namespace}/{record.service}"


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
