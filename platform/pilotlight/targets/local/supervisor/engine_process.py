"""Command, environment and address of an engine that runs as a process instead of a container.

catalogue/engine_programs.yaml has its program, which must be installed on this machine. The arguments are those of the
manifests except for the address: a free port of loopback, or a unix socket. Paths of models are those of this machine.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pilotlight import contract
from pilotlight.catalogue import engine_programs
from pilotlight.catalogue.engine_programs import EngineCommand
from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.installed_engines import Installed, installed_program
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.local.supervisor import container_command
from pilotlight.targets.local.supervisor.container_command import LOOPBACK
from pilotlight.targets.local.supervisor.launcher import ReplicaAddress
from pilotlight.targets.local.supervisor.process_inspection import ENV_REPLICA
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.wire import unix_socket
from pilotlight.wire.machine import free_port

ADDRESS_FLAGS: Final = frozenset({"--host", "--port", "--uds"})
TMP: Final = "/tmp"  # noqa: S108 - of the container, which a pod does not share with others


class EngineProcess(NamedTuple):
    argv: list[str]
    env: dict[str, str]
    address: ReplicaAddress


def program_of(container: ContainerSpec, environ: Mapping[str, str]) -> tuple[EngineCommand, Installed]:
    """Return engine and program of a container. Raise PlatformError if it is no engine, or is not installed."""
    named = engine_programs.engine_command(container.image, container.command, container.args)
    if named is None:
        problem = f"image = {container.image}, but only the Pilotlight predictor and engines run without containers"
        raise PlatformError(problem, "use --target docker, or platformctl render for a cluster")
    program = installed_program(named.engine, named.command, environ)
    if program is None:
        problem = f"image = {container.image}: {engine_programs.missing_program(named.engine.name)}"
        raise PlatformError(problem, "or use --target docker")
    return named, program


def prepare(
    launch: Launch, gpus: Sequence[int | str], home: Home, python: str, environ: Mapping[str, str]
) -> EngineProcess:
    """Return the process of a replica on a free port. `python` fetches its models. Raise PlatformError."""
    launch = container_command.with_paths(launch, container_command.fetched_folders(launch, home))
    container, folder = launch.revision.container, str(home.sockets / launch.replica)
    named, program = program_of(container, environ)
    address = _address(container, named, program.paths, container_command.host(home, launch.replica))
    fetch, fetching = container_command.fetch_command(launch, home, python)
    args = container_command.split_flags(named.args, ADDRESS_FLAGS)[0]
    argv = [*fetch, *program.argv, *program.arguments(args), *_address_arguments(container, named, address, home)]
    inherited = container_command.inherited(container, environ)
    # Programs of its environment shadow others of the same name.
    search = os.pathsep.join([os.path.dirname(program.argv[0]), inherited.get("PATH", os.defpath)])
    cuda = container_command.visible_devices(gpus)
    env = {
        **inherited, "PATH": search, "TMPDIR": folder, **({} if gpus else cuda), **fetching,
        **{name: folder if value == TMP else value for name, value in container.env.items()},
        **(cuda if gpus else {}), "K_REVISION": launch.revision.name, contract.ENV_REVISION: launch.revision.name,
        ENV_HOME: str(home.root), ENV_REPLICA: launch.replica,
        **launch.extra_env, **launch.secret_values(container.secret_env),
    }  # fmt: skip
    return EngineProcess(argv, env, address)


def _address(container: ContainerSpec, named: EngineCommand, paths: Mapping[str, str], sockets: str) -> ReplicaAddress:
    """Return a free port of loopback, or a socket for an engine that sleeps and can listen on one."""
    if container.parks and named.sleeps is not None and named.sleeps.socket and not container.host_port:
        return ReplicaAddress(sockets, paths=paths)
    port = container.host_port or free_port()
    return ReplicaAddress(container.host_ip or LOOPBACK, {container.port: port}, paths)


def _address_arguments(
    container: ContainerSpec, named: EngineCommand, address: ReplicaAddress, home: Home
) -> list[str]:
    if named.sleeps is not None and unix_socket.is_unix(address.host):
        path = unix_socket.socket_path(address.host, container.port)
        if len(os.fsencode(path)) > unix_socket.MAX_PATH:
            path = path.relative_to(home.root)  # the folder that replicas start in
        return [named.sleeps.socket, str(path)]
    return ["--host", address.host, "--port", str(address.ports[container.port])]
