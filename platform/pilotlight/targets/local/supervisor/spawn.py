"""Start the process of a replica that has its GPUs: ports, environment and log, then a shim or a pilot light.

Called by the supervisor; `ReplicaProcess` reports what becomes of the process, `on_failed` that there is none.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence

from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor import container_command, shim
from pilotlight.targets.local.supervisor.container_command import Command
from pilotlight.targets.local.supervisor.logs import open_log
from pilotlight.targets.local.supervisor.pilot_light import ForkRequest, PilotLights, family_of
from pilotlight.targets.local.supervisor.replica import Launch
from pilotlight.targets.local.supervisor.replica_process import ReplicaProcess
from pilotlight.targets.local.supervisor.shim import Exit


class Spawner:
    """`on_failed` is called for a replica whose process could not be started."""

    def __init__(
        self,
        home: Home,
        gateway_url: str,
        pilot: PilotLights | None,
        python: str,
        on_failed: Callable[[ReplicaProcess, Exit, str], None],
    ) -> None:
        self._home, self._gateway_url, self._pilot, self._python = home, gateway_url, pilot, python
        self._on_failed = on_failed

    def command(self, launch: Launch) -> Command:
        """Return the command of a launch. Raise PlatformError if it cannot run here."""
        return container_command.command(launch.revision.container, self._python)

    def spawn(self, running: ReplicaProcess) -> None:
        try:
            self._start(running)
        except OSError as error:  # no descriptor left, for one
            self._report_failure(running, error)

    def _report_failure(self, running: ReplicaProcess, error: OSError) -> None:
        """Report the failure after the caller of `spawn` has returned."""
        reason = f"could not be started: {error.strerror or error}"
        asyncio.get_running_loop().call_soon(self._on_failed, running, Exit(), reason)

    def _start(self, running: ReplicaProcess) -> None:
        launch = running.launch
        assert launch is not None
        ports = container_command.free_ports()
        env = container_command.variables(launch, ports, running.record.gpus, self._home, self._gateway_url, os.environ)
        command = self.command(launch)
        running.starts += 1
        running.update(
            port=ports.http, grpc_port=ports.grpc, metrics_port=ports.metrics, started_at=_utc(),
            checks=container_command.checks(launch, ports), status={}, pid=0, boot_id="", start_ticks=0,
        )  # fmt: skip
        log, running.log_offset = open_log(running.record.log)
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


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
