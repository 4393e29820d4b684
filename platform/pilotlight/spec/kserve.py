"""Reader of a `serving.kserve.io/v1beta1` InferenceService into the internal model.

A framework predictor (`sklearn: …`) is read as a model of that format. Rules of KServe's webhook are checked here, so
that they hold without a cluster.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast

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
from pilotlight.spec.field_tables import KSERVE
from pilotlight.spec.field_types import read, source_locations
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.service import Component, ModelSpec, NodeGroup, Role, ScalingMetric, Service
from pilotlight.spec.yaml_nodes import Node

Json = Any
GROUP: Final = "serving.kserve.io/v1beta1"
FRAMEWORKS: Final = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm", "paddle",
)  # fmt: skip
ART_IMAGE: Final = "kserve/art-explainer"
ART_TYPE: Final = "SquareAttack"
MODEL_DIR: Final = "/mnt/models"
TargetType = Literal["Utilization", "AverageValue", "Value"]
_TARGETS: Final[Mapping[TargetType, str]] = {
    "Utilization": "averageUtilization",
    "AverageValue": "averageValue",
    "Value": "value",
}


def read_service(node: Node, problems: Problems, namespace: str = "default") -> Service:
    """Return the service as far as it is valid; add its problems."""
    value = read(node, KSERVE.record("InferenceService"), problems) or {}
    context = DocumentContext(problems, _locations(node))
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    check_name(metadata, context)
    components: dict[Role, Component] = {}
    if "predictor" in spec:
        components["predictor"] = _predictor(spec["predictor"], "spec.predictor", context)
    custom: tuple[Role, ...] = ("transformer", "explainer")
    components |= {role: _custom_component(role, spec[role], context) for role in custom if role in spec}
    return service("kserve", value, namespace, components, context, canaries=_canaries(spec, context))


def _locations(node: Node) -> dict[str, SourceLocation]:
    """Return source locations, with a framework's model also under the paths of `model` that later stages use."""
    locations = source_locations(node)
    for framework in FRAMEWORKS:
        if "spec.predictor.model" not in locations:
            alias(locations, f"spec.predictor.{framework}", "spec.predictor.model")
    return locations


def _component(role: Role, value: Mapping[str, Json], path: str, context: DocumentContext, **own: Any) -> Component:
    scaling = value.get("autoScaling", {})
    metrics = (
        _metric(each, f"{path}.autoScaling.metrics[{index}]", context)
        for index, each in enumerate(scaling.get("metrics", ()))
    )
    result = component(
        role, value, timeout_seconds=value.get("timeout"), scale_metric_type=value.get("scaleMetricType"),
        metrics=tuple(metric for metric in metrics if metric is not None), behavior=scaling.get("behavior", {}),
        batcher=value.get("batcher"), logger=value.get("logger"), storage_uris=tuple(value.get("storageUris", ())),
        **own,
    )  # fmt: skip
    check_component(result, path, context)
    return result


def _predictor(value: Mapping[str, Json], path: str, context: DocumentContext) -> Component:
    models = [name for name in ("model", *FRAMEWORKS) if name in value]
    if len(models) > 1:
        context.error("PL111", f"{path}.{models[1]}", f"excludes {models[0]}: a predictor has one model; keep one")
    elif not models and not value.get("containers"):
        message = f"is missing; give model, one of {', '.join(FRAMEWORKS)}, or containers"
        context.error("PL103", f"{path}.model", message)
    worker, group = None, value.get("workerSpec")
    if group is not None:
        # A pipeline of N has a leader and N - 1 workers.
        sizes = {"pipeline": group.get("pipelineParallelSize"), "tensor": group.get("tensorParallelSize")}
        parallelism = {name: size for name, size in sizes.items() if size is not None}
        worker = NodeGroup(pod_of(group), size=max(parallelism.get("pipeline", 2) - 1, 0), parallelism=parallelism)
    model = _model(models[0], value[models[0]], f"{path}.{models[0]}", context) if models else None
    return _component(
        "predictor",
        value,
        path,
        context,
        model=model,
        worker=worker,
        name=value.get("name", ""),
        storage_container=value.get("storageContainerName", ""),
        **({name: value[models[0]][name] for name in MODEL_FIELDS if name in value[models[0]]} if models else {}),
    )


def _custom_component(role: Role, value: Mapping[str, Json], context: DocumentContext) -> Component:
    path, art = f"spec.{role}", value.get("art")
    if not art and not value.get("containers"):
        context.error("PL103", f"{path}.containers", "is missing: add its container")
    model = _art_explainer(_model("art", art, f"{path}.art", context), art) if art else None
    return _component(role, value, path, context, model=model)


def _art_explainer(model: ModelSpec, art: Mapping[str, Json]) -> ModelSpec:
    """Complete KServe's ART explainer: its image, and arguments from its settings in the order of names."""
    settings = {"--storage_uri": MODEL_DIR} if model.storage_uri else {}
    settings |= {"--adversary_type": art.get("type", ART_TYPE)}
    settings |= {f"--{name}": value for name, value in sorted(model.config.items())}
    args = [word for pair in settings.items() for word in pair]
    image = f"{ART_IMAGE}:{model.runtime_version or 'latest'}"
    container = {"image": image, **model.container, "args": [*args, *model.container.get("args", ())]}
    return replace(model, container=container)


def _model(kind: str, value: Mapping[str, Json], path: str, context: DocumentContext) -> ModelSpec:
    """Read a model. `kind` is `model`, or a framework, which is the format."""
    model_format = value.get("modelFormat", {})
    if "storageUri" in value and "storage" in value and kind != "art":
        uri = value["storageUri"]
        if not uri.startswith(("s3://", "hdfs://", "webhdfs://")):
            message = f'excludes storageUri "{uri}": it has credentials for s3://, hdfs:// and webhdfs://'
            context.error("PL111", f"{path}.storage", message)
    inline = KSERVE.record("FrameworkSpec").fields
    own = ("name", "storageUri", "storage", "protocolVersion", "runtimeVersion", "confidential", *MODEL_FIELDS)
    if value.get("name"):
        context.warn("PL114", f"{path}.name", "has no effect: the container's name is the runtime's; leave it out")
    return ModelSpec(
        format=model_format.get("name", "") if kind == "model" else kind,
        format_version=model_format.get("version", ""),
        runtime=value.get("runtime", ""),
        storage_uri=resolve_uri(value.get("storageUri", ""), context.location(f"{path}.storageUri")),
        storage=value.get("storage", {}),
        protocol=value.get("protocolVersion", ""),
        runtime_version=value.get("runtimeVersion", ""),
        container={name: entry for name, entry in value.items() if name in inline and name not in own},
        confidential=value.get("confidential", {}),
        config=value.get("config", {}),
    )


def _metric(value: Mapping[str, Json], path: str, context: DocumentContext) -> ScalingMetric | None:
    kind = value.get("type", "")
    name = kind.lower()
    for other in ("resource", "external", "podmetric"):
        if kind and other != name and other in value:
            context.error("PL111", f"{path}.{other}", f"excludes type {kind}; give {name}, or change the type")
    if not kind or name not in value:
        if kind:
            context.error("PL103", f"{path}.{name}", f"is required with type {kind}")
        return None
    source = value[name]
    metric, credentials = source.get("metric", {}), source.get("authenticationRef", {})
    target = _target(source.get("target", {}), f"{path}.{name}.target", context)
    return target and ScalingMetric(
        kind=cast(Any, {"podmetric": "pod"}.get(name, name)),
        name=source.get("name", metric.get("backend", "prometheus" if name == "external" else "opentelemetry")),
        target_type=target[0],
        target=target[1],
        query=metric.get("query", ""),
        server_address=metric.get("serverAddress", ""),
        authentication=credentials.get("authenticationRef", {}),
        auth_modes=credentials.get("authModes", ""),
        namespace=metric.get("namespace", ""),
    )


def _target(value: Mapping[str, Json], path: str, context: DocumentContext) -> tuple[TargetType, str] | None:
    """Return type and value of a metric target; a missing type follows from the value that is set."""
    kinds: list[TargetType] = [kind for kind, name in _TARGETS.items() if name in value]
    kind: TargetType | None = value.get("type", kinds[0] if kinds else None)
    if kind is None or _TARGETS[kind] not in value:
        needed = _TARGETS[kind] if kind else "value"
        context.error("PL103", f"{path}.{needed}", f"is required with type {kind or 'Value'}")
        return None
    for other in kinds:
        if other != kind:
            context.error("PL111", f"{path}.{_TARGETS[other]}", f"excludes type {kind}; keep {_TARGETS[kind]}")
    return kind, str(value[_TARGETS[kind]])


def _canaries(spec: Mapping[str, Json], context: DocumentContext) -> tuple[Mapping[str, Json], ...]:
    """Read `canary[]`. KServe rejects canaries that scale; here they do, so all fields of a predictor are read."""
    stable = spec.get("predictor", {}).get("name", "")
    canaries: dict[str, Mapping[str, Json]] = {}
    for index, entry in enumerate(spec.get("canary", ())):
        path = f"spec.canary[{index}]"
        predictor = entry.get("predictor", {})
        name = predictor.get("name", "")
        if not name:
            context.error("PL103", f"{path}.predictor.name", "is missing: the canary's objects are named after it")
        elif name == stable or name in canaries:
            message = f'is "{name}", which another predictor has; choose another'
            context.error("PL104", f"{path}.predictor.name", message)
        canaries[name or path] = {
            "name": name,
            "trafficPercent": entry.get("trafficPercent", 0),
            "predictor": predictor,
            "component": _predictor(predictor, f"{path}.predictor", context),
        }
    total = sum(each["trafficPercent"] for each in canaries.values())
    if total > 100:
        context.error("PL104", "spec.canary", f"sends {total} percent of the traffic to canaries, must be at most 100")
    return tuple(canaries.values())
