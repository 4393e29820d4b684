"""Interpret a pod template as the process of a replica; used by interpret.py. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.contract import GRPC_PORT, HTTP_PORT, is_predictor_image
from pilotlight.targets.local.model import ContainerSpec, Probe
from pilotlight.targets.local.mounts import map_path, path_map, unused_fetches
from pilotlight.targets.local.objects import Objects, at, mapping_at
from pilotlight.targets.local.scaling.fields import quantity_of
from pilotlight.targets.local.variables import expanded, variables_of

Json = Any
GPU: Final = "nvidia.com/gpu"
ELSEWHERE: Final = "use --target kubernetes"
FOREIGN: Final = "only our own predictor runs without containers; platformctl render makes manifests for a cluster"
PROGRAMS: Final = (("-m", "pilotlight_predictor"), ("-m", "pilotlight.gateway"))
READY_PATH: Final = "/v2/health/ready"
_DEVICES: Final = ("nvidia.com/mig-", "amd.com/", "gpu.intel.com/", "habana.ai/", "google.com/tpu")


def container_of(
    template: Mapping[str, Json], namespace: str, objects: Objects, port: Json, refused: list[str]
) -> ContainerSpec:
    """Return the container; problems are added to `refused`. `port` is the Service's targetPort."""
    pod = mapping_at(template, "spec")
    containers: list[dict[str, Json]] = list(pod.get("containers") or ({},))
    main, image, problems = containers[0], str(containers[0].get("image") or ""), _refuse_sidecars(containers[1:])
    variables = variables_of(main, mapping_at(template, "metadata"), namespace, objects)
    paths = path_map(pod, main, problems)
    problems += [
        *variables.refused,
        *unused_fetches(pod, [*variables.values.values(), *map(str, main.get("args") or ())]),
    ]
    command, args = (
        tuple(map_path(expanded(str(part), variables.values), paths) for part in main.get(key) or ())
        for key in ("command", "args")
    )
    serving = _number(port, main) or _number(at(main, "ports"), main) or HTTP_PORT
    resources, probes = _resources(mapping_at(main, "resources"), problems), _probes(main, serving, problems)
    problems += _refuse_program(command)
    # A foreign image cannot be run at all, so its other problems are not listed.
    refused += problems if is_predictor_image(image) else [f"image {image}: {FOREIGN}"]
    return ContainerSpec(
        name=str(main.get("name") or "main"), image=image, command=command, args=args,
        env={name: map_path(value, paths) for name, value in variables.values.items()},
        port=serving, replica_env=tuple(variables.own_name), **resources, **probes,
    )  # fmt: skip


def _refuse_program(command: Sequence[str]) -> list[str]:
    """Refuse commands other than the image's own programs: predictor (the default) and router."""
    if not command or tuple(command[1:3]) in PROGRAMS:
        return []
    return [f"command {' '.join(command)}: only the image's own programs are run here; {ELSEWHERE}"]


def _refuse_sidecars(others: Sequence[Mapping[str, Json]]) -> list[str]:
    return [
        f"container {other.get('name')} ({other.get('image')}): a replica is one process here; {ELSEWHERE}"
        for other in others
    ]


def _number(port: Json, container: Mapping[str, Json]) -> int:
    """Return a port by number, by name, or the first of a list; 0: none."""
    ports = container.get("ports") or ()
    if isinstance(port, list | tuple):
        return int(port[0]["containerPort"]) if port else 0
    if isinstance(port, str) and not port.isdigit():
        return next((int(each["containerPort"]) for each in ports if each.get("name") == port), 0)
    return int(port or 0)


def _resources(resources: Mapping[str, Json], refused: list[str]) -> dict[str, Any]:
    limits, requests = mapping_at(resources, "limits"), mapping_at(resources, "requests")

    def amount(values: Mapping[str, Json], key: str) -> float | None:
        return quantity_of(str(values[key])) if values.get(key) is not None else None

    devices = sorted(name for name in {**limits, **requests} if name.startswith(_DEVICES))
    refused += [f"resource {name}: only whole NVIDIA GPUs ({GPU}) are assigned here; {ELSEWHERE}" for name in devices]
    memory, cpu = amount(limits, "memory"), amount(limits, "cpu")
    return {
        "gpus": int(amount(limits, GPU) or amount(requests, GPU) or 0),
        "cpu_request": amount(requests, "cpu") or cpu or 0.0,
        "cpu_limit": cpu,
        "memory_limit": int(memory) if memory else None,
    }


def _probes(container: Mapping[str, Json], port: int, refused: list[str]) -> dict[str, Any]:
    names = {"startup": "startupProbe", "readiness": "readinessProbe", "liveness": "livenessProbe"}
    return {key: _probe(container, name, port, refused) for key, name in names.items()}


def _probe(container: Mapping[str, Json], name: str, serving: int, refused: list[str]) -> Probe | None:
    """Read a probe; gRPC and TCP probes become HTTP, which the predictor always serves."""
    written = mapping_at(container, name)
    if not written:
        return None
    if "exec" in written:
        refused.append(f"{name}: exec is not run here; use httpGet")
    http = mapping_at(written, "httpGet")
    port = _number(http.get("port"), container) or (HTTP_PORT if serving == GRPC_PORT else serving)
    default = Probe("", 0)
    return Probe(
        path=str(http.get("path") or READY_PATH),
        port=port,
        period_s=float(written.get("periodSeconds") or default.period_s),
        timeout_s=float(written.get("timeoutSeconds") or default.timeout_s),
        failure_threshold=int(written.get("failureThreshold") or default.failure_threshold),
        success_threshold=int(written.get("successThreshold") or default.success_threshold),
        initial_delay_s=float(written.get("initialDelaySeconds") or 0),
    )
