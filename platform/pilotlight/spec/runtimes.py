"""Reading (Cluster)ServingRuntime documents of both API groups: their types, and what becomes of them.

`catalogue` dispatches to `read_runtime`; the built-in data, checked by a test instead of at every start, goes straight
to `runtime_from`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.names import ANNOTATION_PREDICTOR
from pilotlight.spec.catalogue_types import POD_FIELDS, RUNTIME_VERSIONS, runtime_type
from pilotlight.spec.model import Runtime, SupportedFormat
from pilotlight.spec.nodes import Node
from pilotlight.spec.paths import places
from pilotlight.spec.problems import Place, Problems
from pilotlight.spec.sizes import parameters
from pilotlight.spec.types import read

Json = Any
SERVER_TYPE: Final = "serving.kserve.io/server-type"
OUR_IMAGE: Final = "pilotlight/predictor"
OURS: Final = ANNOTATION_PREDICTOR
# OME's weights for lines that name none.
FORMAT_WEIGHT: Final = 10
FRAMEWORK_WEIGHT: Final = 5


def read_runtime(node: Node, problems: Problems, namespace: str = "default") -> Runtime | None:
    """A runtime as far as its document is right; None without a name. `namespace` is that of documents without one."""
    group = RUNTIME_VERSIONS[node.text("apiVersion")]
    document = read(node, runtime_type(group), problems) or {}
    if not (document.get("metadata") or {}).get("name"):
        return None
    runtime = runtime_from(document, node.place.file, namespace)
    _check(runtime, node, problems)
    return replace(runtime, places=places(node))


def _check(runtime: Runtime, node: Node, problems: Problems) -> None:
    """What no type says: a runtime must bring a container, and a namespaced one its namespace's."""
    if runtime.kind == "ClusterServingRuntime" and runtime.namespace:
        place = _place(node, "metadata", "namespace")
        problems.error("PL201", place, "metadata.namespace", "a ClusterServingRuntime has none; leave it out")
    configured = runtime.engine or runtime.decoder or runtime.router
    if not runtime.pod.get("containers") and not configured:
        wanted = "spec.engineConfig.runner" if runtime.group == "ome" else "spec.containers"
        problems.error("PL202", _place(node, "spec"), "spec", f"brings no container; add {wanted}")
    for bound in runtime.size_range or ():
        if bound and parameters(bound) is None:
            place = _place(node, "spec", "modelSizeRange")
            problems.error("PL213", place, "spec.modelSizeRange", f"= {bound}, must be a count such as 7B or 560M")


def _place(node: Node, *names: str) -> Place:
    """Where a path of the document is written, or its nearest parent."""
    for name in names:
        node = node.get(name) or node
    return node.place


def runtime_from(document: Mapping[str, Json], origin: str, namespace: str = "default") -> Runtime:
    """The internal form of a checked document."""
    group = RUNTIME_VERSIONS[document["apiVersion"]]
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    pod = {name: spec[name] for name in POD_FIELDS if name in spec}
    kind = str(document["kind"])
    lines = spec.get("supportedModelFormats") or ()
    size = spec.get("modelSizeRange")
    return Runtime(
        name=metadata["name"], kind=kind, group=group, origin=origin, pod=pod,
        formats=tuple(_ome_line(line) if group == "ome" else _kserve_line(line) for line in lines),
        engine=spec.get("engineConfig") or {}, decoder=spec.get("decoderConfig") or {},
        router=spec.get("routerConfig") or {}, workers=spec.get("workers" if group == "ome" else "workerSpec") or {},
        size_range=(str(size.get("min", "")), str(size.get("max", ""))) if size else None,
        protocols=tuple(spec.get("protocolVersions") or ()), disabled=bool(spec.get("disabled")),
        labels=spec.get("labels") or {}, annotations=spec.get("annotations") or {},
        namespace=metadata.get("namespace") or ("" if kind.startswith("Cluster") else namespace),
        ours=OURS in annotations or _our_image(spec), accelerators=spec.get("acceleratorRequirements") or {},
        multi_model=bool(spec.get("multiModel")), server_type=annotations.get(SERVER_TYPE, ""),
    )  # fmt: skip


def _our_image(spec: Mapping[str, Json]) -> bool:
    containers = [*(spec.get("containers") or ()), (spec.get("engineConfig") or {}).get("runner") or {}]
    names = (str(container.get("image", "")).partition("@")[0] for container in containers)
    return any(f"/{name.rpartition(':')[0] or name}".endswith(f"/{OUR_IMAGE}") for name in names)


def _ome_line(line: Mapping[str, Json]) -> SupportedFormat:
    form, framework = line.get("modelFormat") or {}, line.get("modelFramework") or {}
    return SupportedFormat(
        name=form.get("name") or line.get("name", ""), version=str(form.get("version", "")),
        operator=form.get("operator", "Equal"), format_weight=form.get("weight") or FORMAT_WEIGHT,
        framework=framework.get("name", ""), framework_version=str(framework.get("version", "")),
        framework_operator=framework.get("operator", "Equal"),
        framework_weight=framework.get("weight") or FRAMEWORK_WEIGHT,
        architecture=line.get("modelArchitecture", ""), quantization=line.get("quantization", ""),
        auto_select=bool(line.get("autoSelect")), priority=line.get("priority") or 1,
        accelerators=line.get("acceleratorConfig") or {}, pipeline=line.get("diffusionPipeline") or {},
    )  # fmt: skip


def _kserve_line(line: Mapping[str, Json]) -> SupportedFormat:
    return SupportedFormat(
        name=line.get("name", ""),
        version=str(line.get("version", "")),
        auto_select=bool(line.get("autoSelect")),
        priority=line.get("priority") or 0,
    )
