"""Translate a container of the manifests into command, environment and ports of a local process.

Paths and ports of the platform's own image are variables, so the manifests of a cluster also start a process. Its ports
are unix sockets in a folder of its own (wire/unix_socket.py): other users of the machine cannot connect. It inherits
only what it needs to find libraries, object stores and proxies; a model of others gets no credentials of the platform.
Engines of other images are in engine_process.py.
"""

import hashlib
import os
import re
import shlex
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight import contract
from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import encode, is_local, local_path
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.manifests.pods import READY_PATH, map_path
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Probe
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.supervisor.launcher import ReplicaAddress
from pilotlight.targets.local.supervisor.probes import start_budget
from pilotlight.targets.local.supervisor.process_inspection import ENV_REPLICA
from pilotlight.targets.local.supervisor.replica_record import Checks, Launch
from pilotlight.targets.secret_redaction import is_secret
from pilotlight.wire.model_formats.python_code import served_names
from pilotlight.wire.unix_socket import SCHEME

_ROUTER: Final = ("-m", "pilotlight.gateway", "route")
_PREDICTOR: Final = ("-m", "pilotlight_predictor")
_INHERITED: Final = frozenset({"PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE"})
_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"})
_SANDBOXED: Final = ("PATH", "LANG", "LD_LIBRARY_PATH")  # a proxy's URL may hold a password
_INHERITED_PREFIXES: Final = ("AWS_", "GOOGLE_", "AZURE_", "HF_", "REGISTRY_", "UV_")  # UV_: indexes of requirements
_ADDRESSES: Final = frozenset({
    "--host", "--http-address", "--grpc-address", "--metrics-address",
    "--http-port", "--port", "--grpc-port", "--metrics-port",
})  # fmt: skip
HOST_SETTINGS: Final = ("INFERENCE_HOST", "INFERENCE_GRPC_ADDRESS", "INFERENCE_METRICS_ADDRESS")
_PORT_SETTINGS: Final = {
    "INFERENCE_HTTP_PORT": contract.HTTP_PORT,
    "INFERENCE_GRPC_PORT": contract.GRPC_PORT,
    "INFERENCE_METRICS_PORT": contract.METRICS_PORT,
}


# Fetches models for programs that cannot; files must be readable by the user of any image. Then becomes the program.
_FETCH: Final = """umask 022; python=$0; home=$1; shift
while [ "$1" != -- ]; do
HOME=$home "$python" -P -m pilotlight_predictor fetch "$1" "$2" >/dev/null || exit; shift 2
done
shift; exec "$@"
"""
_OFF: Final = {"INFERENCE_GRPC_PORT": "-1", "INFERENCE_METRICS_PORT": "-1"}
LOOPBACK: Final = "127.0.0.1"


class Ports(NamedTuple):
    """Names of the sockets in a replica's folder, as the ports of a pod are."""

    http: int = contract.HTTP_PORT
    grpc: int = contract.GRPC_PORT
    metrics: int = contract.METRICS_PORT


PORTS: Final = Ports()


@dataclass(frozen=True, slots=True)
class Command:
    """Command line. `predictor_args` follow `python -m pilotlight_predictor`; None: another program."""

    argv: tuple[str, ...]
    predictor_args: tuple[str, ...] | None


def ports(container: ContainerSpec) -> Ports:
    """Return the ports of a container: the predictor's are set by variables, of others only one is known."""
    return PORTS if contract.is_predictor_image(container.image) else Ports(container.port, 0, 0)


def host(home: Home, replica: str) -> str:
    return f"{SCHEME}{home.sockets / replica}"


def address(container: ContainerSpec, home: Home, replica: str) -> ReplicaAddress:
    if not container.host_port:
        return ReplicaAddress(host(home, replica))
    port = container.host_port
    return ReplicaAddress(container.host_ip or LOOPBACK, {PORTS.http: port, PORTS.grpc: 0, PORTS.metrics: port})


def command(container: ContainerSpec, python: str) -> Command:
    """Return the command of a container. Raise PlatformError for anything but the platform's predictor and router."""
    if not contract.is_predictor_image(container.image):
        hint = "use platformctl render for a cluster"
        raise PlatformError(f"image = {container.image}, but the local target runs only pilotlight/predictor", hint)
    args = without_addresses(container.args)
    words = (*container.command, *args)
    # -P: never import from the working directory.
    if not container.command:
        return Command((python, "-P", *_PREDICTOR, *args), args)
    for module in (_PREDICTOR, _ROUTER):
        if words[1 : 1 + len(module)] == module and re.fullmatch(r"(?:.*/)?python[\d.]*", words[0]):
            rest = words[1 + len(module) :]
            return Command((python, "-P", *module, *rest), rest if module is _PREDICTOR else None)
    text = f"command = {' '.join(container.command)}, but the local target runs only the image's own programs"
    raise PlatformError(text, "use platformctl render for a cluster")


def without_addresses(args: Sequence[str]) -> tuple[str, ...]:
    """Remove flags of listening addresses: they would override the ports that are set by variables."""
    return split_flags(args, _ADDRESSES)[0]


def split_flags(args: Sequence[str], flags: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the other arguments, and the values of these flags."""
    rest: list[str] = []
    values: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name.replace("_", "-") not in flags:
            rest.append(word)
        else:
            values.append(value if equals else next(words, ""))
    return tuple(rest), values


def variables(
    launch: Launch, gpus: Sequence[int | str], home: Home, gateway_url: str, environ: Mapping[str, str]
) -> dict[str, str]:
    container = launch.revision.container
    remote = {uri: pin for uri, pin in container.pins.items() if not is_local(uri)}
    cuda = visible_devices(gpus)
    return {
        **inherited(container, environ),
        **({} if gpus else cuda),
        **({contract.ENV_ADMIN_TOKEN_FILE: str(home.token)} if container.has_token else {}),
        "PYTHONUNBUFFERED": "1",  # print() of a model is in its log at once
        **container.env,
        **({contract.ENV_MODEL_PINS: encode(remote)} if remote else {}),
        **(cuda if gpus else {}),
        **dict(zip(_PORT_SETTINGS, map(str, PORTS), strict=True)),
        **dict.fromkeys(HOST_SETTINGS, host(home, launch.replica)),
        **_microservice_address(container),
        "INFERENCE_DRAIN_DELAY": "0",
        "INFERENCE_LOG_FORMAT": "json",
        "K_REVISION": launch.revision.name,
        contract.ENV_REVISION: launch.revision.name,
        contract.ENV_CACHE_DIR: str(home.cache),
        contract.ENV_GATEWAY_URL: gateway_url,
        contract.ENV_ENDPOINTS_DIR: str(home.run / "endpoints"),
        ENV_HOME: str(home.root),
        ENV_REPLICA: launch.replica,
        **launch.extra_env,
        **launch.secret_values(container.secret_env),
    }


def visible_devices(gpus: Sequence[int | str]) -> dict[str, str]:
    # NVML numbers devices in PCI bus order; CUDA does so only with CUDA_DEVICE_ORDER.
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def inherited(container: ContainerSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the process inherits: a model of others gets only the credentials that its document names."""
    inherited = inherited_env(environ)
    if container.own_health and not container.isolation:
        return inherited
    unwanted = _INHERITED_PREFIXES if container.isolation else ()
    names = {name for name in inherited if not is_secret(name) and not name.startswith(unwanted)}
    names &= set(_SANDBOXED if container.isolation == "sandbox" else names)
    return {name: inherited[name] for name in names}


def _microservice_address(container: ContainerSpec) -> dict[str, str]:
    """Return the settings of a microservice: HTTP only, on its port of the machine if it has one."""
    if container.own_health:
        return {}
    port = {"INFERENCE_HTTP_PORT": str(container.host_port), "INFERENCE_HOST": container.host_ip or LOOPBACK}
    return {**_OFF, **(port if container.host_port else {})}


def with_pinned_models(launch: Launch, snapshots: ModelSnapshots) -> Launch:
    """Replace the paths of local models by those of their snapshots. Raise ModelChanged if they are not as deployed."""
    return with_paths(launch, pinned_paths(launch.revision.container, snapshots))


def pinned_paths(container: ContainerSpec, snapshots: ModelSnapshots) -> dict[str, str]:
    """Return the paths to serve local models from, by their own. Raise ModelChanged if they are not as deployed."""
    local = {local_path(uri): pin for uri, pin in container.pins.items() if is_local(uri)}
    return {path: snapshots.serving_path(pin, path) for path, pin in local.items()}


def missing_file_fix(container: ContainerSpec, reason: str) -> str:
    """Return the fix for a start that failed for a file that is beside the model's original and not in its snapshot.

    Empty: the reason names no such file.
    """
    for uri, pin in container.pins.items():
        content, source = f"/{pin.digest.removeprefix('sha256:')}/content/", Path(local_path(uri))
        named = re.search(rf"(/\S*{re.escape(content)})([^'\"\n]+)", reason)
        # The replica writes the reason: it must not learn which files exist outside of the model's folder.
        file = named[2].lstrip("/") if named else ""
        if not named or not file or ".." in Path(file).parts or os.path.exists(named[0]):
            continue
        if not source.is_file() or not (source.parent / file).exists():
            continue
        served = re.search(r"\bclass=(\w+)", container.env.get(contract.ENV_MODEL_PARAMETER, ""))
        names = [served[1]] if served else [] if source.name == "model.py" else served_names(source)
        word = shlex.quote(f"{source.parent}:{names[0]}" if len(names) == 1 else str(source.parent))
        problem = f"{file} was not deployed with {source.name}, since no string of its code is this path"
        return f"{problem}; deploy the folder: platformctl deploy {word}"
    return ""


def with_paths(launch: Launch, paths: Mapping[str, str]) -> Launch:
    if not paths:
        return launch
    container = launch.revision.container
    env = {name: map_path(value, paths) for name, value in container.env.items()}
    command, args = (tuple(map_path(word, paths) for word in each) for each in (container.command, container.args))
    mounts = tuple(replace(mount, source=map_path(mount.source, paths)) for mount in container.mounts)
    mapped = replace(container, env=env, command=command, args=args, mounts=mounts)
    return replace(launch, revision=replace(launch.revision, container=mapped))


def fetch_command(launch: Launch, home: Home, python: str) -> tuple[list[str], dict[str, str]]:
    """Return the words before a command that fetch its models first, and their variables; none: nothing to fetch."""
    container = launch.revision.container
    if not container.fetches:
        return [], {}
    folders = fetched_folders(launch, home)
    pins = {contract.ENV_MODEL_PINS: encode(container.pins)}
    given = [{**fetch.env, **launch.secret_values(fetch.secret_env)} for fetch in container.fetches]
    fetches = [word for fetch in container.fetches for word in (fetch.uri, folders[fetch.folder])]
    return ["/bin/sh", "-c", _FETCH, python, str(home.cache), *fetches, "--"], {**pins, **dict(ChainMap(*given))}


def fetched_folders(launch: Launch, home: Home) -> dict[str, str]:
    """Return the folders of this machine for models, by those of the container.

    Of a microservice, maybe of an org, they go with the replica. Others are kept for replicas of the same namespace
    that read the same store.
    """
    namespace, container = launch.revision.namespace, launch.revision.container
    parent = home.copies / launch.replica if container.host_port else home.cache / "fetched"
    folders = {}
    for fetch in container.fetches:
        store = sorted((name, value) for name, value in fetch.env.items() if not is_secret(name))
        content = f"{namespace} {fetch.uri} {container.pins.get(fetch.uri)} {store}"
        folders[fetch.folder] = str(parent / hashlib.sha256(content.encode()).hexdigest()[:32])
    return folders


def inherited_env(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in _INHERITED or name.upper() in _PROXIES or name.startswith(_INHERITED_PREFIXES)
    }


def checks(launch: Launch, home: Home) -> Checks:
    """Return the probes; of the predictor with the ports that `variables` sets instead of those of the manifests."""
    revision = launch.revision
    container = revision.container
    ours = contract.is_predictor_image(container.image)
    local = {
        int(text) if (text := container.env.get(name, "")).isdecimal() else default: default
        for name, default in _PORT_SETTINGS.items()
    }

    def localize(probe: Probe | None) -> Probe | None:
        if probe is None or not ours:
            return probe
        port = local.get(probe.port, PORTS.http)  # an unknown port can only be the predictor's HTTP port
        # gRPC health reports the same state as HTTP readiness.
        grpc = probe.kind == "http" and (port == PORTS.grpc or not probe.path)
        return replace(probe, port=PORTS.http if grpc else port, path=READY_PATH if grpc else probe.path)

    ready = READY_PATH if container.own_health else ""
    return Checks(
        localize(container.readiness) or Probe(ready, ports(container).http, kind="http" if ready else "tcp"),
        localize(container.startup),
        localize(container.liveness),
        start_budget(container.startup, revision.progress_deadline_s),
        container.memory_limit,
        revision.grace_s,
        container.own_health and "pilotlight.gateway" not in container.command,
        host(home, launch.replica),
    )
