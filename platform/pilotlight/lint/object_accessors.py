"""Access to parts of objects and their relations: pod templates, containers, probes, GPUs, scale targets."""

import re
from collections.abc import Iterator
from typing import Final

from pilotlight.k8s.quantities import quantity_or_zero
from pilotlight.lint.rule import LintContext, Part, kind_of

GPU_SUFFIXES: Final = ("/gpu", "/gpu.shared", "/gaudi", "/tpu")
AUTOSCALERS: Final = ("ScaledObject", "HorizontalPodAutoscaler")
# Components of an InferenceService that forward requests.
GATEWAY_ROLES: Final = frozenset(("router", "transformer", "explainer"))
# Words in labels, images, arguments and mounts that identify a model server.
MODEL_WORDS: Final = re.compile(
    r"inferenceservice|base-model|predictor|models?\b|vllm|sglang|triton|tensorrt|trtllm|mlserver|torchserve|"
    r"tensorflow|text-generation|onnx|sklearn|xgboost|lightgbm|huggingface|\bnim\b|llm",
    re.I,
)


def pod_specs(part: Part) -> Iterator[Part]:
    """Yield the pod specs of a workload: one, or leader and worker."""
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
    """Return namespace, kind and name of an autoscaler's target."""
    reference = scaler.get("spec", "scaleTargetRef")
    return (namespace(scaler), reference.get("kind").text("Deployment"), reference.get("name").text())


def target_of(scaler: Part, context: LintContext) -> Part | None:
    wanted = target_key(scaler)
    return next((part for part in context.objects if (namespace(part), kind_of(part), name(part)) == wanted), None)


def autoscalers_of(workload: Part, context: LintContext) -> list[Part]:
    wanted = (namespace(workload), kind_of(workload), name(workload))
    return [scaler for scaler in context.of_kind(*AUTOSCALERS) if target_key(scaler) == wanted]


def startup_budget(part: Part) -> float:
    """Return the longest startup probe budget of the containers, in seconds; 0 without one."""
    return max((probe_budget(container.get("startupProbe")) for container in containers(part)), default=0.0)


def probe_budget(probe: Part) -> float:
    """Return the seconds until a probe fails: delay + failures × period; 0 without a probe."""
    if not probe:
        return 0.0
    delay, period, failures = (
        probe.get(field).integer(default)
        for field, default in (("initialDelaySeconds", 0), ("periodSeconds", 10), ("failureThreshold", 3))
    )
    return float(delay + (period or 10) * (failures or 3))


def serves_model(workload: Part, context: LintContext) -> bool:
    """Return whether a workload loads a model: by GPU, known size, or words in labels, images, arguments, mounts."""
    if name(workload) in context.model_bytes or any(gpus(container) for container in containers(workload)):
        return True
    labels = workload.get("spec", "template", "metadata", "labels")
    words = [entry.key for entry in labels.entries()] + [entry.text() for entry in labels.entries()]
    if GATEWAY_ROLES & set(words):
        return False
    for container in containers(workload):
        words += [container.get("image").text()]
        words += [word.text() for key in ("command", "args") for word in container.get(key).each()]
        words += [mount.get("mountPath").text() for mount in container.get("volumeMounts").each()]
    return any(map(MODEL_WORDS.search, words))


def gpus(container: Part) -> float:
    return sum(amount(entry) for entry in gpu_entries(container.get("resources", "limits")))


def gpu_entries(resources: Part) -> Iterator[Part]:
    """Yield GPU resources: `nvidia.com/gpu`, `amd.com/gpu`, MIG slices and the like."""
    for entry in resources.entries():
        if entry.key.endswith(GPU_SUFFIXES) or "/mig-" in entry.key:
            yield entry


def amount(part: Part) -> float:
    return float(quantity_or_zero(part.text()))
