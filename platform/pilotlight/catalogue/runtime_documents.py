"""(Cluster)ServingRuntime documents of both API groups, and the Go template placeholders in them.

`catalogue` calls `read_runtime`; the built-in data, which a test validates, goes straight to `runtime_from`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.catalogue.document_types import RUNTIME_VERSIONS, TYPES, parameter_count
from pilotlight.k8s.names import ANNOTATION_DISAGGREGATION, ANNOTATION_PREDICTOR
from pilotlight.spec.field_types import read, source_locations
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.service import ModelSpec, Runtime, Service, SupportedFormat
from pilotlight.spec.yaml_nodes import Node

Json = Any
SERVER_TYPE: Final = "serving.kserve.io/server-type"
OUR_IMAGE: Final = "pilotlight/predictor"
# OME's default weights.
FORMAT_WEIGHT: Final = 10
FRAMEWORK_WEIGHT: Final = 5
POD_FIELDS: Final = (  # that a runtime may set
    "containers", "volumes", "nodeSelector", "affinity", "tolerations", "imagePullSecrets", "schedulerName", "hostIPC",
    "resourceClaims", "dnsPolicy", "hostNetwork",
)  # fmt: skip
# In linear time: the author of a runtime need not be trusted with the controller's.
_PLACEHOLDER: Final = re.compile(r"\{\{((?:(?!\{\{).)*?)\}\}", re.DOTALL)
# Any other placeholder is an error instead of reaching a container.
_FIELD: Final = re.compile(r"\.(Name|Namespace)|\.(Labels|Annotations)\.([A-Za-z_][A-Za-z0-9_]*)")
_MLSERVER_CLASSES: Final = {
    "xgboost": "mlserver_xgboost.XGBoostModel",
    "lightgbm": "mlserver_lightgbm.LightGBMModel",
    "mlflow": "mlserver_mlflow.MLflowRuntime",
}


def read_runtime(node: Node, problems: Problems, namespace: str = "default") -> Runtime | None:
    """Read a runtime as far as its document is valid; None without a name. `namespace` is the default."""
    group = RUNTIME_VERSIONS[node.text("apiVersion")]
    document = read(node, TYPES.record(f"{group} ServingRuntime"), problems) or {}
    if not (document.get("metadata") or {}).get("name"):
        return None
    runtime = runtime_from(document, node.location.file, namespace)
    _check(runtime, node, problems)
    return replace(runtime, locations=source_locations(node))


def _check(runtime: Runtime, node: Node, problems: Problems) -> None:
    """Check rules that types cannot express: container, namespace, model size range."""
    if runtime.kind == "ClusterServingRuntime" and runtime.namespace:
        location = _location(node, "metadata", "namespace")
        problems.error("PL201", location, "metadata.namespace", "a ClusterServingRuntime has none; remove it")
    configured = runtime.engine or runtime.decoder or runtime.router
    if not runtime.pod.get("containers") and not configured:
        wanted = "spec.engineConfig.runner" if runtime.group == "ome" else "spec.containers"
        problems.error("PL202", _location(node, "spec"), "spec", f"has no container; add {wanted}")
    for bound in runtime.size_range or ():
        if bound and parameter_count(bound) is None:
            location = _location(node, "spec", "modelSizeRange")
            problems.error("PL213", location, "spec.modelSizeRange", f"= {bound}, must be a count such as 7B or 560M")


def _location(node: Node, *names: str) -> SourceLocation:
    """Return the location of a path of the document, or of its nearest parent."""
    for name in names:
        node = node.get(name) or node
    return node.location


def runtime_from(document: Mapping[str, Json], origin: str, namespace: str = "default") -> Runtime:
    """Return the internal form of a validated document."""
    group = RUNTIME_VERSIONS[document["apiVersion"]]
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    pod = {name: spec[name] for name in POD_FIELDS if name in spec}
    kind = str(document["kind"])
    entries = spec.get("supportedModelFormats") or ()
    size = spec.get("modelSizeRange")
    containers = [*(spec.get("containers") or ()), (spec.get("engineConfig") or {}).get("runner") or {}]
    images = (str(container.get("image", "")).partition("@")[0] for container in containers)
    has_our_image = any(f"/{image.rpartition(':')[0] or image}".endswith(f"/{OUR_IMAGE}") for image in images)
    return Runtime(
        name=metadata["name"], kind=kind, group=group, origin=origin, pod=pod,
        formats=tuple(_ome_format(entry) if group == "ome" else _kserve_format(entry) for entry in entries),
        engine=spec.get("engineConfig") or {}, decoder=spec.get("decoderConfig") or {},
        router=spec.get("routerConfig") or {}, workers=spec.get("workers" if group == "ome" else "workerSpec") or {},
        size_range=(str(size.get("min", "")), str(size.get("max", ""))) if size else None,
        protocols=tuple(spec.get("protocolVersions") or ()), disabled=bool(spec.get("disabled")),
        labels=spec.get("labels") or {}, annotations=spec.get("annotations") or {},
        namespace=metadata.get("namespace") or ("" if kind.startswith("Cluster") else namespace),
        is_pilotlight=ANNOTATION_PREDICTOR in annotations or has_our_image,
        accelerators=spec.get("acceleratorRequirements") or {},
        multi_model=bool(spec.get("multiModel")), server_type=annotations.get(SERVER_TYPE, ""),
        disaggregation=annotations.get(ANNOTATION_DISAGGREGATION, ""),
    )  # fmt: skip


def _ome_format(entry: Mapping[str, Json]) -> SupportedFormat:
    form, framework = entry.get("modelFormat") or {}, entry.get("modelFramework") or {}
    return SupportedFormat(
        name=form.get("name") or entry.get("name", ""), version=str(form.get("version", "")),
        operator=form.get("operator", "Equal"), format_weight=form.get("weight") or FORMAT_WEIGHT,
        framework=framework.get("name", ""), framework_version=str(framework.get("version", "")),
        framework_operator=framework.get("operator", "Equal"),
        framework_weight=framework.get("weight") or FRAMEWORK_WEIGHT,
        architecture=entry.get("modelArchitecture", ""), quantization=entry.get("quantization", ""),
        auto_select=bool(entry.get("autoSelect")), priority=entry.get("priority") or 1,
        accelerators=entry.get("acceleratorConfig") or {}, pipeline=entry.get("diffusionPipeline") or {},
    )  # fmt: skip


def _kserve_format(entry: Mapping[str, Json]) -> SupportedFormat:
    name, version, priority = entry.get("name", ""), str(entry.get("version", "")), entry.get("priority") or 0
    return SupportedFormat(name, version, auto_select=bool(entry.get("autoSelect")), priority=priority)


def expand(value: Json, service: Service, runtime: Runtime, problems: Problems, path: str = "") -> Json:
    """Fill in all placeholders of a value. `path` is its path inside the runtime."""
    if isinstance(value, str):
        return _text(value, service, runtime, problems, path) if "{{" in value else value
    if isinstance(value, Mapping):
        return {key: expand(item, service, runtime, problems, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item, service, runtime, problems, f"{path}[{at}]") for at, item in enumerate(value)]
    return value


def _text(text: str, service: Service, runtime: Runtime, problems: Problems, path: str) -> str:
    implied = implied_metadata(service, runtime)
    location = runtime.locations.get(path, SourceLocation(runtime.origin))

    def fill(match: re.Match[str]) -> str:
        field = _FIELD.fullmatch(match[1].removeprefix("-").removesuffix("-").strip())
        if field is None:
            known = "only .Name, .Namespace, .Labels.x, .Annotations.x are known"
            problems.error("PL230", location, path.lstrip("."), f"runtime {runtime.name} has {match[0]}; {known}")
            return match[0]
        if field[1]:
            return service.name if field[1] == "Name" else service.namespace
        kind = field[2].lower()
        metadata = {**(service.labels if kind == "labels" else service.annotations), **implied.get(kind, {})}
        if field[3] not in metadata:
            message = f"runtime {runtime.name} uses {field[0]}, which the service does not set: it is empty"
            problems.warn("PL231", location, path.lstrip("."), message)
        return metadata.get(field[3], "")

    return _PLACEHOLDER.sub(fill, text)


def implied_metadata(service: Service, runtime: Runtime) -> Mapping[str, Mapping[str, str]]:
    """Return labels and annotations that KServe's defaulting adds before it fills in its stock runtimes."""
    predictor = service.components.get("predictor")
    model = predictor.model if predictor is not None else None
    if model is None:
        return {}
    implied: dict[str, Mapping[str, str]] = {"annotations": {"modelFormat": model.format}}
    if runtime.server_type == "mlserver":
        implied["labels"] = {"modelClass": _MLSERVER_CLASSES.get(model.format, "mlserver_sklearn.SKLearnModel")}
    if runtime.server_type == "torchserve":
        implied["labels"] = {"serviceEnvelope": "kservev2" if model.protocol in ("v2", "grpc-v2") else "kserve"}
    return implied


def implied_env(service: Service, runtime: Runtime, model: ModelSpec) -> list[dict[str, str]]:
    """Return variables that KServe's defaulting sets for MLServer and TorchServe; the user's own win."""
    stored = bool(model.storage_uri or model.storage)
    if runtime.server_type == "mlserver" and stored:
        values = {"MLSERVER_MODEL_NAME": service.name, "MLSERVER_MODEL_URI": "/mnt/models"}
    elif runtime.server_type == "mlserver":
        values = {"MLSERVER_LOAD_MODELS_AT_STARTUP": "false"}
    else:
        values = {"PROTOCOL_VERSION": model.protocol or "v1"} if runtime.server_type == "torchserve" else {}
    return [{"name": name, "value": value} for name, value in values.items()]
