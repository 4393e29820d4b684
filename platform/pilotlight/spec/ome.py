"""Reads an `ome.io/v1beta1` InferenceService into the internal model.

Where OME's documents leave something open, it is filled in here: kinds of references, a component's `resources` (the
runner's), the older `predictor` (an engine).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pilotlight.spec.components import (
    Reading,
    annotations_of,
    check_component,
    check_name,
    component,
    container_record,
    pod_of,
)
from pilotlight.spec.model import Component, KedaConfig, ModelSpec, NodeGroup, Reference, Role, Service
from pilotlight.spec.nodes import Node
from pilotlight.spec.ome_fields import WEIGHTS, inference_service
from pilotlight.spec.paths import places
from pilotlight.spec.problems import Place, Problems
from pilotlight.spec.storage import located
from pilotlight.spec.types import read

Json = Any
_ROLES: tuple[Role, ...] = ("engine", "decoder", "router")


def read_service(node: Node, problems: Problems, namespace: str = "default") -> Service:
    """The service as far as it could be read; what is wrong has been added to the problems."""
    value = read(node, inference_service(), problems) or {}
    reading = Reading(problems, _places(node))
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    check_name(metadata, reading)
    components = _components(spec, reading)
    model, weights = _model(spec, reading)
    return Service(
        group="ome",
        name=metadata.get("name", ""),
        namespace=metadata.get("namespace", namespace),
        components=components,
        model=model,
        fine_tuned_weights=weights,
        runtime=_runtime(spec),
        keda=_keda(spec.get("kedaConfig")),
        accelerator=spec.get("acceleratorSelector"),
        labels=metadata.get("labels", {}),
        annotations=annotations_of(metadata),
        places=reading.places,
        document=value,
    )


def _places(node: Node) -> dict[str, Place]:
    """With the older predictor found by the engine's paths too: that is what later stages know it as."""
    found = places(node)
    older = "spec.predictor"
    if "spec.engine" not in found:
        found |= {f"spec.engine{path[len(older) :]}": place for path, place in found.items() if path.startswith(older)}
    return found


def _components(spec: Mapping[str, Json], reading: Reading) -> dict[Role, Component]:
    found: dict[Role, Component] = {}
    for role in _ROLES:
        if role in spec:
            found[role] = _component(role, spec[role], f"spec.{role}", reading)
    if "predictor" in spec and "engine" in spec:
        reading.error("PL111", "spec.predictor", "excludes spec.engine, which replaces it; keep spec.engine")
    elif "predictor" in spec:
        found["engine"] = _migrated(spec["predictor"], reading)
    elif "engine" not in spec and "model" in spec:
        found = {"engine": Component("engine"), **found}
    elif not found:
        reading.error("PL103", "spec.engine", "is missing: a service has a model, an engine, or both")
    return found


def _component(role: Role, value: Mapping[str, Json], path: str, reading: Reading) -> Component:
    made = component(
        role,
        {name: entry for name, entry in value.items() if name != "resources"},
        runner=_runner(value, path, reading),
        leader=_group(value.get("leader"), f"{path}.leader", reading),
        worker=_group(value.get("worker", value.get("workerSpec")), f"{path}.worker", reading, size=1),
        timeout_seconds=value.get("timeoutSeconds"),
        min_available=value.get("minAvailable"),
        max_unavailable=value.get("maxUnavailable"),
        keda=_keda(value.get("kedaConfig")),
        config=value.get("config", {}),
        accelerator=value.get("acceleratorOverride"),
    )
    check_component(made, path, reading)
    return made


def _runner(value: Mapping[str, Json], path: str, reading: Reading) -> dict[str, Json] | None:
    """Resources written on the component are the runner's: nobody means the whole pod by them."""
    runner, resources = value.get("runner"), value.get("resources")
    if resources is None:
        return runner
    if runner is not None and "resources" in runner:
        reading.error("PL111", f"{path}.resources", "excludes runner.resources, which mean the same; keep one of them")
    return {"resources": resources, **(runner or {})}


def _group(value: Mapping[str, Json] | None, path: str, reading: Reading, size: int = 0) -> NodeGroup | None:
    if value is None:
        return None
    pod = {name: entry for name, entry in pod_of(value).items() if name != "resources"}
    return NodeGroup(pod, _runner(value, path, reading), value.get("size", size))


def _migrated(value: Mapping[str, Json], reading: Reading) -> Component:
    """The older predictor as an engine; its container overrides become the runner."""
    model = value.get("model", {})
    runner = {name: entry for name, entry in model.items() if name in container_record("Runner").fields}
    made = _component("engine", {**({"runner": runner} if runner else {}), **value}, "spec.predictor", reading)
    if "storageUri" not in model:
        return made
    uri = located(model["storageUri"], reading.place("spec.predictor.model.storageUri"))
    spec = ModelSpec("", storage_uri=uri, protocol=model.get("protocolVersion", ""))
    return replace(made, model=replace(spec, runtime_version=model.get("runtimeVersion", "")))


def _model(spec: Mapping[str, Json], reading: Reading) -> tuple[Reference | None, tuple[str, ...]]:
    older = spec.get("predictor", {}).get("model", {})
    path = "spec.model" if "model" in spec or not older else "spec.predictor.model"
    value = spec.get("model", {"name": older["baseModel"], **older} if "baseModel" in older else {})
    weights = tuple(value.get("fineTunedWeights", older.get("fineTunedWeights", ())))
    if len(weights) > 1:
        message = f"names {len(weights)} weights, must name one at most: a service runs one set of weights"
        reading.error("PL104", f"{path}.fineTunedWeights", message)
    if weights and value.get("kind") == WEIGHTS:
        message = f"excludes kind {WEIGHTS}, which names the weights itself; keep one of them"
        reading.error("PL111", f"{path}.fineTunedWeights", message)
    return _reference(value, "ClusterBaseModel"), weights


def _runtime(spec: Mapping[str, Json]) -> Reference | None:
    older = spec.get("predictor", {}).get("model", {})
    value = spec.get("runtime", {"name": older["runtime"]} if "runtime" in older else {})
    return _reference(value, "ClusterServingRuntime")


def _reference(value: Mapping[str, Json], kind: str) -> Reference | None:
    if "name" not in value:
        return None
    return Reference(value["name"], value.get("kind", kind), value.get("apiGroup", "ome.io"))


def _keda(value: Mapping[str, Json] | None) -> KedaConfig | None:
    if value is None:
        return None
    reference = value.get("authenticationRef", {})
    return KedaConfig(
        enabled=value.get("enableKeda"),
        server_address=value.get("promServerAddress", ""),
        query=value.get("customPromQuery", ""),
        threshold=value.get("scalingThreshold", ""),
        operator=value.get("scalingOperator", ""),
        authentication={"kind": "TriggerAuthentication", **reference} if reference else {},
        auth_modes=value.get("authModes", ""),
    )
