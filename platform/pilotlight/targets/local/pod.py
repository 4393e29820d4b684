"""A pod template as the one process that is started for each replica: the second half of interpret.py. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.contract import GRPC_PORT, HTTP_PORT, ours
from pilotlight.targets.local.model import Container, Probe
from pilotlight.targets.local.mounts import moved, moves_of, unused_fetches
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
) -> Container:
    """What is wrong with it goes to `refused`, all at once. `port` is the one that a Service sends requests to."""
    pod = mapping_at(template, "spec")
    containers: list[dict[str, Json]] = list(pod.get("containers") or ({},))
    main, image, problems = containers[0], str(containers[0].get("image") or ""), _beside(containers[1:])
    made = variables_of(main, mapping_at(template, "metadata"), namespace, objects)
    moves = moves_of(pod, main, problems)
    problems += [*made.refused, *unused_fetches(pod, [*made.values.values(), *map(str, main.get("args") or ())])]
    command, args = (
        tuple(moved(expanded(str(part), made.values), moves) for part in main.get(key) or ())
        for key in ("command", "args")
    )
    serving = _number(port, main) or _number(at(main, "ports"), main) or HTTP_PORT
    resources, probes = _resources(mapping_at(main, "resources"), problems), _probes(main, serving, problems)
    problems += _other_program(command)
    # Nothing else matters about an image that cannot be run at all.
    refused += problems if ours(image) else [f"image {image}: {FOREIGN}"]
    return Container(
        name=str(main.get("name") or "main"), image=image, command=command, args=args,
        env={name: moved(value, moves) for name, value in made.values.items()},
        port=serving, replica_env=tuple(made.own_name), **resources, **probes,
    )  # fmt: skip


def _other_program(command: Sequence[str]) -> list[str]:
    """Without one it is the predictor; our gateway in router mode is in the image too."""
    if not command or tuple(command[1:3]) in PROGRAMS:
        return []
    return [f"command {' '.join(command)}: only the image's own programs are run here; {ELSEWHERE}"]


def _beside(others: Sequence[Mapping[str, Json]]) -> list[str]:
    return [
        f"container {other.get('name')} ({other.get('image')}): a replica is one process here; {ELSEWHERE}"
        for other in others
    ]


def _number(port: Json, container: Mapping[str, Json]) -> int:
    """A port by number, by name, or the first of a list; 0: there is none."""
    ports = container.get("ports") or ()
    if isinstance(port, list | tuple):
        return int(port[0]["containerPort"]) if port else 0
    if isinstance(port, str) and not port.isdigit():
        return next((int(found["containerPort"]) for found in ports if found.get("name") == port), 0)
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
        "memory_request": int(amount(requests, "memory") or memory or 0),
    }


def _probes(container: Mapping[str, Json], port: int, refused: list[str]) -> dict[str, Any]:
    names = {"startup": "startupProbe", "readiness": "readinessProbe", "liveness": "livenessProbe"}
    return {key: _probe(container, name, port, refused) for key, name in names.items()}


def _probe(container: Mapping[str, Json], name: str, serving: int, refused: list[str]) -> Probe | None:
    """Our predictor answers over HTTP whatever else it serves, so a probe by gRPC or TCP asks that instead."""
    written = mapping_at(container, name)
    if not written:
        return None
    if "exec" in written:
        refused.append(f"{name}: exec is not run here; use httpGet")
    http = mapping_at(written, "httpGet")
    port = _number(http.get("port"), container) or (HTTP_PORT if serving == GRPC_PORT else serving)
    usual = Probe("", 0)
    return Probe(
        path=str(http.get("path") or READY_PATH),
        port=port,
        period_s=float(written.get("periodSeconds") or usual.period_s),
        timeout_s=float(written.get("timeoutSeconds") or usual.timeout_s),
        failure_threshold=int(written.get("failureThreshold") or usual.failure_threshold),
        success_threshold=int(written.get("successThreshold") or usual.success_threshold),
        initial_delay_s=float(written.get("initialDelaySeconds") or 0),
    )
