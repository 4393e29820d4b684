"""Endpoints of the target `brev`: a container on an instance for each service, by docker over ssh; options and checks.

An instance that is created for a service has its name and is deleted with it. The container publishes one port, on the
loopback of the instance unless the option `address` or a hostIP opens it.
"""

import json
import re
import shlex
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.targets.brev.instances import LOGIN, SSH, Instance, Instances, create_arguments
from pilotlight.targets.docker import run_arguments as docker
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.options import Option
from pilotlight.targets.programs import Programs
from pilotlight.targets.remote.endpoint import EndpointSpec, EndpointState, State, health_path, read_health
from pilotlight.targets.slurm.script import exports
from pilotlight.targets.ssh_tunnel import Tunnel, Tunnels
from pilotlight.targets.target import Event, Finding, ServiceRoute, service_argument
from pilotlight.wire.machine import LOOPBACK, can_connect, free_port

Json = Any
ADDRESSES: Final = ("tunnel", "instance")
OPTIONS: Final = (
    Option("instance_id", "id or name of the instance; default: created and deleted with the service"),
    Option("instance_type", "type of the instance to create, as brev search lists them"),
    Option("cloud_cred_id", "cloud credential of instance_id; not supported by brev create"),
    Option("workspace_group_id", "workspace group of instance_id; not supported by brev create"),
    Option("address", "tunnel (by ssh, the default), or instance (open to its network)", choices=ADDRESSES),
    Option("ulimits", "limits of the container, comma separated, such as memlock=-1"),
    Option("gpus", "devices by number or UUID, comma separated; default: the first ones"),
)
PULL_S: Final = 3600.0
STOP_S: Final = 40
PORTS: Final = range(20000, 30000)  # below those of the kernel
_STATES: Final[Mapping[str, State]] = {
    "STOPPED": "stopped", "STOPPING": "stopped", "DELETING": "stopped", "FAILURE": "failed", "UNHEALTHY": "failed",
}  # fmt: skip


class BrevEndpoints:
    """Implements `targets.remote.endpoint.Endpoints`."""

    name = "brev"

    def __init__(self, environ: Mapping[str, str], home: Home) -> None:
        self._instances = Instances(Programs(environ))
        self._tunnels = Tunnels(home.root / "targets" / "tunnels", environ)

    def check(self, endpoint: EndpointSpec) -> None:
        if (endpoint.replicas, endpoint.max_replicas) != (1, 1):
            problem = f"minReplicas = {endpoint.replicas}, maxReplicas = {endpoint.max_replicas}"
            raise UsageError(f"{problem}: the service is one container on one instance", "use 1 replica")
        create_arguments(endpoint.name, endpoint.options)
        docker.check_secrets(endpoint.container)
        if named := endpoint.options.get("instance_id", ""):
            self._instances.check_docker(self._instances.running(named).name)
        else:
            self._instances.all()  # the account answers

    def put(self, endpoint: EndpointSpec, secrets: Mapping[str, str]) -> None:
        env, named = variables(endpoint, secrets), endpoint.options.get("instance_id", "")
        if not named and self._find(endpoint) is None:
            self._instances.create(endpoint.name, endpoint.options)
        instance = self._instances.running(named or endpoint.name)
        script = run_script(endpoint, self._instances.gpus(instance.name), env)
        # Docker may repeat what it was given.
        values = {name: value for name, value in env.items() if not docker.changes_client(name)}
        secret_names = [variable for variable, _, _ in endpoint.container.secret_env]
        redacting = Programs({**self._instances.programs.environ, **values}, secret_names)
        done = Instances(redacting).run(instance.name, script, PULL_S)
        if done.code:
            end = f"platformctl delete {service_argument(endpoint.key)} --target brev"
            hint = f"ssh {instance.name}" + (f"; it is billed until deleted: {end}" if not named else "")
            raise PlatformError(f"docker run on {instance.name} failed: {done.summary}", hint)

    def get(self, endpoint: EndpointSpec) -> EndpointState | None:
        instance = self._find(endpoint)
        if instance is None:
            return None
        if instance.status != "RUNNING":
            reason = f"the instance {instance.name} is {instance.status}"
            return EndpointState(_STATES.get(instance.status, "pending"), reason=reason, node=instance.name)
        try:
            done = self._instances.run(instance.name, status_script(endpoint))
        except TimedOut as error:
            return EndpointState("unknown", reason=f"the instance {instance.name}: {error}", node=instance.name)
        if docker.is_missing(done):
            return None
        if done.code:
            reason = f"the instance {instance.name} cannot be reached: {done.summary}; try brev refresh"
            return EndpointState("unknown", reason=reason, node=instance.name)
        state, reason = read_status(done.out, endpoint)
        host = self._instances.host(instance.name) if is_open(endpoint) else instance.name
        return EndpointState(state, f"http://{host}:{port_of(endpoint)}", reason, node=instance.name)

    def remove(self, endpoint: EndpointSpec) -> None:
        instance = self._find(endpoint)
        if instance is None or instance.status == "DELETING":
            return
        if instance.name == endpoint.name:
            self._instances.delete(instance.name)
            return
        done = self._instances.run(instance.name, stop_script(endpoint.name), STOP_S + 60)
        if done.code and not docker.is_missing(done):
            raise PlatformError(f"docker rm on {instance.name} failed: {done.summary}", f"ssh {instance.name}")

    def logs(self, endpoint: EndpointSpec, tail: int, *, follow: bool) -> Iterator[str]:
        instance = self._instances.running(endpoint.options.get("instance_id") or endpoint.name)
        words = ["docker", "logs", f"--tail={tail if tail >= 0 else 'all'}", *["--follow"] * follow, endpoint.name]
        return self._instances.programs.lines(
            [*SSH, instance.name, "bash", "-s"], f"exec {shlex.join(words)} </dev/null 2>&1\n"
        )

    def events(self, endpoint: EndpointSpec) -> Sequence[Event]:
        return ()  # docker keeps none

    @contextmanager
    def route(self, endpoint: EndpointSpec, url: str) -> Iterator[ServiceRoute]:
        where = urlsplit(url)
        if is_open(endpoint) and can_connect(where.hostname or "", where.port or 80):  # else a firewall is before it
            yield ServiceRoute(url)
            return
        instance = self._instances.running(endpoint.options.get("instance_id") or endpoint.name)
        key, port = f"{endpoint.name}.{uuid4().hex[:8]}", free_port()
        self._tunnels.open(key, Tunnel(instance.name, ((port, port_of(endpoint)),)))
        try:
            yield ServiceRoute(f"http://{LOOPBACK}:{port}")
        finally:
            self._tunnels.close(key)

    def _find(self, endpoint: EndpointSpec) -> Instance | None:
        return self._instances.find(endpoint.options.get("instance_id") or endpoint.name)


def port_of(endpoint: EndpointSpec) -> int:
    """Return the port of the instance: hostPort, else one by the name, which stays when docker restarts it."""
    return endpoint.container.host_port or PORTS[zlib.crc32(endpoint.name.encode()) % len(PORTS)]


def is_open(endpoint: EndpointSpec) -> bool:
    """Whether the port is published on all addresses of the instance: by the option `address`, else by hostIP."""
    address = endpoint.options.get("address")
    return address == "instance" if address else endpoint.container.host_ip not in ("", LOOPBACK)


def variables(endpoint: EndpointSpec, secrets: Mapping[str, str]) -> dict[str, str]:
    container = endpoint.container
    if missing := [variable for variable, _, key in container.secret_env if key not in secrets]:
        raise PlatformError(f"{missing[0]}: its value was set at the start and is not stored", "start it again")
    return {**container.env, **{variable: secrets[key] for variable, _, key in container.secret_env}}


def run_script(endpoint: EndpointSpec, gpus: docker.Gpus, env: Mapping[str, str]) -> str:
    """Return the script that replaces the container. It has values of secrets, so it is passed by stdin only.

    The image is pulled before the present container ends.
    """
    container, name = endpoint.container, endpoint.name
    daemon = docker.Daemon(gpus, mounts_sockets=False)
    label, published = f"{docker.LABEL}.generation", "0.0.0.0" if is_open(endpoint) else LOOPBACK  # noqa: S104
    words = [
        "docker", "run", "--detach", f"--name={name}", "--restart=unless-stopped",
        f"--label={label}={endpoint.generation}",
        f"--publish={published}:{port_of(endpoint)}:{container.port}",
        *docker.privileges(container, daemon), *docker.limits(container, daemon, range(container.gpus)),
        *docker.gpu_arguments(endpoint.options.get("gpus", ""), container.gpus, gpus),
        *map(docker.bind_mount, container.mounts),
        *(f"--env={each}={value}" if docker.changes_client(each) else f"--env={each}" for each, value in env.items()),
        *docker.image_arguments(container),
    ]  # fmt: skip
    image, running = shlex.quote(container.image), f"docker inspect --format='{{{{index .Config.Labels \"{label}\"}}}}'"
    return "".join((
        f'[ "$({running} {name} 2>/dev/null)" = {endpoint.generation} ] && exit\n',
        f"docker image inspect {image} >/dev/null 2>&1 || docker pull --quiet {image} >/dev/null || exit\n",
        f"{stop_script(name)} >/dev/null 2>&1\n",
        exports({each: value for each, value in env.items() if not docker.changes_client(each)}),
        f"{shlex.join(words)} </dev/null && exit\n",
        # A container that could not start still exists, and would pass for the release.
        f"code=$?; docker rm --force --volumes {name} >/dev/null 2>&1; exit $code\n",
    ))  # fmt: skip


def stop_script(name: str) -> str:
    return f"docker stop --time={STOP_S} {name} >/dev/null; docker rm --force --volumes {name}"


def status_script(endpoint: EndpointSpec) -> str:
    """Return a script that prints the container's state and its response to a request for its health."""
    port, path = port_of(endpoint), health_path(endpoint.container)
    request = "echo HTTP/1.0 200"
    if path:
        request = f"printf 'GET %s HTTP/1.0\\r\\n\\r\\n' {shlex.quote(path)} >&3 && timeout 5 head --bytes=65536 <&3"
    inspect = shlex.join(["docker", "inspect", "--type=container", "--format={{json .State}}", endpoint.name])
    return f"{inspect} || exit\n( exec 3<>/dev/tcp/{LOOPBACK}/{port} && {request} ) 2>/dev/null\nexit 0"


def read_status(text: str, endpoint: EndpointSpec) -> tuple[State, str]:
    """Return state and reason from the output of `status_script`."""
    line, _, response = text.partition("\n")
    state: dict[str, Json] = json.loads(line)
    word = str(state.get("Status", ""))
    if word in ("created", "paused"):
        return "pending", f"the container is {word}"
    if word != "running":
        reason = docker.exit_reason(state) or f"the container exited with code {state.get('ExitCode')}"
        return "failed", f"{reason}; docker restarts it" if word == "restarting" else reason
    head, _, body = response.replace("\r\n", "\n").partition("\n\n")
    status = re.match(r"HTTP/1\.\d (\d{3})", head)
    return read_health(endpoint.container, int(status[1]) if status else 0, body.encode())


def gpus(image: str, environ: Mapping[str, str], options: Mapping[str, str]) -> int | None:
    return None  # an instance may have to be created


def endpoints(environ: Mapping[str, str], home: Home) -> BrevEndpoints:
    return BrevEndpoints(environ, home)


def findings(environ: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether the programs are there, the account answers, and the instance has Docker."""
    for program, fix in (("brev", "see https://docs.nvidia.com/brev/"), ("ssh", "install an ssh client")):
        found = shutil.which(program, path=environ.get("PATH"))
        if found is None:
            yield Finding("fail", "CLI", f"{program} is not on the PATH", fix)
            return
        yield Finding("ok", "CLI", found)
    instances, named = Instances(Programs(environ)), options.get("instance_id", "")
    check = "account"
    try:
        names = ", ".join(each.name for each in instances.all()) or "none"
        yield Finding("ok", check, f"answers; instances: {names}")
        check = "instance"
        if named:
            instances.check_docker(instances.running(named).name)
            yield Finding("ok", check, f"{named} runs, and its Docker answers")
    except PlatformError as error:
        yield Finding("fail", check, str(error), error.hint or LOGIN)
