"""Endpoints of the target `lepton`, one of the workspace for each service; its options and checks.

Variables go by a file that only this user reads, since arguments are visible to all users. Values of the service's own
Secret are secrets of the workspace, referred to by their key.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from pilotlight.contract import is_predictor_image
from pilotlight.errors import Conflict, PlatformError, UsageError
from pilotlight.targets.lepton.workspace import LOGIN, MAX_LINES, Workspace, address, state_of
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.options import Option
from pilotlight.targets.remote.endpoint import EndpointSpec, EndpointState, State, health_path, read_health
from pilotlight.targets.target import Event, Finding, ServiceRoute
from pilotlight.wire.http_client import FAILURES, HttpClient

Json = Any
OPTIONS: Final = (
    Option("resource_shape", "shape of the machine, such as gpu.8xh100-sxm", required=True),
    Option("dedicated_node_group", "node group; default: on-demand resources"),
    Option("image_pull_secret", "registry credential of the workspace, needed for nvcr.io"),
    Option("access", "open: the endpoint requires no token; default: the workspace's setting"),
)
ENV_TOKEN: Final = "LEPTON_ENDPOINT_TOKEN"  # noqa: S105 - the name of a variable
PREDICTOR: Final = ("python", "-m", "pilotlight_predictor")  # entry point of our image
HEALTH_S: Final = 5.0
_STATES: Final[Mapping[str, State]] = {
    "Ready": "ready", "Stopping": "stopped", "Stopped": "stopped", "Deleting": "stopped", "Error": "failed",
}  # fmt: skip
_SHAPE: Final = re.compile(r"gpu\.(?:(\d+)x)?")


class LeptonEndpoints:
    """Implements `targets.remote.endpoint.Endpoints`."""

    name = "lepton"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._workspace = Workspace(environ)
        token = environ.get(ENV_TOKEN, "")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def check(self, endpoint: EndpointSpec) -> None:
        create_arguments(endpoint)
        specification(endpoint)
        self._workspace.check_secrets(key for _, _, key in endpoint.container.secret_env)

    def put(self, endpoint: EndpointSpec, secrets: Mapping[str, str]) -> None:
        document, wanted = self._workspace.get(endpoint.name), specification(endpoint)
        if document is not None and state_of(document) == "Deleting":
            raise Conflict(f"Lepton is still deleting the endpoint {endpoint.name}; retry when it is deleted")
        if document is not None and is_same_program(document.get("spec") or {}, wanted):
            image = endpoint.container.image
            self._workspace.endpoint("update", endpoint.name, "--container-image", image, *_scale(endpoint))
            return
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:  # mode 0600
            json.dump(wanted, file)
            file.flush()
            again = ["--rerun"] if document is not None else []
            self._workspace.endpoint("create", endpoint.name, "--file", file.name, *create_arguments(endpoint), *again)

    def get(self, endpoint: EndpointSpec) -> EndpointState | None:
        document = self._workspace.get(endpoint.name)
        if document is None:
            return None
        name, url = state_of(document), address(document)
        state = _STATES.get(name, "pending")
        reason = f"Lepton reports {name}: lep endpoint events --name {endpoint.name} shows why"
        if state == "ready":  # that it listens; its model may still be loading
            state, reason = self._health(endpoint, url)
        desired = ((document.get("status") or {}).get("autoscaler_status") or {}).get("desired_replicas")
        return EndpointState(state, url, reason, int(endpoint.replicas if desired is None else desired))

    def _health(self, endpoint: EndpointSpec, url: str) -> tuple[State, str]:
        path = health_path(endpoint.container)
        if not path:
            return "ready", ""
        try:
            with HttpClient(url, HEALTH_S, self._headers) as client:
                reply = client.request("GET", path)
        except FAILURES:
            return read_health(endpoint.container, 0, b"")
        if reply.status in (401, 403):
            return "ready", ""  # it asks for a token that this command has not
        return read_health(endpoint.container, reply.status, reply.body)

    def remove(self, endpoint: EndpointSpec) -> None:
        self._workspace.remove(endpoint.name)

    def logs(self, endpoint: EndpointSpec, tail: int, *, follow: bool) -> Iterator[str]:
        if follow:
            return self._workspace.programs.lines(["lep", "endpoint", "log", "--name", endpoint.name])
        return iter(self._workspace.log(endpoint.name, tail if tail > 0 else MAX_LINES))

    def events(self, endpoint: EndpointSpec) -> Sequence[Event]:
        if self._workspace.get(endpoint.name) is None:
            return ()
        return read_events(self._workspace.endpoint("events", endpoint.name), endpoint)

    def route(self, endpoint: EndpointSpec, url: str) -> AbstractContextManager[ServiceRoute]:
        return nullcontext(ServiceRoute(url, self._headers))


def specification(endpoint: EndpointSpec) -> dict[str, Json]:
    """Return the part of Lepton's specification that only a new endpoint can have: program and variables."""
    container = endpoint.container
    if container.mounts:
        problem = f"hostPath {container.mounts[0].source}: Lepton machines cannot mount your folders"
        raise UsageError(problem, "use a URI such as s3://")
    command = [*container.command, *container.args]
    if container.args and not container.command:
        if not is_predictor_image(container.image):
            raise UsageError("args without command: Lepton replaces the entry point of the image", "write command too")
        command = [*PREDICTOR, *container.args]
    references = {variable: key for variable, _, key in container.secret_env}
    return {
        "container": {
            "image": container.image, "ports": [{"container_port": container.port}],
            **({"command": command} if command else {}),
        },
        "envs": [
            *({"name": name, "value": value} for name, value in container.env.items()),
            *({"name": name, "value_from": {"secret_name_ref": key}} for name, key in references.items()),
        ],
    }  # fmt: skip


def is_same_program(live: Mapping[str, Json], wanted: Mapping[str, Json]) -> bool:
    """Whether `lep endpoint update` is enough, which changes image, shape and replicas only."""

    def program(spec: Mapping[str, Json]) -> Json:
        container = spec.get("container") or {}
        ports = [port.get("container_port") for port in container.get("ports") or ()]
        envs = {
            each["name"]: (each.get("value") or "", (each.get("value_from") or {}).get("secret_name_ref"))
            for each in spec.get("envs") or ()
            if not each["name"].startswith("LEPTON_")
        }
        return container.get("command") or [], ports, envs

    return bool(program(live) == program(wanted))


def create_arguments(endpoint: EndpointSpec) -> list[str]:
    """Return what is no part of the file, since the program's defaults would replace it."""
    options = endpoint.options
    access = options.get("access", "")
    if access not in ("", "open"):
        raise UsageError(f"access = {access}, must be open or left out")
    named = {"--node-group": "dedicated_node_group", "--image-pull-secrets": "image_pull_secret"}
    return [
        *_scale(endpoint),
        *(word for flag, option in named.items() if (value := options.get(option)) for word in (flag, value)),
        *(["--allow-unauthenticated-access"] if access else ()),
    ]  # fmt: skip


def _scale(endpoint: EndpointSpec) -> list[str]:
    """Return shape and replicas. Without --replicas-static an endpoint falls to zero after an hour."""
    shape, least, most = endpoint.options.get("resource_shape", ""), endpoint.replicas, endpoint.max_replicas
    _check_shape(shape, endpoint.container.gpus)
    if least < 1:
        raise UsageError(f"minReplicas = {least}: an endpoint at zero is not woken by a request", "use minReplicas: 1")
    if most == least:
        return ["--resource-shape", shape, "--replicas-static", str(least)]
    if not endpoint.per_minute:
        problem = f"maxReplicas = {most}: Lepton scales by queries per minute or GPUs"
        raise UsageError(problem, "use scaleMetric: rps, or leave maxReplicas out")
    return ["--resource-shape", shape, "--autoscale-qpm", f"{least},{most},{endpoint.per_minute:g}"]


def _check_shape(shape: str, gpus: int) -> None:
    """Raise UsageError without a shape, or for one with fewer GPUs."""
    if not shape:
        raise UsageError("resource_shape is missing", "set it, such as gpu.8xh100-sxm")
    has = 0 if shape.startswith("cpu.") else gpus
    if found := _SHAPE.match(shape):
        has = int(found[1] or 1)
    if gpus > has:
        raise UsageError(f"resource_shape = {shape} has {has} GPUs, but {gpus} are requested", "use a larger one")


def read_events(text: str, endpoint: EndpointSpec) -> list[Event]:
    """Parse the table of `lep endpoint events`: endpoint, type, reason, regarding, count, time in UTC."""
    lines = [line.strip() for line in text.splitlines()]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    return [
        Event(
            f"{row[5].replace(' ', 'T')}Z", *endpoint.key, f"Endpoint/{endpoint.name}",
            "Warning" if row[1] == "Warning" else "Normal", row[2],
            f"Lepton, {row[4]} times: " + re.sub("[{}']", "", row[3]),
        )
        for row in rows if len(row) == 6
    ]  # fmt: skip


def gpus(image: str, environ: Mapping[str, str], options: Mapping[str, str]) -> int | None:
    return 0 if options["resource_shape"].startswith("cpu.") else None


def endpoints(environ: Mapping[str, str], home: Home) -> LeptonEndpoints:
    return LeptonEndpoints(environ)


def findings(environ: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether the CLI is there, logged in, and the workspace answers."""
    found = shutil.which("lep", path=environ.get("PATH"))
    if found is None:
        yield Finding("fail", "CLI", "lep is not on the PATH", "pip install -U leptonai")
        return
    yield Finding("ok", "CLI", found)
    programs = Workspace(environ).programs
    try:
        name = programs.run_checked(["lep", "workspace", "id"], hint=LOGIN).strip()
        programs.run_checked(["lep", "endpoint", "list"], hint=LOGIN)
    except PlatformError as error:
        yield Finding("fail", "workspace", f"it does not answer: {error}", error.hint or LOGIN)
        return
    yield Finding("ok", "workspace", f"{name} answers")
    if not options.get("resource_shape"):
        yield Finding("fail", "shape", "not set", "--target-option resource_shape=SHAPE, such as gpu.a10")
