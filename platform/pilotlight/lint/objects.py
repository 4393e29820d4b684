"""What stands inside objects and between them: pod templates, containers, probes, GPUs, who scales whom."""

import re
from collections.abc import Iterator
from typing import Final

from pilotlight.lint.parts import Part
from pilotlight.lint.rule import KNATIVE, WORKLOADS, Beside, kind_of
from pilotlight.quantities import number

GPU_SUFFIXES: Final = ("/gpu", "/gpu.shared", "/gaudi", "/tpu")
PODS: Final = (*WORKLOADS, KNATIVE)
AUTOSCALERS: Final = ("ScaledObject", "HorizontalPodAutoscaler")
# Components of an InferenceService that pass requests on.
GATEWAY_ROLES: Final = frozenset(("router", "transformer", "explainer"))
# What gives a model away in a pod's labels, images, arguments and mounts: nobody names a web shop's frontend like this.
MODEL_WORDS: Final = re.compile(
    r"inferenceservice|base-model|predictor|models?\b|vllm|sglang|triton|tensorrt|trtllm|mlserver|torchserve|"
    r"tensorflow|text-generation|onnx|sklearn|xgboost|lightgbm|huggingface|\bnim\b|llm",
    re.I,
)


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


def serves_model(workload: Part, beside: Beside) -> bool:
    """Whether it loads a model: it has a GPU, its size is known, or its labels, images, arguments or mounts say so."""
    if name(workload) in beside.model_bytes or any(gpus(container) for container in containers(workload)):
        return True
    labels = workload.get("spec", "template", "metadata", "labels")
    told = [entry.key for entry in labels.entries()] + [entry.text() for entry in labels.entries()]
    if GATEWAY_ROLES & set(told):
        return False
    return any(MODEL_WORDS.search(text) for text in (*told, *_texts(workload)))


def _texts(workload: Part) -> Iterator[str]:
    for container in containers(workload):
        yield container.get("image").text()
        yield from (word.text() for key in ("command", "args") for word in container.get(key).each())
        yield from (mount.get("mountPath").text() for mount in container.get("volumeMounts").each())


def gpus(container: Part) -> float:
    return sum(amount(entry) for entry in gpu_entries(container.get("resources", "limits")))


def gpu_entries(resources: Part) -> Iterator[Part]:
    """`nvidia.com/gpu`, `amd.com/gpu`, MIG slices and their like."""
    for entry in resources.entries():
        if entry.key.endswith(GPU_SUFFIXES) or "/mig-" in entry.key:
            yield entry


def amount(part: Part) -> float:
    return float(number(part.text()))
