"""Reads a `serving.kserve.io/v1beta1` InferenceService into the internal model.

A predictor of one framework (`sklearn: …`) reads as a model of that format. Rules that KServe checks in its webhook
are checked here, so that they hold without a cluster.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast

from pilotlight.spec.components import (
    Reading,
    annotations_of,
    check_component,
    check_name,
    component,
    pod_of,
)
from pilotlight.spec.kserve_fields import ART_TYPES, FRAMEWORKS, inference_service, record
from pilotlight.spec.model import Component, ModelSpec, NodeGroup, Role, ScalingMetric, Service
from pilotlight.spec.nodes import Node
from pilotlight.spec.paths import places
from pilotlight.spec.problems import Place, Problems
from pilotlight.spec.storage import located
from pilotlight.spec.types import read

Json = Any
ART_IMAGE: Final = "kserve/art-explainer"
MODEL_DIR: Final = "/mnt/models"
TargetType = Literal["Utilization", "AverageValue", "Value"]
_TARGETS: Final[Mapping[TargetType, str]] = {
    "Utilization": "averageUtilization",
    "AverageValue": "averageValue",
    "Value": "value",
}


def read_service(node: Node, problems: Problems, namespace: str = "default") -> Service:
    """The service as far as it could be read; what is wrong has been added to the problems."""
    value = read(node, inference_service(), problems) or {}
    reading = Reading(problems, _places(node))
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    check_name(metadata, reading)
    components: dict[Role, Component] = {}
    if "predictor" in spec:
        components["predictor"] = _predictor(spec["predictor"], "spec.predictor", reading)
    if "transformer" in spec:
        components["transformer"] = _custom("transformer", spec["transformer"], reading)
    if "explainer" in spec:
        components["explainer"] = _custom("explainer", spec["explainer"], reading)
    return Service(
        group="kserve",
        name=metadata.get("name", ""),
        namespace=metadata.get("namespace", namespace),
        components=components,
        canaries=_canaries(spec, reading),
        labels=metadata.get("labels", {}),
        annotations=annotations_of(metadata),
        places=reading.places,
        document=value,
    )


def _places(node: Node) -> dict[str, Place]:
    """With a framework's model found by the paths of `model` too: that is what later stages know it as."""
    found = places(node)
    for framework in FRAMEWORKS:
        short, long = f"spec.predictor.{framework}", "spec.predictor.model"
        if short in found and long not in found:
            same = {path: place for path, place in found.items() if path == short or path.startswith(f"{short}.")}
            found |= {f"{long}{path[len(short) :]}": place for path, place in same.items()}
    return found


def _component(role: Role, value: Mapping[str, Json], path: str, reading: Reading, **own: Any) -> Component:
    scaling = value.get("autoScaling", {})
    made = component(
        role,
        value,
        timeout_seconds=value.get("timeout"),
        scale_metric_type=value.get("scaleMetricType"),
        metrics=_metrics(scaling.get("metrics", ()), f"{path}.autoScaling.metrics", reading),
        behavior=scaling.get("behavior", {}),
        batcher=value.get("batcher"),
        logger=value.get("logger"),
        storage_uris=tuple(value.get("storageUris", ())),
        **own,
    )
    check_component(made, path, reading)
    return made


def _predictor(value: Mapping[str, Json], path: str, reading: Reading) -> Component:
    given = [name for name in ("model", *FRAMEWORKS) if name in value]
    if len(given) > 1:
        reading.error("PL111", f"{path}.{given[1]}", f"excludes {given[0]}: a predictor serves one model; keep one")
    elif not given and not value.get("containers"):
        reading.error(
            "PL103", f"{path}.model", f"is missing; give model, one of {', '.join(FRAMEWORKS)}, or containers"
        )
    return _component(
        "predictor",
        value,
        path,
        reading,
        model=_model(given[0], value[given[0]], f"{path}.{given[0]}", reading) if given else None,
        worker=_worker(value.get("workerSpec")),
        name=value.get("name", ""),
        storage_container=value.get("storageContainerName", ""),
    )


def _custom(role: Role, value: Mapping[str, Json], reading: Reading) -> Component:
    path, art = f"spec.{role}", value.get("art")
    if not art and not value.get("containers"):
        reading.error("PL103", f"{path}.containers", "is missing: it needs the container that does the work")
    model = _explaining(_model("art", art, f"{path}.art", reading), art) if art else None
    return _component(role, value, path, reading, model=model)


def _explaining(model: ModelSpec, art: Mapping[str, Json]) -> ModelSpec:
    """KServe's explainer of the toolbox: its image, told by arguments what to do; settings in the order of names."""
    told = {"--storage_uri": MODEL_DIR} if model.storage_uri else {}
    told |= {"--adversary_type": art.get("type", ART_TYPES[0])}
    told |= {f"--{name}": value for name, value in sorted(model.config.items())}
    args = [word for pair in told.items() for word in pair]
    image = f"{ART_IMAGE}:{model.runtime_version or 'latest'}"
    container = {"image": image, **model.container, "args": [*args, *model.container.get("args", ())]}
    return replace(model, container=container)


def _model(kind: str, value: Mapping[str, Json], path: str, reading: Reading) -> ModelSpec:
    """`kind` is `model`, or the framework that names the format by itself."""
    model_format = value.get("modelFormat", {})
    if "storageUri" in value and "storage" in value and kind != "art":
        uri = value["storageUri"]
        if not uri.startswith(("s3://", "hdfs://", "webhdfs://")):
            message = f'excludes storageUri "{uri}": it gives credentials for s3://, hdfs:// and webhdfs://'
            reading.error("PL111", f"{path}.storage", message)
    inline = record("FrameworkSpec").fields
    own = ("name", "storageUri", "storage", "protocolVersion", "runtimeVersion", "confidential")
    if value.get("name"):
        reading.warn("PL114", f"{path}.name", "has no effect: the container's name is the runtime's; leave it out")
    return ModelSpec(
        format=model_format.get("name", "") if kind == "model" else kind,
        format_version=model_format.get("version", ""),
        runtime=value.get("runtime", ""),
        storage_uri=located(value.get("storageUri", ""), reading.place(f"{path}.storageUri")),
        storage=value.get("storage", {}),
        protocol=value.get("protocolVersion", ""),
        runtime_version=value.get("runtimeVersion", ""),
        container={name: entry for name, entry in value.items() if name in inline and name not in own},
        confidential=value.get("confidential", {}),
        config=value.get("config", {}),
    )


def _worker(value: Mapping[str, Json] | None) -> NodeGroup | None:
    """A pipeline of N has N - 1 workers beside the leader."""
    if value is None:
        return None
    sizes = {"pipeline": value.get("pipelineParallelSize"), "tensor": value.get("tensorParallelSize")}
    given = {name: size for name, size in sizes.items() if size is not None}
    return NodeGroup(pod_of(value), size=max(given.get("pipeline", 2) - 1, 0), parallelism=given)


def _metrics(values: list[Json], path: str, reading: Reading) -> tuple[ScalingMetric, ...]:
    found = (_metric(value, f"{path}[{index}]", reading) for index, value in enumerate(values))
    return tuple(metric for metric in found if metric is not None)


def _metric(value: Mapping[str, Json], path: str, reading: Reading) -> ScalingMetric | None:
    kind = value.get("type", "")
    name = kind.lower()
    for other in ("resource", "external", "podmetric"):
        if kind and other != name and other in value:
            reading.error("PL111", f"{path}.{other}", f"excludes type {kind}; give {name}, or change the type")
    if not kind or name not in value:
        if kind:
            reading.error("PL103", f"{path}.{name}", f"is missing and required with type {kind}")
        return None
    source = value[name]
    metric, credentials = source.get("metric", {}), source.get("authenticationRef", {})
    target = _target(source.get("target", {}), f"{path}.{name}.target", reading)
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
        metric_names=tuple(metric.get("metricNames", ())),
        operation=metric.get("operationOverTime", ""),
    )


def _target(value: Mapping[str, Json], path: str, reading: Reading) -> tuple[TargetType, str] | None:
    """The one number that is given; a type that is left out follows from it."""
    given: list[TargetType] = [kind for kind, name in _TARGETS.items() if name in value]
    kind: TargetType | None = value.get("type", given[0] if given else None)
    if kind is None or _TARGETS[kind] not in value:
        needed = _TARGETS[kind] if kind else "value"
        reading.error("PL103", f"{path}.{needed}", f"is missing and required with type {kind or 'Value'}")
        return None
    for other in given:
        if other != kind:
            reading.error("PL111", f"{path}.{_TARGETS[other]}", f"excludes type {kind}; keep {_TARGETS[kind]}")
    return kind, str(value[_TARGETS[kind]])


def _canaries(spec: Mapping[str, Json], reading: Reading) -> tuple[Mapping[str, Json], ...]:
    """KServe refuses canaries that scale; ours do, so every field of a predictor is read."""
    stable = spec.get("predictor", {}).get("name", "")
    found: dict[str, Mapping[str, Json]] = {}
    for index, entry in enumerate(spec.get("canary", ())):
        path = f"spec.canary[{index}]"
        predictor = entry.get("predictor", {})
        name = predictor.get("name", "")
        if not name:
            reading.error("PL103", f"{path}.predictor.name", "is missing: the canary's objects are named after it")
        elif name == stable or name in found:
            reading.error(
                "PL104", f"{path}.predictor.name", f'is "{name}", which another predictor has; choose another'
            )
        made = _predictor(predictor, f"{path}.predictor", reading)
        found[name or path] = {
            "name": name, "trafficPercent": entry.get("trafficPercent", 0), "predictor": predictor, "component": made,
        }  # fmt: skip
    total = sum(each["trafficPercent"] for each in found.values())
    if total > 100:
        reading.error("PL104", "spec.canary", f"gives {total} percent of the requests to canaries, must be at most 100")
    return tuple(found.values())
