"""What stands inside objects and between them: pod templates, containers, probes, GPUs, who scales whom."""

from collections.abc import Iterator
from typing import Final

from pilotlight.lint.parts import Part
from pilotlight.lint.rule import KNATIVE, WORKLOADS, Beside, kind_of
from pilotlight.lint.units import quantity

GPU_SUFFIXES: Final = ("/gpu", "/gpu.shared", "/gaudi", "/tpu")
PODS: Final = (*WORKLOADS, KNATIVE)
AUTOSCALERS: Final = ("ScaledObject", "HorizontalPodAutoscaler")


def pod_specs(part: Part) -> Iterator[Part]:
    """The pod specs of a workload: one, or leader and worker."""
    if kind_of(part) == "LeaderWorkerSet":
        group = part.get("spec", "leaderWorkerTemplate")
        yield from (group.get(name, "spec") for name in ("leaderTemplate", "workerTemplate") if group.get(name))
    else:
        yield part.get("spec", "template", "spec")


def containers(part: Part) -> Iterator[Part]:
    for pod in pod_specs(part):
        yield from pod.get("containers").each()


def namespace(part: Part) -> str:
    return part.get("metadata", "namespace").text() or "default"


def name(part: Part) -> str:
    return part.get("metadata", "name").text()


def target_key(scaler: Part) -> tuple[str, str, str]:
    """Namespace, kind and name of what an autoscaler scales."""
    reference = scaler.get("spec", "scaleTargetRef")
    return (namespace(scaler), reference.get("kind").text("Deployment"), reference.get("name").text())


def target_of(scaler: Part, beside: Beside) -> Part | None:
    wanted = target_key(scaler)
    for part in beside.objects:
        if (namespace(part), kind_of(part), name(part)) == wanted:
            return part
    return None


def autoscalers_of(workload: Part, beside: Beside) -> list[Part]:
    wanted = (namespace(workload), kind_of(workload), name(workload))
    return [scaler for scaler in beside.of_kind(*AUTOSCALERS) if target_key(scaler) == wanted]


def startup_budget(part: Part) -> float:
    """The longest that a startup probe lets any container take: delay + failures × period. 0: no startup probe."""
    return max((probe_budget(container.get("startupProbe")) for container in containers(part)), default=0.0)


def probe_budget(probe: Part) -> float:
    if not probe:
        return 0.0
    delay, period, failures = (
        probe.get(field).whole(default)
        for field, default in (("initialDelaySeconds", 0), ("periodSeconds", 10), ("failureThreshold", 3))
    )
    return float(delay + (period or 10) * (failures or 3))


def gpus(container: Part) -> float:
    return sum(amount(entry) for entry in gpu_entries(container.get("resources", "limits")))


def gpu_entries(resources: Part) -> Iterator[Part]:
    """`nvidia.com/gpu`, `amd.com/gpu`, MIG slices and their like."""
    for entry in resources.entries():
        if entry.key.endswith(GPU_SUFFIXES) or "/mig-" in entry.key:
            yield entry


def amount(part: Part) -> float:
    return quantity(part.text()) or 0.0
