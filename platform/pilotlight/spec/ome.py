"""Reader of an `ome.io/v1beta1` InferenceService into the internal model.

Fills in what OME's documents leave open: kinds of references, a component's `resources` (the runner's), the deprecated
`predictor` (an engine).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.spec.component_fields import (
    DocumentContext,
    alias,
    check_component,
    check_name,
    component,
    pod_of,
    resolve_uri,
    service,
)
from pilotlight.spec.example_request import MODEL_FIELDS
from pilotlight.spec.field_tables import OME
from pilotlight.spec.field_types import read, source_locations
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.service import (
    AdapterReference,
    Component,
    KedaConfig,
    ModelSpec,
    NodeGroup,
    Reference,
    Role,
    Service,
)
from pilotlight.spec.yaml_nodes import Node

Json = Any
GROUP: Final = "ome.io/v1beta1"
WEIGHTS: Final = "FineTunedWeight"
_ROLES: tuple[Role, ...] = ("engine", "decoder", "router")


def read_service(node: Node, problems: Problems, namespace: str = "default") -> Service:
    """Return the service as far as it is valid; add its problems."""
    value = read(node, OME.record("InferenceService"), problems) or {}
    context = DocumentContext(problems, _locations(node))
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    check_name(metadata, context)
    components = _components(spec, context)
    model, weights = _model(spec, context)
    older = spec.get("predictor", {}).get("model", {})
    if "engine" in components:
        fields = {**older, **spec.get("model", {})}
        own = {name: fields[name] for name in MODEL_FIELDS if name in fields}
        components["engine"] = replace(components["engine"], **own)
    runtime = spec.get("runtime", {"name": older["runtime"]} if "runtime" in older else {})
    return service(
        "ome", value, namespace, components, context, model=model, adapters=weights,
        runtime=_reference(runtime, "ClusterServingRuntime"), keda=_keda(spec.get("kedaConfig")),
        accelerator=spec.get("acceleratorSelector"),
    )  # fmt: skip


def _locations(node: Node) -> dict[str, SourceLocation]:
    """Return source locations, with the deprecated predictor also under the engine's paths that later stages use."""
    locations = source_locations(node)
    if "spec.engine" not in locations:
        alias(locations, "spec.predictor", "spec.engine")
    return locations


def _components(spec: Mapping[str, Json], context: DocumentContext) -> dict[Role, Component]:
    components = {role: _component(role, spec[role], f"spec.{role}", context) for role in _ROLES if role in spec}
    if "predictor" in spec and "engine" in spec:
        context.error("PL111", "spec.predictor", "excludes spec.engine, which replaces it; keep spec.engine")
    elif "predictor" in spec:
        components["engine"] = _engine_from_predictor(spec["predictor"], context)
    elif "engine" not in spec and "model" in spec:
        components = {"engine": Component("engine"), **components}
    elif not components:
        context.error("PL103", "spec.engine", "is missing: a service has a model, an engine, or both")
    return components


def _component(role: Role, value: Mapping[str, Json], path: str, context: DocumentContext) -> Component:
    result = component(
        role, {name: entry for name, entry in value.items() if name != "resources"},
        runner=_runner(value, path, context), leader=_group(value.get("leader"), f"{path}.leader", context),
        worker=_group(value.get("worker", value.get("workerSpec")), f"{path}.worker", context, size=1),
        timeout_seconds=value.get("timeoutSeconds"), min_available=value.get("minAvailable"),
        max_unavailable=value.get("maxUnavailable"), keda=_keda(value.get("kedaConfig")),
        config=value.get("config", {}), accelerator=value.get("acceleratorOverride"),
    )  # fmt: skip
    check_component(result, path, context)
    return result


def _runner(value: Mapping[str, Json], path: str, context: DocumentContext) -> dict[str, Json] | None:
    """Read the runner; resources of the component are the runner's, not the pod's."""
    runner, resources = value.get("runner"), value.get("resources")
    if resources is None:
        return runner
    if runner is not None and "resources" in runner:
        context.error("PL111", f"{path}.resources", "excludes runner.resources, which set the same; keep one")
    return {"resources": resources, **(runner or {})}


def _group(value: Mapping[str, Json] | None, path: str, context: DocumentContext, size: int = 0) -> NodeGroup | None:
    if value is None:
        return None
    pod = {name: entry for name, entry in pod_of(value).items() if name != "resources"}
    return NodeGroup(pod, _runner(value, path, context), value.get("size", size))


def _engine_from_predictor(value: Mapping[str, Json], context: DocumentContext) -> Component:
    """Read the deprecated predictor as an engine; its container overrides become the runner."""
    model = value.get("model", {})
    runner = {name: entry for name, entry in model.items() if name in OME.record("Runner").fields}
    engine = _component("engine", {**({"runner": runner} if runner else {}), **value}, "spec.predictor", context)
    if "storageUri" not in model:
        return engine
    uri = resolve_uri(model["storageUri"], context.location("spec.predictor.model.storageUri"))
    spec = ModelSpec("", storage_uri=uri, protocol=model.get("protocolVersion", ""))
    return replace(engine, model=replace(spec, runtime_version=model.get("runtimeVersion", "")))


def _model(spec: Mapping[str, Json], context: DocumentContext) -> tuple[Reference | None, tuple[AdapterReference, ...]]:
    older = spec.get("predictor", {}).get("model", {})
    path = "spec.model" if "model" in spec or not older else "spec.predictor.model"
    value = spec.get("model", {"name": older["baseModel"], **older} if "baseModel" in older else {})
    weights = value.get("fineTunedWeights", older.get("fineTunedWeights", ()))
    if len(set(weights)) < len(weights):
        context.error("PL104", f"{path}.fineTunedWeights", "names weights twice; name each once")
    if weights and value.get("kind") == WEIGHTS:
        message = f"excludes kind {WEIGHTS}, which names the weights itself; keep one of them"
        context.error("PL111", f"{path}.fineTunedWeights", message)
    if value.get("kind") == WEIGHTS:
        return _reference(value, "ClusterBaseModel"), (AdapterReference(value.get("name", ""), "spec.model.name"),)
    named = tuple(AdapterReference(name, "spec.model.fineTunedWeights") for name in dict.fromkeys(weights))
    return _reference(value, "ClusterBaseModel"), named


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
