"""Reader of (Cluster)ServingRuntime documents of both API groups.

`catalogue` calls `read_runtime`; the built-in data, which a test validates, goes straight to `runtime_from`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.names import ANNOTATION_PREDICTOR
from pilotlight.spec.catalogue_types import POD_FIELDS, RUNTIME_VERSIONS, runtime_type
from pilotlight.spec.model import Runtime, SupportedFormat
from pilotlight.spec.nodes import Node
from pilotlight.spec.paths import source_locations
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.sizes import parameter_count
from pilotlight.spec.types import read

Json = Any
SERVER_TYPE: Final = "serving.kserve.io/server-type"
OUR_IMAGE: Final = "pilotlight/predictor"
OURS: Final = ANNOTATION_PREDICTOR
# OME's default weights.
FORMAT_WEIGHT: Final = 10
FRAMEWORK_WEIGHT: Final = 5


def read_runtime(node: Node, problems: Problems, namespace: str = "default") -> Runtime | None:
    """Read a runtime as far as its document is valid; None without a name. `namespace` is the default."""
    group = RUNTIME_VERSIONS[node.text("apiVersion")]
    document = read(node, runtime_type(group), problems) or {}
    if not (document.get("metadata") or {}).get("name"):
        return None
    runtime = runtime_from(document, node.location.file, namespace)
    _check(runtime, node, problems)
    return replace(runtime, locations=source_locations(node))


def _check(runtime: Runtime, node: Node, problems: Problems) -> None:
    """Check rules that types cannot express: container, namespace, model size range."""
    if runtime.kind == "ClusterServingRuntime" and runtime.namespace:
        location = _location(node, "metadata", "namespace")
        problems.error("PL201", location, "metadata.namespace", "a ClusterServingRuntime has none; leave it out")
    configured = runtime.engine or runtime.decoder or runtime.router
    if not runtime.pod.get("containers") and not configured:
        wanted = "spec.engineConfig.runner" if runtime.group == "ome" else "spec.containers"
        problems.error("PL202", _location(node, "spec"), "spec", f"brings no container; add {wanted}")
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
    return Runtime(
        name=metadata["name"], kind=kind, group=group, origin=origin, pod=pod,
        formats=tuple(_ome_format(entry) if group == "ome" else _kserve_format(entry) for entry in entries),
        engine=spec.get("engineConfig") or {}, decoder=spec.get("decoderConfig") or {},
        router=spec.get("routerConfig") or {}, workers=spec.get("workers" if group == "ome" else "workerSpec") or {},
        size_range=(str(size.get("min", "")), str(size.get("max", ""))) if size else None,
        protocols=tuple(spec.get("protocolVersions") or ()), disabled=bool(spec.get("disabled")),
        labels=spec.get("labels") or {}, annotations=spec.get("annotations") or {},
        namespace=metadata.get("namespace") or ("" if kind.startswith("Cluster") else namespace),
        is_pilotlight=OURS in annotations or _our_image(spec), accelerators=spec.get("acceleratorRequirements") or {},
        multi_model=bool(spec.get("multiModel")), server_type=annotations.get(SERVER_TYPE, ""),
    )  # fmt: skip


def _our_image(spec: Mapping[str, Json]) -> bool:
    containers = [*(spec.get("containers") or ()), (spec.get("engineConfig") or {}).get("runner") or {}]
    names = (str(container.get("image", "")).partition("@")[0] for container in containers)
    return any(f"/{name.rpartition(':')[0] or name}".endswith(f"/{OUR_IMAGE}") for name in names)


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
    return SupportedFormat(
        name=entry.get("name", ""),
        version=str(entry.get("version", "")),
        auto_select=bool(entry.get("autoSelect")),
        priority=entry.get("priority") or 0,
    )
