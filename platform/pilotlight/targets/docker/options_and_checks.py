"""Options of the target `docker`, and checks of its daemon and image, also for `platformctl doctor --target docker`."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from pilotlight import __version__, contract
from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.local.supervisor.gpus import find_devices
from pilotlight.targets.options import Option
from pilotlight.targets.programs import Programs
from pilotlight.targets.target import Finding

OPTIONS: Final = (
    Option("network", "network of the containers; host for several components, and where the daemon has no bridge"),
    Option("ulimits", "limits of the containers, comma separated, such as memlock=-1"),
    Option("docker_host", "address of this machine's daemon", variables=("DOCKER_HOST",)),
)
IMAGE: Final = f"{contract.LOCAL_CAPABILITIES['image']}:{__version__}"


def findings(environ: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what containers need of the daemon: that it answers, a bridge, our image, GPUs."""
    from pilotlight.targets.docker.run_arguments import DAEMON, check_host, gpus_here, read_daemon

    programs = Programs(environ)
    try:
        check_host(options, environ.get("DOCKER_HOST", ""))
    except UsageError as error:
        yield Finding("fail", "daemon", str(error), error.hint)
        return
    try:
        info = json.loads(programs.run_checked(["docker", "info", "--format={{json .}}"], hint=DAEMON))
        if not info.get("ServerVersion"):
            raise PlatformError("; ".join(info.get("ServerErrors") or ["it is not a Docker daemon"]), DAEMON)
    except (PlatformError, ValueError) as error:
        yield Finding("fail", "daemon", f"the Docker daemon does not answer: {error}", getattr(error, "hint", ""))
        return
    yield Finding("ok", "daemon", f"Docker {info['ServerVersion']} on {info.get('OperatingSystem')}")
    if not read_daemon(info, "none", "").mounts_sockets:
        yield Finding("warn", "sockets", "Docker Desktop cannot mount sockets: replicas listen on loopback ports")
    network = options.get("network", "")
    if network and ":" not in network and programs.run(["docker", "network", "inspect", network]).code:
        yield Finding("fail", "network", f"network = {network}: the daemon has no such network", "docker network ls")
    if not network and programs.run(["docker", "network", "inspect", "bridge"]).code:
        text = "the daemon has no bridge: downloads and third-party images need a network"
        yield Finding("warn", "network", text, "add --target-option network=host")
    if programs.run(["docker", "image", "inspect", IMAGE]).code:
        yield Finding("warn", "image", f"{IMAGE} is not on this machine and will be pulled", f"docker pull {IMAGE}")
    else:
        yield Finding("ok", "image", f"{IMAGE} is on this machine")
    if gpus_here() == "requests" and not any("nvidia" in name for name in info.get("Runtimes") or ()):
        yield Finding("warn", "GPUs", "containers cannot use this machine's GPUs", "install nvidia-container-toolkit")


def gpus(image: str, environ: Mapping[str, str], options: Mapping[str, str]) -> int:
    """Return those of this machine. Raise if the daemon does not answer, or neither has the image nor can pull it."""
    from pilotlight.targets.docker.run_arguments import DAEMON

    host = options.get("docker_host", "")
    # Docker before 23 has `manifest` as an experiment.
    programs = Programs({**environ, **({"DOCKER_HOST": host} if host else {}), "DOCKER_CLI_EXPERIMENTAL": "enabled"})
    answer = programs.run(["docker", "version", "--format={{json .Server}}"])
    if answer.code or not isinstance(json.loads(answer.out or "null"), dict):
        raise PlatformError(f"the Docker daemon does not answer: {answer.summary}", DAEMON)
    if programs.run(["docker", "image", "inspect", "--format={{.Id}}", image]).code:
        manifest = programs.run(["docker", "manifest", "inspect", image])
        if manifest.code:
            problem = f"image = {image} is not on this machine and cannot be pulled: {manifest.summary}"
            raise PlatformError(problem, f"docker pull {image}")
    return len(find_devices())
