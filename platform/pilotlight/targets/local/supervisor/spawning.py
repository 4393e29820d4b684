"""Starts the process of a replica whose GPUs are at hand: ports, variables and log, then a shim or a pilot light.

The supervisor decides that one is started. What becomes of the process it hears from `Running`, and from `forget` where
there is none.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence

from pilotlight.targets.local.home import Home
from pilotlight.targets.local.supervisor import environment, shim
from pilotlight.targets.local.supervisor.environment import Command
from pilotlight.targets.local.supervisor.pilot import Errand, PilotLights, family_of
from pilotlight.targets.local.supervisor.replica import Launch
from pilotlight.targets.local.supervisor.rotation import open_log
from pilotlight.targets.local.supervisor.running import Running
from pilotlight.targets.local.supervisor.shim import Exit


class Spawner:
    """`forget` hears the last word on a replica that has no process."""

    def __init__(
        self,
        home: Home,
        gateway_url: str,
        pilot: PilotLights | None,
        python: str,
        forget: Callable[[Running, Exit, str], None],
    ) -> None:
        self._home, self._gateway_url, self._pilot, self._python = home, gateway_url, pilot, python
        self._forget = forget

    def command(self, launch: Launch) -> Command:
        """Raises PlatformError for what cannot run here."""
        return environment.command(launch.revision.container, self._python)

    def spawn(self, running: Running) -> None:
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
        command = self.command(launch)
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


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
