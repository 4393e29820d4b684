"""Whether a model fits into the memory of its GPUs, and how many it gets where the document counts none. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pilotlight.catalogue.accelerator_selection import AcceleratorClass, memory_bytes, name_of
from pilotlight.catalogue.model_memory import GIB, ModelMemory, memory_of
from pilotlight.k8s import quantities
from pilotlight.k8s.names import ANNOTATION_MEMORY_CHECK
from pilotlight.plan.component_context import RuntimeChoice
from pilotlight.plan.types import Capabilities, DecisionLog, field_path
from pilotlight.spec.service import Component, Service

Json = Any
ASSUMED_MEMORY: Final = 80 * GIB
NODE_GPUS: Final = 8  # of the largest machines that clouds and vendors offer
_RESOURCES: Final = ("runner.resources", "resources", "model.resources", "leader.runner.resources")


@dataclass(frozen=True, slots=True)
class Fit:
    """A model on the GPUs of one replica: `gpus` in each of its `pods`."""

    model: ModelMemory
    gpus: int
    pods: int
    gpu_memory: int
    source: str  # of gpu_memory; empty: assumed

    @property
    def total(self) -> int:
        every = self.gpus * self.pods
        return min(self.model.shards or every, every)

    @property
    def fits(self) -> bool:
        return self.model.fits(self.total, self.gpu_memory)

    @property
    def gpus_needed(self) -> int:
        """GPUs of each pod that the engine's arguments name, else that hold the model."""
        return -(-(self.model.shards or self.model.gpus_needed(self.gpu_memory)) // self.pods)

    @property
    def space(self) -> str:
        """The capacity as a product: 2 × 80 GiB × 0.9."""
        return f"{self.total} × {gib(self.gpu_memory)} × {self.model.fraction:g}"

    @property
    def sum(self) -> str:
        model = self.model
        context = f"{model.tokens} tokens" if model.tokens else "a tenth of the weights, no modelConfiguration"
        parts = f"{gib(model.weights)} weights + {gib(model.kv_cache)} KV cache ({context})"
        return f"{parts} + {gib(model.overhead(self.total))} overhead"


def gib(size: float) -> str:
    return f"{size / GIB:.0f} GiB" if size >= 10 * GIB else f"{size / GIB:.1f} GiB"


def gpu_memory(
    pod: Mapping[str, Json], selected: AcceleratorClass | None, classes: Sequence[AcceleratorClass],
    capabilities: Capabilities,
) -> tuple[int, str]:  # fmt: skip
    """Return the memory of the GPUs that a pod gets, and the source: its class, its nodes, the cluster; or assumed."""
    labels = (pod.get("nodeSelector") or {}).items()
    for cls in classes if selected is None else [selected]:
        nodes = (cls["spec"].get("discovery") or {}).get("nodeSelector") or {}
        if memory_bytes(cls) and (selected is not None or (nodes and nodes.items() <= labels)):
            return memory_bytes(cls), name_of(cls)
    if capabilities.gpu_memory:
        return capabilities.gpu_memory, "the smallest GPU of the cluster"
    return ASSUMED_MEMORY, ""


def gpu_share(choice: RuntimeChoice) -> str:
    """Return the memory that a model needs on each GPU, as a quantity; empty: not known before it is measured.

    Only of our predictor: engines allocate a fraction of the GPU, whatever the model needs.
    """
    memory = memory_of(choice.model, choice.container) if choice.is_pilotlight else None
    gpus = quantities.gpu_count(choice.container) or 1
    return quantities.mebibytes(-(-memory.needed(gpus) // gpus)) if memory else ""


def decide_gpus(
    service: Service, component: Component, fit: Fit, counted: bool, classes: Sequence[AcceleratorClass],
    log: DecisionLog,
) -> int:  # fmt: skip
    """Return the GPUs of each pod, and report a model that does not fit (PL379, PL380).

    `counted`: the document gives their number, which is kept. A runtime's is for some model, and raised for this one.
    """
    had, fits = fit.gpus, max(fit.gpus, min(fit.gpus_needed, NODE_GPUS))
    if not counted and fits > had:
        fit = replace(fit, gpus=fits)
        if had:
            reason = f"the runtime's {had} are too few for the model"
            log.decide(component.role, "devices", f"{fits} per pod", reason)
    known = fit.source or "assumed: neither an accelerator class nor the cluster states it"
    needed, capacity = fit.model.needed(fit.total), fit.model.capacity(fit.total, fit.gpu_memory)
    log.decide(component.role, "GPU memory", f"{gib(needed)} of {gib(capacity)}", f"{fit.sum}; {fit.space}, {known}")
    if not fit.fits and service.annotations.get(ANNOTATION_MEMORY_CHECK) != "off":
        paths = [field_path(component, name) for name in _RESOURCES]
        path = next((each for each in paths if each in service.locations), field_path(component, ""))
        _report(fit, path, classes, log)
    return fit.gpus


def _report(fit: Fit, path: str, classes: Sequence[AcceleratorClass], log: DecisionLog) -> None:
    """Report an error if the weights alone fit into no such GPUs, else a warning."""
    largest = max([fit.gpu_memory, *(map(memory_bytes, classes) if not fit.source else ())])
    assumed = "" if fit.source else ", which is assumed"
    beyond = f"do not fit into {fit.space}{assumed}; {_remedy(fit, classes)}"
    if fit.model.weights > fit.model.capacity(fit.total, largest):
        override = f'or override with {ANNOTATION_MEMORY_CHECK}: "off"'
        log.error("PL379", path, f"{gib(fit.model.weights)} of weights {beyond}, serve it quantised, {override}")
    else:
        log.warn("PL380", path, f"{fit.sum} {beyond}, shorten the context, or serve it quantised")


def _remedy(fit: Fit, classes: Sequence[AcceleratorClass]) -> str:
    needed = fit.model.gpus_needed(fit.gpu_memory)
    if fit.total < fit.gpus * fit.pods:
        return f"let the engine use {needed} GPUs"
    if needed <= NODE_GPUS * fit.pods:
        return f"give each pod {-(-needed // fit.pods)} GPUs"
    larger = [cls for cls in classes if fit.model.fits(NODE_GPUS * fit.pods, memory_bytes(cls))]
    workers = -(-needed // NODE_GPUS) - 1
    smallest = f" or accelerator class {name_of(min(larger, key=memory_bytes))}" if larger else ""
    return f"choose worker.size: {workers}{smallest}"
