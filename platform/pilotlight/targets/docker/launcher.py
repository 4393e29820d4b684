"""Launcher of `docker`: each replica is a container, and its attached `docker run` client a process of this machine.

The client runs under a shim, as a process of `local` does: its output and its exit code are the container's, and it
passes SIGTERM on. A killed client leaves its container running, which is then removed. Docker writes the container's id
to a file once the image is there and the container is made; until then the replica is `pending`.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from pilotlight import contract
from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s.model_pins import encode
from pilotlight.targets.docker import run_arguments as arguments
from pilotlight.targets.docker.run_arguments import LABEL, SOCKETS, Daemon
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Fetch, Mount, RevisionSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.launcher import Ended, LaunchObserver, ReplicaAddress, start_failure
from pilotlight.targets.local.supervisor.process_inspection import Identity, usage
from pilotlight.targets.local.supervisor.process_launcher import ProcessHandle, ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica, Usage
from pilotlight.targets.programs import CompletedCommand, Programs
from pilotlight.wire.machine import last_lines

DAEMON: Final = "start it (systemctl start docker), or point DOCKER_HOST at one; you must be in the group docker"
PULL_AFTER_S: Final = 2.0  # without a container so long: the image is being pulled
POLL_S: Final = 0.01
RETRY_S: Final = 0.2
LAST_LINES, LAST_BYTES = 20, 16 << 10  # of the log, where the client says why it failed
REMOVE_S: Final = 60.0  # for a daemon that does not answer; `sweep` of the next control process removes the rest
CANCELLED: Final = Ended(reason="ended before it could start")
_FETCHER_ENV: Final = frozenset({"PATH", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "NO_PROXY"})


class DockerLauncher:
    """Implements `Launcher`; `processes` runs the clients."""

    name = "docker"
    allocates_gpus = True

    def __init__(self, processes: ProcessLauncher) -> None:
        self.processes = processes
        self.home: Home = processes.home
        self._daemons: dict[str, Daemon] = {}  # by DOCKER_HOST; empty: that of the environment
        self._hosts = {""}

    def check(self, revision: RevisionSpec) -> None:
        container = revision.container
        host = container.options.get("docker_host", "") or os.environ.get("DOCKER_HOST", "")
        if host.partition(":")[0] not in ("", "unix"):
            hint = "use the daemon of this machine: its containers are reached by sockets and loopback"
            raise PlatformError(f"docker_host = {host} is on another machine", hint)
        own = contract.is_predictor_image(container.image)
        if container.options.get("network") == "host" and not own and container.host_port != container.port:
            problem = f"network = host, but {container.image} listens on port {container.port} of the machine itself"
            raise PlatformError(problem, "leave network out: its port is published then")

    def start(self, launch: Launch, record: Replica, observer: LaunchObserver) -> "ContainerHandle":
        host = launch.revision.container.options.get("docker_host", "")
        self._hosts.add(host)
        handle = ContainerHandle(self, record, observer, host)
        handle.start(launch)
        return handle

    def adopt(self, record: Replica, observer: LaunchObserver) -> "ContainerHandle":
        host = record.handle.partition("@")[2]
        self._hosts.add(host)
        handle = ContainerHandle(self, record, observer, host)
        handle.adopt(self.processes.adopt(record, handle))
        return handle

    async def sweep(self, known: Collection[str]) -> None:
        for host in tuple(self._hosts):
            with suppress(PlatformError):  # a daemon that does not answer
                for container, replica in await self.containers(host):
                    if replica not in known:
                        await self.docker(host, "rm", "--force", "--volumes", container)

    async def close(self, leave_running: bool) -> None:
        if not leave_running:
            await self.sweep(())

    async def containers(self, host: str, *filters: str) -> list[tuple[str, str]]:
        """Return id and replica of this home's containers, ended ones too. Raise PlatformError."""
        row = f'{{{{.ID}}}} {{{{.Label "{LABEL}.replica"}}}}'
        labels = [f"--filter=label={LABEL}.{label}" for label in (f"home={self.home.root}", *filters)]
        listed = await self.docker(host, "ps", "--all", "--no-trunc", f"--format={row}", *labels)
        return [(words[0], words[1]) for line in listed.splitlines() if len(words := line.split()) == 2]

    async def inspect(self, host: str, container: str) -> Mapping[str, Any]:
        """Return the container as docker describes it. Raise PlatformError."""
        described = json.loads(await self.docker(host, "inspect", "--type=container", container))
        return dict(described[0])

    async def docker(self, host: str, *words: str) -> str:
        """Return the output of a docker command. Raise NotFound without such a container, else PlatformError."""
        programs = Programs(client_environment(host, os.environ))
        done = await asyncio.to_thread(programs.run, ["docker", *words])
        if done.code:
            missing = "No such container" in done.err
            raise (NotFound if missing else PlatformError)(f"docker {words[0]} failed: {done.summary}", DAEMON)
        return done.out

    async def daemon(self, host: str) -> Daemon:
        """Return the properties of a daemon, which is asked once. Raise PlatformError."""
        if host not in self._daemons:
            info = json.loads(await self.docker(host, "info", "--format={{json .}}"))
            user = f"{os.getuid()}:{os.getgid()}"
            self._daemons[host] = arguments.read_daemon(info, arguments.gpus_here({}), user)
        return self._daemons[host]

    async def fetch(self, fetch: Fetch, container: ContainerSpec) -> Mount:
        """Fetch a model for an image that cannot, into a folder that is kept. Raise PlatformError with the reason."""
        pins = encode({uri: pin for uri, pin in container.pins.items() if uri == fetch.uri})
        folder = self.home.cache / "fetched" / hashlib.sha256(f"{fetch.uri} {pins}".encode()).hexdigest()[:32]
        inherited = {name: value for name, value in os.environ.items() if name.upper() in _FETCHER_ENV}
        pinned = {contract.ENV_MODEL_PINS: pins} if pins else {}
        words = [self.processes.python, "-P", "-m", "pilotlight_predictor", "fetch", fetch.uri, str(folder)]
        done = await run_process(words, {"HOME": str(self.home.cache), **inherited, **fetch.env, **pinned})
        if done.code:
            raise PlatformError(f"{fetch.uri} cannot be fetched: {done.summary}")
        return Mount(str(folder), fetch.folder, read_only=True)


class ContainerHandle:
    """One container and its client; implements `ReplicaHandle`, and observes the client's process."""

    def __init__(self, launcher: DockerLauncher, record: Replica, observer: LaunchObserver, host: str) -> None:
        self._launcher, self._record, self._observer, self._host = launcher, record, observer, host
        self._id_file = launcher.home.run / f"{record.id}.container"
        self._client: ProcessHandle | None = None
        self._starting: asyncio.Task[Any] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._pid = 0  # of the container's first process; 0: not known to run
        self._stopping = False  # SIGTERM is due once it runs: docker loses one that comes earlier

    def start(self, launch: Launch) -> None:
        suffix = f"@{self._host}" if self._host else ""
        self._observer.on_pending("starting", arguments.container_name(launch) + suffix)
        self._starting = asyncio.get_running_loop().create_task(self._start(launch))

    async def _start(self, launch: Launch) -> None:
        container = launch.revision.container
        try:
            daemon = await self._launcher.daemon(self._host)
            launch, mounts = await self._mounts(launch, daemon)
            own = contract.is_predictor_image(container.image)
            env = arguments.variables(launch, daemon, str(self._launcher.home.cache) if own else "")
            if container.options.get("network") == "host" and own:
                env[contract.ENV_GATEWAY_URL] = self._launcher.processes.gateway_url
            home = str(self._launcher.home.root)
            words = arguments.run_arguments(launch, daemon, env, mounts, self._record.gpus, home)
            words.insert(2, f"--cidfile={self._id_file}")
            values = {name: value for name, value in env.items() if not arguments.is_clients(name)}
            client_env = {**client_environment(self._host, os.environ), **values}
            self._id_file.unlink(missing_ok=True)
            self._client = self._launcher.processes.spawn_command(self._record, words, client_env, self)
        except (OSError, PlatformError) as error:
            self._observer.on_exited(Ended(reason=start_failure(error)))
            return
        await self._await_container(container.image)
        if arguments.by_sockets(container, daemon):  # the address is known before docker tells the rest
            self._observer.on_started(ReplicaAddress(container_command.host(self._launcher.home, self._record.id)))
            await self._await_running()
        else:
            self._observer.on_started(self._address(await self._await_running()))

    async def _mounts(self, launch: Launch, daemon: Daemon) -> tuple[Launch, list[Mount]]:
        """Return the launch with the paths of its snapshots, and what is mounted besides the pod's volumes."""
        home, container = self._launcher.home, launch.revision.container
        paths = await asyncio.to_thread(container_command.pinned_paths, container, ModelSnapshots(home.models))
        # Of a snapshot the folder: an example beside the model is part of it.
        shared = {os.path.dirname(path) if home.models in Path(path).parents else path for path in paths.values()}
        mounts = [Mount(path, path, read_only=True) for path in sorted(shared)]
        for fetch in container.fetches:
            self._observer.on_pending(f"fetching {fetch.uri}")
            mounts.append(await self._launcher.fetch(fetch, container))
        if arguments.by_sockets(container, daemon):
            folder = home.sockets / self._record.id
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mounts += [Mount(str(folder), SOCKETS), Mount(str(home.cache), str(home.cache))]
        return container_command.with_paths(launch, paths), mounts

    async def _await_container(self, image: str) -> None:
        began = monotonic()
        while not self._container_id():
            if monotonic() - began > PULL_AFTER_S:
                self._observer.on_pending(f"pulling {image}")
            await asyncio.sleep(POLL_S)
        self._observer.on_pending("starting")

    async def _await_running(self) -> Mapping[str, Any]:
        """Return the container's description once it runs. Until it ends, which cancels this."""
        while True:
            with suppress(PlatformError):
                described = await self._launcher.inspect(self._host, self._container_id())
                self._pid = int(described["State"]["Pid"])
                if self._pid:
                    break
            await asyncio.sleep(RETRY_S)
        if self._stopping:
            self.terminate()
        return described

    def adopt(self, client: ProcessHandle | Ended) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(client, Ended):
            self._ending = loop.create_task(self._finish(client))
            return
        self._client = client
        if self._record.state == "draining" and not self._container_id():
            self.kill()
        elif self._record.state == "pending":
            self._starting = loop.create_task(self._continue())
        else:
            self._starting = loop.create_task(self._await_running())

    async def _continue(self) -> None:
        """Report the start of an adopted replica that was pending."""
        await self._await_container("its image")
        self._observer.on_started(self._address(await self._await_running()))

    def _address(self, described: Mapping[str, Any]) -> ReplicaAddress:
        return arguments.address(described, container_command.host(self._launcher.home, self._record.id))

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
        if self._client is None:
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                asyncio.get_running_loop().call_soon(self._observer.on_exited, CANCELLED)
        elif self._killing is None or self._killing.done():
            self._killing = asyncio.get_running_loop().create_task(self._kill(self._client))

    async def _kill(self, client: ProcessHandle) -> None:
        try:
            await self._launcher.docker(self._host, "kill", self._container_id())
        except PlatformError:  # there is no container yet, or no daemon: the container is removed after its client
            client.kill()

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
        while monotonic() < until:
            try:
                state = await self._remove()
                break
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
            found = [each for each, _ in await self._launcher.containers(self._host, f"replica={self._record.id}")]
        state: Mapping[str, Any] = {}
        for container in found:
            with suppress(NotFound):
                state = (await self._launcher.inspect(self._host, container))["State"]
                await self._launcher.docker(self._host, "rm", "--force", "--volumes", container)
        return state

    async def detach(self) -> None:
        for task in (self._starting, self._killing):
            if task is not None:
                task.cancel()
        if self._client is not None:
            await self._client.detach()
        if self._ending is not None:
            await self._ending


def client_environment(host: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the docker client needs of an environment, for the daemon at `host`; empty: as in the environment."""
    own = {name: value for name, value in environ.items() if arguments.is_clients(name)}
    return {**own, "DOCKER_HOST": host} if host else own


async def run_process(words: Sequence[str], env: Mapping[str, str]) -> CompletedCommand:
    """Run a program to its end; it is killed if this is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *words, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE, umask=0o022,
    )  # fmt: skip
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return CompletedCommand(process.returncode or 0, "", errors.decode(errors="replace"))
