"""Launcher of `docker`: each replica is a container, and its attached `docker run` client a process of this machine.

The client runs under a shim, as a process of `local` does: its output and its exit code are the container's, and it
passes SIGTERM on. A killed client leaves its container running, which is then removed. Docker writes the container's id
to a file once the image is there and the container is made; until then the replica is `pending`.
"""

import asyncio
import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.docker import run_arguments as arguments
from pilotlight.targets.docker.run_arguments import DAEMON, LABEL, Daemon
from pilotlight.targets.local.manifests.service_spec_types import RevisionSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.process_identity import Identity
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.launcher import Ended, LaunchObserver, ReplicaAddress, start_failure
from pilotlight.targets.local.supervisor.process_inspection import process_tree, usage
from pilotlight.targets.local.supervisor.process_launcher import ProcessHandle, ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.programs import Programs
from pilotlight.wire.machine import last_lines

PULL_AFTER_S: Final = 2.0  # without a container so long: the image is being pulled
POLL_S: Final = 0.01
RETRY_S: Final = 0.2
REMOVE_S: Final = 60.0  # for a daemon that does not answer; `sweep` of the next control process removes the rest
LAST_LINES, LAST_BYTES = 20, 16 << 10  # of the log, where the client says why it failed
log = logging.getLogger("pilotlight.docker")


class DockerLauncher:
    """Implements `Launcher`; `processes` runs the clients. The daemon is that of the control process's environment."""

    name = "docker"
    allocates_gpus = True

    def __init__(self, processes: ProcessLauncher) -> None:
        self.processes, self.home = processes, processes.home
        self.environ = {name: value for name, value in os.environ.items() if arguments.changes_client(name)}
        self._daemon: Daemon | None = None

    def check(self, revision: RevisionSpec) -> None:
        arguments.check(revision.container, self.environ.get("DOCKER_HOST", ""))

    def start(self, launch: Launch, record: Replica, observer: LaunchObserver) -> "ContainerHandle":
        handle = ContainerHandle(self, record, observer)
        handle.start(launch)
        return handle

    def adopt(self, record: Replica, observer: LaunchObserver) -> "ContainerHandle":
        handle = ContainerHandle(self, record, observer)
        handle.adopt(self.processes.adopt(record, handle))
        return handle

    async def running(self) -> list[str]:
        return [replica for _, replica in await self.containers(ended=False)]

    async def sweep(self, known: Collection[str]) -> None:
        for container, replica in await self.containers():
            if replica not in known:
                await self.docker("rm", "--force", "--volumes", container)

    async def close(self, leave_running: bool) -> None:
        if not leave_running:
            with suppress(PlatformError):  # of a daemon that does not answer
                await self.sweep(())

    async def containers(self, *labels: str, ended: bool = True) -> list[tuple[str, str]]:
        """Return id and replica of this home's containers. Raise PlatformError."""
        row = f'--format={{{{.ID}}}} {{{{.Label "{LABEL}.replica"}}}}'
        filters = [f"--filter=label={LABEL}.{label}" for label in (f"home={self.home.root}", *labels)]
        lines = (await self.docker("ps", *["--all"] * ended, "--no-trunc", row, *filters)).splitlines()
        return [(words[0], words[1]) for line in lines if len(words := line.split()) == 2]

    async def inspect(self, container: str) -> Mapping[str, Any]:
        """Return docker's description of a container. Raise NotFound or PlatformError."""
        described: list[Mapping[str, Any]] = json.loads(await self.docker("inspect", container))
        return described[0]

    async def docker(self, *words: str) -> str:
        """Return the output of a docker command. Raise NotFound without such a container, else PlatformError."""
        done = await asyncio.to_thread(Programs(self.environ).run, ["docker", *words])
        if done.code:
            kind = NotFound if "No such" in done.err else PlatformError
            raise kind(f"docker {words[0]} failed: {done.summary}", DAEMON)
        return done.out

    async def daemon(self) -> Daemon:
        """Return the properties of the daemon, read once. Raise PlatformError."""
        if self._daemon is None:
            info = json.loads(await self.docker("info", "--format={{json .}}"))
            self._daemon = arguments.read_daemon(info, arguments.gpus_here(), f"{os.getuid()}:{os.getgid()}")
        return self._daemon


class ContainerHandle:
    """One container and its client; implements `ReplicaHandle`, and observes the client's process."""

    def __init__(self, launcher: DockerLauncher, record: Replica, observer: LaunchObserver) -> None:
        self._launcher, self._record, self._observer = launcher, record, observer
        self._id_file = arguments.id_file(launcher.home, record.id)
        self._sockets = ReplicaAddress(container_command.host(launcher.home, record.id))
        self._client: ProcessHandle | None = None
        self._starting: asyncio.Task[Any] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._pid = 0  # of the container's first process; 0: not known to run
        self._stopping = False  # SIGTERM is due once it runs: docker loses one that comes earlier

    def start(self, launch: Launch) -> None:
        self._observer.on_pending("", arguments.container_name(launch))
        self._starting = asyncio.get_running_loop().create_task(self._start(launch))

    async def _start(self, launch: Launch) -> None:
        container = launch.revision.container
        try:
            daemon = await self._launcher.daemon()
            await self._run_client(launch, daemon)
        except Exception as error:
            if not isinstance(error, OSError | PlatformError):
                log.exception("%s cannot be started", self._record.id)
            self._observer.on_exited(Ended(reason=start_failure(error)))
            return
        fetched = next((f"fetching {fetch.uri.partition('?')[0]}" for fetch in container.fetches), "")
        await self._await_container(fetched or f"pulling {container.image}")
        if arguments.by_sockets(container, daemon):  # the address is known before docker tells the rest
            self._observer.on_started(self._sockets)
            await self._await_running()
        else:
            self._observer.on_started(arguments.address(await self._await_running(), self._sockets))

    async def _run_client(self, launch: Launch, daemon: Daemon) -> None:
        home, processes = self._launcher.home, self._launcher.processes
        snapshots = ModelSnapshots(home.models)
        paths = await asyncio.to_thread(container_command.pinned_paths, launch.revision.container, snapshots)
        for folder in (home.sockets / self._record.id, home.run / "endpoints"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._id_file.unlink(missing_ok=True)
        words, env = arguments.client_command(
            container_command.with_paths(launch, paths), daemon, home, processes.gateway_url, paths.values(),
            self._record.gpus, processes.python,
        )  # fmt: skip
        self._client = processes.spawn_command(self._record, words, self._launcher.environ | env, self)

    async def _await_container(self, pulling: str) -> None:
        began = monotonic()
        while not self._container_id():
            late = monotonic() - began > PULL_AFTER_S
            self._observer.on_pending(pulling if late else "")
            await asyncio.sleep(RETRY_S if late else POLL_S)

    async def _await_running(self) -> Mapping[str, Any]:
        """Return the container's description once it runs. Its end cancels this."""
        while not self._pid:
            with suppress(PlatformError):
                described = await self._launcher.inspect(self._container_id())
                self._pid = int(described["State"]["Pid"])
            if not self._pid:
                await asyncio.sleep(RETRY_S)
        if self._stopping:
            self.terminate()
        return described

    def adopt(self, client: ProcessHandle | Ended) -> None:
        if isinstance(client, Ended):
            self.on_exited(client)
            return
        self._client = client
        if self._record.state == "draining" and not self._container_id():
            self.kill()
        else:
            self._starting = asyncio.get_running_loop().create_task(self._continue())

    async def _continue(self) -> None:
        await self._await_container("fetching its model or pulling its image")
        described = await self._await_running()
        if self._record.state == "pending":
            self._observer.on_started(arguments.address(described, self._sockets))

    def _container_id(self) -> str:
        """Return the id of the container; empty: none has been made."""
        with suppress(OSError):
            return self._id_file.read_text().strip()
        return ""

    def terminate(self) -> None:
        self._stopping = True
        if self._client is None or not self._container_id():
            self.kill()
        elif self._pid:
            self._client.terminate()

    def kill(self) -> None:
        loop = asyncio.get_running_loop()
        if self._client is not None and self._killing is None:
            self._killing = loop.create_task(self._kill(self._client))
        elif self._client is None and self._starting is not None and self._starting.cancel():
            loop.call_soon(self._observer.on_exited, Ended(reason="stopped before it started"))

    async def _kill(self, client: ProcessHandle) -> None:
        if container := self._container_id():
            with suppress(PlatformError):
                await self._launcher.docker("kill", container)
                return
        client.kill()  # without a daemon the container is removed later

    def processes(self) -> Sequence[int]:
        return list(process_tree(self._pid)) if self._pid else []

    def usage(self) -> Usage:
        return usage(self._pid) if self._pid else Usage()

    def age_s(self) -> float:
        return self._client.age_s() if self._client is not None else 0.0

    def on_process(self, identity: Identity, forked: bool = False) -> None:
        self._observer.on_process(identity, forked)

    def on_ending(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        self._observer.on_ending()

    def on_exited(self, ended: Ended) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._finish(ended))

    async def _finish(self, ended: Ended) -> None:
        """Remove the container and report the end, in this order: the next replica may have the container's name."""
        until, state = monotonic() + REMOVE_S, None
        while state is None and monotonic() < until:
            try:
                state = await self._remove()
            except PlatformError:
                await asyncio.sleep(RETRY_S)
        self._id_file.unlink(missing_ok=True)
        lines: list[str] = []
        with suppress(OSError):
            lines = last_lines(Path(self._record.log), LAST_LINES, max_bytes=LAST_BYTES)
        self._observer.on_exited(arguments.end_of(ended, state, lines))

    async def _remove(self) -> Mapping[str, Any]:
        """Remove the container and return its last state; empty: there is none. Raise PlatformError."""
        found = [self._container_id()]
        if not found[0]:  # a killed client may not have written it
            found = [each for each, _ in await self._launcher.containers(f"replica={self._record.id}")]
        state: Mapping[str, Any] = {}
        for container in found:
            with suppress(NotFound):
                state = (await self._launcher.inspect(container))["State"]
                await self._launcher.docker("rm", "--force", "--volumes", container)
        return state

    async def detach(self) -> None:
        for task in (self._starting, self._killing):
            if task is not None:
                task.cancel()
        if self._client is not None:
            await self._client.detach()
        if self._ending is not None:
            await self._ending
