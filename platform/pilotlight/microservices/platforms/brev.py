"""Platform brev: containers on a Brev instance, by the CLI `brev` and docker over ssh. Experimental.

An instance created for a job has the job's name and is deleted with it. Ports are the instance's; where its firewall
blocks them, requests go through a tunnel.
"""

import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from pilotlight.errors import PlatformError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.platforms.commands import set_secrets, validate_job
from pilotlight.microservices.platforms.containers import TAIL, Machine, read_state, run_arguments
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus, State
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.brev.instances import Instance, Instances, is_missing
from pilotlight.targets.brev.instances import create_arguments as instance_arguments
from pilotlight.targets.brev.target import PULL_S
from pilotlight.targets.docker.run_arguments import ULIMITS
from pilotlight.targets.programs import Programs
from pilotlight.targets.slurm.script import exports
from pilotlight.targets.slurm.ssh_tunnel import Tunnel, Tunnels
from pilotlight.wire.machine import free_port

CONNECT_S: Final = 3.0
_STATES: Final[Mapping[str, State]] = {
    "STOPPED": "stopped", "STOPPING": "stopped", "DELETING": "stopped", "FAILURE": "failed", "UNHEALTHY": "failed",
}  # fmt: skip


def make(environ: Mapping[str, str]) -> "Brev":
    return Brev(environ)


class Brev:
    name = "brev"
    own_ports = False
    options = (
        Option(
            "instance_id", "experimental; id or name of the instance; otherwise one is created, and deleted by stop"
        ),
        Option("instance_type", "type of the instance to create, as brev search lists them"),
        Option(
            "cloud_cred_id",
            "cloud credential of instance_id; brev create takes none, so without instance_id it is refused",
        ),
        Option("workspace_group_id", "workspace group of instance_id; likewise"),
        Option("mounts", "folders of its machine that the container sees: /models:/models:ro, comma separated"),
        Option("network", "network of the container; host where the daemon has no bridge"),
        Option("ulimits", "limits of the container, where its machine may not set the usual ones", default=ULIMITS),
        Option("gpus", "devices by number or UUID, comma separated; otherwise the first num_gpus"),
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._instances = Instances(Programs(environ))
        path = registry(environ).path
        self._tunnels = Tunnels(path.with_name(path.name + ".tunnels"), environ)

    def preflight(self, job: Job) -> None:
        create_arguments(validate_job(job))
        named = job.options.get("instance_id", "")
        if not named:
            self._instances.all()
            return
        self._instances.check_docker(self._instances.running(named).name)

    def start(self, job: Job) -> Entry:
        instances = Instances(self._instances.programs.redacting(validate_job(job).secrets))
        named, own = job.options.get("instance_id", ""), instance_name(job.id)
        instance = instances.running(named) if named else instances.create(own, job.options)
        machine = Machine(instances.gpus(instance.name), job.options.get("network", ""))
        done = instances.run(instance.name, run_script(job, machine, instances.programs.environ), PULL_S)
        if done.code:
            self._remove(job.id, instance)
            raise PlatformError(f"docker run on {instance.name} failed: {done.summary}")
        started = utc_now("seconds", "+00:00")
        url = f"http://{instances.host(instance.name)}:{job.host_port}"
        return Entry("brev", job.network_arch, url, started, job.host_port, instance_id=named or instance.name)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        name = entry.instance_id or instance_name(job_id)
        instance = self._instances.find(name)
        if instance is None:
            return PlatformStatus("gone", job_id, reason=f"Brev has no instance {name} any more")
        if instance.status != "RUNNING":
            return PlatformStatus(
                _STATES.get(instance.status, "pending"), job_id, reason=f"{name} is {instance.status}"
            )
        done = self._instances.run(instance.name, status_script(job_id))
        if is_missing(done):
            return PlatformStatus(
                "gone", job_id, reason=f"the Docker of {instance.name} knows no container of this name"
            )
        if done.code:
            raise PlatformError(f"the instance {instance.name} cannot be asked: {done.summary}", "brev refresh")
        state_line, _, logs = done.out.partition("\n")
        return read_state(state_line, job_id, tuple(logs.splitlines()[-TAIL:]))

    def stop(self, job_id: str, entry: Entry) -> None:
        instance = self._instances.find(entry.instance_id or instance_name(job_id))
        if instance is not None and instance.status in ("RUNNING", "STARTING", "DEPLOYING"):
            self._remove(job_id, instance)
        elif instance is not None and instance.name == instance_name(job_id) and instance.status != "DELETING":
            self._instances.delete(instance.name)

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Yield its URL, or the one of a tunnel where it accepts no connection."""
        if _answers(entry.host_url):
            yield entry.host_url
            return
        name, key = (
            self._instances.running(entry.instance_id or instance_name(job_id)).name,
            f"{job_id}.{uuid4().hex[:8]}",
        )
        port = free_port()
        self._tunnels.open(key, Tunnel(name, ((port, entry.host_port or 0),)))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            self._tunnels.close(key)

    def _remove(self, job_id: str, instance: Instance) -> None:
        """Remove the container, and the instance if it was created for this job."""
        if instance.name == instance_name(job_id):
            self._instances.delete(instance.name)
            return
        done = self._instances.run(instance.name, shlex.join(["docker", "rm", "--force", "--volumes", job_id]))
        if done.code and not is_missing(done):
            raise PlatformError(f"docker rm on {instance.name} failed: {done.summary}", f"ssh {instance.name}")


def instance_name(job_id: str) -> str:
    return f"ms-{job_id}"


def create_arguments(job: Job) -> list[str]:
    return instance_arguments(instance_name(job.id), job.options)


def run_script(job: Job, machine: Machine, environ: Mapping[str, str]) -> str:
    """Return the script that starts the container. It has values of secrets, so it is passed by stdin only."""
    names = set_secrets(job, environ)
    words = run_arguments(job, machine, names)
    return f"{exports({name: environ[name] for name in names})}exec {shlex.join(words)}"


def status_script(job_id: str) -> str:
    state = shlex.join(["docker", "inspect", "--type=container", "--format={{json .State}}", job_id])
    return f"{state} && exec {shlex.join(['docker', 'logs', f'--tail={TAIL}', job_id])} 2>&1"


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), CONNECT_S).close()
    except OSError:
        return False
    return True
