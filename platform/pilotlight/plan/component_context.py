"""One component being planned: its mode, runtime, model, adapters, and values derived from them.

Built by plan/planner.py once mode and runtime are known; read by the stages for pods, storage, scaling and traffic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from pilotlight.catalogue.engine_programs import AdapterSupport, container_engine
from pilotlight.catalogue.runtime_merge import group_size
from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight.k8s import names, quantities
from pilotlight.plan import document_annotations
from pilotlight.plan.deployment_mode import wants_ray
from pilotlight.plan.types import Capabilities, Mode, PlannedAdapter, Workload, field_path
from pilotlight.spec.service import BaseModel, Component, Runtime, Service
from pilotlight.wire.model_formats import find_format

Json = Any
# From container start to the first byte of a model: image, interpreter, imports, CUDA context.
BOOT_S: Final = 60
UNKNOWN_BUDGET_S: Final = 600
NODE_RATE: Final = 1_800_000_000  # bytes/s from the disk of a node, nothing of it cached
GENERATIVE: Final = ("chat", "generat", "vision", "completion", "image_text", "image-text")


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """Runtime and model of a component, and its pod and main container merged from both."""

    runtime: Runtime | None
    model: BaseModel | None
    pod: Mapping[str, Json] = field(default_factory=dict)
    container: Mapping[str, Json] = field(default_factory=dict)
    worker_pod: Mapping[str, Json] = field(default_factory=dict)
    worker_container: Mapping[str, Json] = field(default_factory=dict)
    is_pilotlight: bool = False
    gateway: bool = False  # our gateway in router mode
    adapters: tuple[PlannedAdapter, ...] = ()
    adapter_support: AdapterSupport | None = None
    dynamic_adapters: bool = False  # the control process loads them into running replicas
    caches: tuple[Mapping[str, Json], ...] = ()  # of the catalogue, which may have its model on nodes


@dataclass(frozen=True, slots=True)
class PlanContext:
    service: Service
    component: Component
    mode: Mode
    choice: RuntimeChoice
    capabilities: Capabilities
    name: str  # of the workload
    enforces_access: bool = False  # its pods check tokens, JWTs and rates themselves
    behind: tuple[Workload, ...] = ()  # of a router: those that it sends requests to
    protocol: str = ""  # of prefill and decode, if an annotation names it

    @property
    def serverless(self) -> bool:
        return self.mode == "serverless"

    @property
    def on_ray(self) -> bool:
        """Whether each group is a RayCluster instead of part of a LeaderWorkerSet."""
        return self.mode == "multi-node" and wants_ray(self.service, self.component)

    @property
    def model_bytes(self) -> int:
        return self.choice.model.size_bytes if self.choice.model and self.serves_model else 0

    @property
    def pods(self) -> int:
        """Pods that share one model: a leader and its workers, else one."""
        return 1 + (group_size(self.choice.runtime, self.component) if self.mode == "multi-node" else 0)

    @property
    def serves_model(self) -> bool:
        return self.component.role in names.MODEL_ROLES

    @property
    def on_node(self) -> bool:
        """Whether OME's model agent keeps the model on the node."""
        model = self.choice.model
        return self.service.group == "ome" and model is not None and bool(model.storage.get("path"))

    @property
    def load_seconds(self) -> int:
        """Seconds to load the model to the device, from its store or the node's disk; 0 if its size is unknown."""
        fetched = not self.on_node or self.choice.is_pilotlight
        return math.ceil(self.model_bytes / max(self.capabilities.load_rate_bytes_s, 1 if fetched else NODE_RATE))

    @property
    def start_budget_s(self) -> int:
        """Seconds for boot and twice the load from a store: 30 GB at 200 MB/s load in 150 s and get 360 s."""
        if self.choice.gateway:
            return BOOT_S
        load = math.ceil(self.model_bytes / max(1, self.capabilities.load_rate_bytes_s))
        return BOOT_S + 2 * load if self.model_bytes else UNKNOWN_BUDGET_S

    @property
    def allowed_start_s(self) -> int:
        """Seconds that the startup probe allows: of the container's own probe, if any."""
        return probe_seconds(self.choice.container.get("startupProbe") or {}) or self.start_budget_s

    @property
    def predictor(self) -> str:
        """Name of the workload that transformers and explainers call."""
        component = self.service.components.get("predictor", self.component)
        return names.workload(self.service.name, "predictor", "" if self.serverless else component.name)

    @property
    def gpus(self) -> int:
        """GPUs of a pod group: leader and workers together."""
        workers = (self.component.worker.size if self.component.worker else 0) or 0
        own = quantities.gpu_count(self.choice.container)
        return own + workers * (quantities.gpu_count(self.choice.worker_container) or own)

    @property
    def generative(self) -> bool:
        """Whether the model generates: chat, generation and vision responses may take minutes."""
        model, runtime = self.choice.model, self.choice.runtime
        capabilities = [capability.lower() for capability in model.capabilities] if model else []
        protocols = [protocol.lower() for protocol in runtime.protocols] if runtime else []
        return "openai" in protocols or any(word in capability for capability in capabilities for word in GENERATIVE)

    @property
    def model_names(self) -> str:
        """Names behind the gateway's /v1: as annotated, else the service's own of a language model; empty: none."""
        choice = self.choice
        if choice.gateway:
            default = not self.component.graph
        elif choice.is_pilotlight:
            known = find_format(choice.model.format) if choice.model else None
            default = bool(choice.adapters) or (known is not None and known.backend == "text")
        else:
            protocols = [protocol.lower() for protocol in choice.runtime.protocols] if choice.runtime else []
            default = "openai" in protocols or bool(container_engine(choice.container))
        return self.service.annotations.get(names.ANNOTATION_MODEL_NAMES, self.service.name if default else "")

    def predictor_setting(self, flag: str) -> list[str]:
        """Return the values of a flag of our predictor, in command, arguments and variables of the main container."""
        if not self.choice.is_pilotlight:
            return []
        container = self.choice.container
        words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        variable = ENV_SETTINGS_PREFIX + flag.removeprefix("--").replace("-", "_").upper()
        values = [str(each.get("value", "")) for each in container.get("env") or () if each.get("name") == variable]
        for word, following in pairwise([*words, ""]):
            name, equals, value = word.partition("=")
            if name.replace("_", "-") == flag:
                values.append(value if equals else following)
        return values

    def annotation(self, *keys: str) -> str:
        return document_annotations.lookup(self.service, self.component, *keys)[1]

    def path(self, field_name: str = "") -> str:
        return field_path(self.component, field_name)

    def annotation_path(self, *keys: str) -> str:
        key, _ = document_annotations.lookup(self.service, self.component, *keys)
        return document_annotations.path_of(self.component, key)


def written_containers(component: Component) -> list[Mapping[str, Json]]:
    """Return the containers that the document itself writes, without the runtime's."""
    groups = [group.runner or {} for group in (component.leader, component.worker) if group is not None]
    inline = component.model.container if component.model else {}
    return [component.runner or {}, inline, *component.pod.get("containers", ()), *groups]


def probe_seconds(probe: Mapping[str, Json]) -> int:
    """Return the seconds until a probe fails, by Kubernetes' defaults; 0 without one."""
    if not probe:
        return 0
    period, failures = int(probe.get("periodSeconds", 10)), int(probe.get("failureThreshold", 3))
    return int(probe.get("initialDelaySeconds", 0)) + period * failures
