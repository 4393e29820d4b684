"""Context of one component being planned: its mode, runtime, model, and values derived from them.

Built by plan/decide.py once mode and runtime are known; read by the stages for pods, storage, scaling and traffic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight import names, quantities
from pilotlight.plan import annotations
from pilotlight.plan.fine_tuning import Adapter
from pilotlight.plan.mode import wants_ray
from pilotlight.plan.model import Capabilities, Mode
from pilotlight.spec.model import BaseModel, Component, Runtime, Service

Json = Any
# From container start to the first byte of a model: image, interpreter, imports, CUDA context.
BOOT_S: Final = 60
UNKNOWN_BUDGET_S: Final = 600
GENERATIVE: Final = ("chat", "generat", "vision", "completion", "image_text", "image-text")


def probe_seconds(probe: Mapping[str, Json]) -> int:
    """Return the seconds until a probe fails, by Kubernetes' defaults; 0 without one."""
    if not probe:
        return 0
    period, failures = int(probe.get("periodSeconds", 10)), int(probe.get("failureThreshold", 3))
    return int(probe.get("initialDelaySeconds", 0)) + period * failures


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
    reason: str = ""
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class PlanContext:
    service: Service
    component: Component
    mode: Mode
    choice: RuntimeChoice
    capabilities: Capabilities
    name: str  # of the workload

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
    def serves_model(self) -> bool:
        return self.component.role in ("engine", "decoder", "predictor")

    @property
    def load_seconds(self) -> int:
        """Seconds to load the model from its store to the device; 0 if its size is unknown."""
        return math.ceil(self.model_bytes / max(1, self.capabilities.load_rate_bytes_s))

    @property
    def start_budget_s(self) -> int:
        """Seconds for boot and twice the expected load: 30 GB at 200 MB/s load in 150 s and get 360 s."""
        if self.choice.gateway:
            return BOOT_S
        return BOOT_S + 2 * self.load_seconds if self.model_bytes else UNKNOWN_BUDGET_S

    @property
    def allowed_start_s(self) -> int:
        """Seconds that the startup probe allows: of the container's own probe, if any."""
        return probe_seconds(self.choice.container.get("startupProbe") or {}) or self.start_budget_s

    @property
    def predictor(self) -> str:
        """Name of the workload that transformers and explainers call."""
        component = self.service.components.get("predictor", self.component)
        variant = "" if self.serverless else component.name
        return names.workload(self.service.name, "predictor", variant)

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

    def annotation(self, *keys: str) -> str:
        return annotations.lookup(self.service, self.component, *keys)[1]

    def path(self, field_name: str = "") -> str:
        return f"spec.{self.component.role}.{field_name}" if field_name else f"spec.{self.component.role}"

    def annotation_path(self, *keys: str) -> str:
        key, _ = annotations.lookup(self.service, self.component, *keys)
        return annotations.path_of(self.component, key)
