"""Short ways to write services, runtimes and models for these tests."""

from collections.abc import Mapping
from typing import Any

from pilotlight.spec.problems import SourceLocation
from pilotlight.spec.service import (
    BaseModel,
    Catalogue,
    Component,
    Group,
    ModelSpec,
    Reference,
    Role,
    Runtime,
    Service,
    SupportedFormat,
)

PLACES = {
    "spec.model.name": SourceLocation("s.yaml", 6, 11),
    "spec.runtime.name": SourceLocation("s.yaml", 8, 11),
    "spec.predictor.model.runtime": SourceLocation("s.yaml", 9, 16),
    "spec.predictor.model.protocolVersion": SourceLocation("s.yaml", 10, 24),
    "spec.predictor.model.modelFormat": SourceLocation("s.yaml", 7, 9),
}


def line(name: str = "safetensors", **fields: Any) -> SupportedFormat:
    return SupportedFormat(name, **{"auto_select": True, "format_weight": 10, "framework_weight": 5} | fields)


def runtime(name: str, *lines: SupportedFormat, group: Group = "ome", namespace: str = "", **fields: Any) -> Runtime:
    kind = "ServingRuntime" if namespace else "ClusterServingRuntime"
    return Runtime(name, kind, group, lines or (line(),), namespace=namespace, **fields)


def model(name: str = "m", **fields: Any) -> BaseModel:
    return BaseModel(**{"name": name, "kind": "ClusterBaseModel", "format": "safetensors"} | fields)


def ome(
    model_name: str = "m", runtime_name: str = "", components: Mapping[Role, Component] | None = None, **fields: Any
) -> Service:
    return Service(
        "ome", "chat", "team", components or {"engine": Component("engine")},
        model=Reference(model_name, "ClusterBaseModel", "ome.io") if model_name else None,
        runtime=Reference(runtime_name, "ClusterServingRuntime", "ome.io") if runtime_name else None,
        **{"locations": PLACES} | fields,
    )  # fmt: skip


def kserve(spec: ModelSpec | None = None, **fields: Any) -> Service:
    component = Component("predictor", model=spec or ModelSpec("sklearn"), **fields)
    return Service("kserve", "iris", "team", {"predictor": component}, locations=PLACES)


def catalogue(*runtimes: Runtime, models: tuple[BaseModel, ...] = ()) -> Catalogue:
    return Catalogue(runtimes, models or (model(),))
