"""Launcher of `local`: replicas are processes of this machine, started by a shim or forked by a pilot light.

One that is isolated (isolation/isolated_process.py), or whose model has requirements (model_environments.py), is
prepared in a thread, and never forked. The exit of all is watched through the kernel. Other launchers run the client
programs of their daemons with it.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Final

from pilotlight.contract import is_predictor_image
from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import is_local
from pilotlight.targets.local import model_environments, process_identity
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, RevisionSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.supervisor import container_command, engine_process, logs, process_inspection, shim
from pilotlight.targets.local.supervisor.container_command import Command
from pilotlight.targets.local.supervisor.forkserver_client import ForkRequest, PilotLights, family_of
from pilotlight.targets.local.supervisor.isolation.cgroups import Limits
from pilotlight.targets.local.supervisor.launcher import (
    NOT_STARTED,
    Ended,
    LaunchObserver,
    ProcessObserver,
    start_failure,
)
from pilotlight.targets.local.supervisor.output_pipes import OutputPipes
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.wire.environments.environment import python_of
from pilotlight.wire.environments.requirements import Requirements
from pilotlight.wire.machine import boot_id

Prepared = tuple[Sequence[str], Mapping[str, str]]  # command and environment
TERMINATE_S: Final = 5.0  # of the grace period, for an engine whose connections do not end
DRAIN_POLL_S: Final = 0.05
LOG: Final = logging.getLogger("pilotlight.supervisor")


class ProcessHandle:
    """Process of a replica; implements `ReplicaHandle`. `container` has its limits; None: none, or already set.

    `host` and `port`: of an engine, which may abort its requests at SIGTERM. It is sent when the gateway has closed its
    connections, as Knative's preStop hook waits for its proxy.
    """

    def __init__(
        self,
        launcher: "ProcessLauncher",
        record: Replica,
        observer: ProcessObserver,
        container: ContainerSpec | None = None,
        port: int = 0,
        host: str = "",
    ) -> None:
        self._launcher, self._record, self._observer, self._container = launcher, record, observer, container
        self.exit_file = shim.exit_file(launcher.home, record.id)
        self._shim_pid, self._output = 0, -1
        self._identity = process_identity.Identity(record.pid, record.boot_id, record.start_ticks)
        self._watch: process_inspection.ExitWatch | None = None
        self._recorder: process_identity.Identity | None = None
        self._confining: asyncio.Future[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._draining: asyncio.TimerHandle | None = None
        self._port, self._host = port, host
        self._requested: signal.Signals | None = None  # sent once the pid is known

    @property
    def stop_requested(self) -> bool:
        return self._requested is not None

    def execute(self, argv: Sequence[str], env: Mapping[str, str], log: int) -> None:
        """Start a command under a shim; its pid is read as soon as it is written."""
        self._shim_pid, self._output = shim.start(argv, env, self._launcher.home.root, log, self.exit_file)
        asyncio.get_running_loop().add_reader(self._output, lambda: self.attach(self._read_pid()))

    def execute_logged(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a command whose output is the replica's log. Raise OSError if it cannot be started."""
        log = self._launcher.outputs.open(self._record.log)
        try:
            self.execute(argv, env, log)
        finally:
            os.close(log)

    def execute_prepared(self, prepare: Callable[[], Prepared], started: Callable[[], None]) -> None:
        """Start what `prepare` returns, which runs in a thread of its own; then call `started`."""
        self._preparing = asyncio.get_running_loop().create_task(self._prepare(prepare, started))

    async def _prepare(self, prepare: Callable[[], Prepared], started: Callable[[], None]) -> None:
        reason = "stopped before it started"
        # An installation may take an hour: a few of them would take the threads that confine and end other replicas.
        thread = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        try:
            argv, env = await asyncio.get_running_loop().run_in_executor(thread, prepare)
            if self._requested is None:
                self.execute_logged(argv, env)
                started()
                return
        except Exception as error:
            if not isinstance(error, OSError | PlatformError):
                LOG.exception("%s cannot be started", self._record.id)
            reason = start_failure(error)
        finally:
            thread.shutdown(wait=False)
        await asyncio.to_thread(self._launcher.finish, self._record.id)
        self._observer.on_exited(Ended(reason=reason))

    def _read_pid(self) -> int:
        output, self._output = self._output, -1
        asyncio.get_running_loop().remove_reader(output)
        return shim.read_pid(output)

    def attach(self, pid: int, *, forked: bool = False) -> None:
        """Watch and confine the process `pid`; 0: it could not be started."""
        identity = process_identity.identify(pid)
        self._identity = identity or process_identity.Identity(pid, boot_id(), 0)
        self._observer.on_process(self._identity, forked)
        if identity is None:
            self._finish()
            return
        self.watch()
        if self._container is not None:  # in a thread: moving a process into a cgroup may take milliseconds
            limited = self._record.id, pid, self._container.memory_limit, self._container.cpu_limit
            loop = asyncio.get_running_loop()
            self._confining = loop.run_in_executor(None, self._launcher.limits.confine, *limited)
        if self._requested is not None:
            self.send(self._requested)

    def watch(self) -> None:
        self._recorder = process_inspection.exit_recorder(self._identity.pid)
        self._watch = process_inspection.ExitWatch(self._identity.pid, self._finish)

    def send(self, number: signal.Signals) -> None:
        if self._watch is not None:
            self._watch.send(number)
        else:
            self._requested = number

    def terminate(self) -> None:
        if self._draining is None:
            self._terminate_drained(time.monotonic() + self._record.checks.grace_s - TERMINATE_S)

    def _terminate_drained(self, until: float) -> None:
        if self._port and process_inspection.connections_to(self._port, self._host) and time.monotonic() < until:
            loop = asyncio.get_running_loop()
            self._draining = loop.call_later(DRAIN_POLL_S, self._terminate_drained, until)
        else:
            self.send(signal.SIGTERM)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def processes(self) -> Sequence[int]:
        return list(process_inspection.process_tree(self._identity.pid)) if self._identity.pid else []

    def usage(self) -> Usage:
        return process_inspection.usage(self._identity.pid) if self._identity.pid else Usage()

    def age_s(self) -> float:
        return process_inspection.age_s(self._identity)

    def _finish(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._observer.on_ending()
        self._ending = asyncio.get_running_loop().create_task(self._collect_exit())

    async def _collect_exit(self) -> None:
        ended = await shim.wait_exit(self._shim_pid, self.exit_file, self._recorder)
        await self._launcher.outputs.finish(self._record.log)  # the reason of a crash is in its last lines
        if self._confining is not None:
            await self._confining
        killed = await asyncio.to_thread(self._launcher.finish, self._record.id)
        self._observer.on_exited(Ended(ended, logs.out_of_memory(self._record.checks.memory_limit) if killed else ""))

    async def detach(self) -> None:
        for waiting in (self._preparing, self._draining):
            if waiting is not None:
                waiting.cancel()
        if self._watch is not None:
            self._watch.close()
        if self._output >= 0:
            self._read_pid()
        if self._ending is not None:
            await self._ending


class ProcessLauncher:
    """Implements `Launcher`. `home` and `gateway_url` serve other launchers too, which are made with this one."""

    name = "local"
    allocates_gpus = True

    def __init__(
        self, home: Home, gateway_url: str, pilot: PilotLights | None = None, python: str = sys.executable
    ) -> None:
        self.home, self.gateway_url, self.python = home, gateway_url, python
        self.limits = Limits(home)
        self.outputs = OutputPipes(home, logs.log_settings(os.environ))
        self._pilot = pilot

    def check(self, revision: RevisionSpec) -> None:
        if is_predictor_image(revision.container.image):
            container_command.command(revision.container, self.python)
        else:
            engine_process.program_of(revision.container, os.environ)
        if revision.container.isolation:
            from pilotlight.targets.local.supervisor.isolation import isolated_process  # few services need it

            isolated_process.model_of(revision.container)

    def start(self, launch: Launch, record: Replica, observer: LaunchObserver) -> ProcessHandle:
        if launch.revision.container.isolation:
            return self._start_isolated(launch, record, observer)
        launch = container_command.with_pinned_models(launch, ModelSnapshots(self.home.models))
        (self.home.sockets / record.id).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_predictor_image(launch.revision.container.image):
            return self._start_engine(launch, record, observer)
        if (requirements := model_environments.of_container(launch.revision.container)) is not None:
            return self._start_in_environment(requirements, launch, record, observer)
        env = container_command.variables(launch, record.gpus, self.home, self.gateway_url, os.environ)
        command = container_command.command(launch.revision.container, self.python)
        handle = ProcessHandle(self, record, observer, launch.revision.container)
        log = self.outputs.open(record.log)
        try:
            if self._pilot is None or command.predictor_args is None:
                handle.execute(command.argv, env, log)
            else:
                self._fork(handle, self._pilot, command, env, log, observer)
        finally:
            os.close(log)
        observer.on_started(container_command.address(launch.revision.container, self.home, record.id))
        return handle

    def _start_in_environment(
        self, requirements: Requirements, launch: Launch, record: Replica, observer: LaunchObserver
    ) -> ProcessHandle:
        """Start a new process in the environment of its model; the replica is pending while a missing one is built."""
        container = launch.revision.container
        env = container_command.variables(launch, record.gpus, self.home, self.gateway_url, os.environ)
        handle = ProcessHandle(self, record, observer, container)
        observer.on_pending("preparing the environment of its requirements")

        def prepare() -> Prepared:
            environment = model_environments.ensure(requirements, self.home, partial(LOG.info, "%s: %s", record.id))
            return container_command.command(container, python_of(environment)).argv, env

        address = container_command.address(container, self.home, record.id)
        handle.execute_prepared(prepare, partial(observer.on_started, address))
        return handle

    def _start_engine(self, launch: Launch, record: Replica, observer: LaunchObserver) -> ProcessHandle:
        """Start the program that an image of an engine stands for (engine_process.py)."""
        process = engine_process.prepare(launch, record.gpus, self.home, self.python, os.environ)
        container = launch.revision.container
        port = process.address.ports.get(container.port, container.port)
        handle = ProcessHandle(self, record, observer, container, port, process.address.host)
        handle.execute_logged(process.argv, process.env)
        observer.on_started(process.address, handle=str(port))
        return handle

    def _start_isolated(self, launch: Launch, record: Replica, observer: LaunchObserver) -> ProcessHandle:
        """Start a new process with a private copy of the model; the replica is pending while that is made."""
        from pilotlight.targets.local.supervisor.isolation import isolated_process, sandbox  # few services need it

        container, folder = launch.revision.container, self.home.sockets / record.id
        env = container_command.variables(launch, record.gpus, self.home, self.gateway_url, os.environ)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if container.isolation == "sandbox":
            os.chown(folder, sandbox.free_uid(self.home, record.id), -1)
        # A sandbox joins its control group itself, before it has children.
        handle = ProcessHandle(self, record, observer, container if container.isolation == "data" else None)
        is_copied = is_local(isolated_process.model_of(container))
        observer.on_pending("copying the model" if is_copied else "starting")
        handle.execute_prepared(
            partial(isolated_process.prepare, launch, env, self.home, self.limits, self.python),
            partial(observer.on_started, container_command.address(container, self.home, record.id)),
        )
        return handle

    def _fork(
        self,
        handle: ProcessHandle,
        pilot: PilotLights,
        command: Command,
        env: Mapping[str, str],
        log: int,
        observer: ProcessObserver,
    ) -> None:
        """Fork from a pilot light; without one, or if it refuses, start a fresh process."""
        own_log = os.dup(log)

        def fail(reason: str) -> None:
            asyncio.get_running_loop().call_soon(observer.on_exited, Ended(reason=reason))

        def answered(pid: int) -> None:
            try:
                if pid:
                    handle.attach(pid, forked=True)
                elif handle.stop_requested:
                    fail("stopped before it started")
                else:
                    handle.execute(command.argv, env, own_log)
            except OSError as error:
                fail(start_failure(error))
            finally:
                os.close(own_log)

        handle.exit_file.unlink(missing_ok=True)
        request = ForkRequest(command.predictor_args or (), env, str(self.home.root), str(handle.exit_file))
        pilot.fork(family_of(env), request, log, answered)

    def spawn_command(
        self, record: Replica, argv: Sequence[str], env: Mapping[str, str], observer: ProcessObserver
    ) -> ProcessHandle:
        """Run a program in the foreground that stands for a replica: `adopt` finds it again by its record.

        Its output is the replica's log. Raise OSError if it cannot be started.
        """
        handle = ProcessHandle(self, record, observer)
        handle.execute_logged(argv, {**env, ENV_HOME: str(self.home.root), process_inspection.ENV_REPLICA: record.id})
        return handle

    def adopt(self, record: Replica, observer: ProcessObserver) -> ProcessHandle | Ended:
        port = int(record.handle or 0) if record.launcher == self.name else 0
        handle = ProcessHandle(self, record, observer, port=port, host=record.host)
        if process_identity.Identity(record.pid, record.boot_id, record.start_ticks).alive:
            handle.watch()
            handle.send(signal.SIGCONT)  # the last supervisor may have died while it had frozen the process
            return handle
        if not record.pid:
            return NOT_STARTED
        if record.boot_id != boot_id():
            return Ended(reason="the machine was restarted", lost=True)
        return Ended(shim.read_exit(handle.exit_file) or Exit())

    def remove_leftovers(self, known: Collection[str]) -> None:
        """Finish the pipes, and remove folders and cgroups, of replicas that ended while no supervisor watched."""
        self.outputs.end_others(known)
        self.limits.sweep(known)
        folders = [*self.home.sockets.glob("*"), *self.home.copies.glob("*")]
        ended = [folder for folder in folders if folder.name not in known]
        if ended:  # in a thread: copies of models may be large
            asyncio.get_running_loop().run_in_executor(None, _remove, ended)

    def finish(self, replica: str) -> bool:
        """Remove what a replica leaves; return whether the kernel killed it for its memory. Blocking."""
        _remove([self.home.sockets / replica, self.home.copies / replica])
        return self.limits.finish(replica)

    async def running(self) -> list[str]:
        return [replica for _, replica in process_inspection.replica_processes(self.home)]

    async def sweep(self, known: Collection[str]) -> None:
        await asyncio.to_thread(self.limits.sweep, known)

    async def close(self, leave_running: bool) -> None:
        if not leave_running:
            await self.sweep(())
        if not leave_running or not await self.running():
            await self.outputs.drained()
            self.outputs.close()
        if self._pilot is not None:
            self._pilot.close(leave_running)


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        rmtree(folder, ignore_errors=True)
