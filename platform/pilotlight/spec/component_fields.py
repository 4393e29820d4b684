"""Fields that components of both API groups share: metadata, pod fields, scaling, storage; and their conversion.

`ome` and `kserve` add their own. A component *is* a Kubernetes pod spec with more fields, and so is its type.
"""

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pilotlight.contract import RESERVED_NAMES
from pilotlight.spec import pod_fields
from pilotlight.spec.field_types import Anything, Field, Integer, MapOf, OneOf, Record, RecordRef, String
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.service import Component, Role

Json = Any

_LABEL_VALUE: Final = String(
    r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?", "letters, digits, '-', '_' and '.', at most 63 of them", 63
)
_QUALIFIED: Final = r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED_MUST: Final = "a name such as app or example.com/app"
LABELS: Final = MapOf(_LABEL_VALUE, _QUALIFIED, _QUALIFIED_MUST)
ANNOTATIONS: Final = MapOf(String(), _QUALIFIED, _QUALIFIED_MUST)
NAME: Final = String(
    r"[a-z](?:[-a-z0-9]*[a-z0-9])?", "a lower-case letter, then lower-case letters, digits and '-'", 63
)
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_WRITTEN_BY_THE_CLUSTER: Final = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generation",
    "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip
METADATA: Final = Record("metadata", {
    "name": Field(NAME, "Name of the service, used for its URL and objects.", required=True),
    "namespace": Field(NAME, "Namespace; default: --namespace."),
    "labels": Field(LABELS, "Labels of every object of the service."),
    "annotations": Field(ANNOTATIONS, "Annotations, such as the deployment mode and autoscaler class."),
    **{name: Field(Anything(), ignored=True) for name in _WRITTEN_BY_THE_CLUSTER},
}, hints={"generateName": "give it a name: its URL and its revisions are named after it"})  # fmt: skip

_STRATEGY: Final = pod_fields.core("DeploymentStrategy")
SCALE_METRIC: Final = OneOf(("cpu", "memory", "concurrency", "rps"))
EXTENSION: Final[Mapping[str, Field]] = {
    "minReplicas": Field(Integer(0), "Minimum number of replicas; 0: scale to zero."),
    "maxReplicas": Field(Integer(0), "Maximum number of replicas; 0 or unset: the default."),
    "scaleTarget": Field(Integer(1), "Target of scaleMetric: percent for cpu and memory, else requests."),
    "scaleMetric": Field(SCALE_METRIC, "Metric of the autoscaler."),
    "containerConcurrency": Field(Integer(0), "Maximum concurrent requests per replica; 0: no limit."),
    "canaryTrafficPercent": Field(Integer(0, 100), "Traffic percentage of the newest revision."),
    "labels": Field(LABELS, "Labels of the component's pods."),
    "annotations": Field(ANNOTATIONS, "Annotations of the component's pods."),
    "deploymentStrategy": Field(_STRATEGY, "How a Deployment replaces pods (raw mode)."),
}
# Only a path may have spaces.
STORAGE_URI: Final = String(
    r"\S+|\.{0,2}/\S*(?: +\S+)*",
    "a URI without spaces, such as s3://bucket/path or pvc://claim/path, or a path: ./model.onnx next to this file",
)
STORAGE: Final = Record("ModelStorageSpec", {
    "key": Field(String(), "Entry of the storage secret with the credentials."),
    "path": Field(String(), "Path of the model within the storage."),
    "schemaPath": Field(String(), "Path of the model's schema within the storage."),
    "parameters": Field(MapOf(String()), "Overrides of the storage's settings: type, bucket, endpoint_url, …"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class DocumentContext:
    """The document being read: source locations of its paths, and the collector of its problems."""

    problems: Problems
    locations: Mapping[str, SourceLocation]

    def location(self, path: str) -> SourceLocation:
        while path and path not in self.locations:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.locations.get(path, SourceLocation())

    def error(self, code: str, path: str, message: str) -> None:
        self.problems.error(code, self.location(path), path, message)

    def warn(self, code: str, path: str, message: str) -> None:
        self.problems.warn(code, self.location(path), path, message)


@cache
def inline_pod_fields() -> dict[str, Field]:
    """Return the fields of an inline pod spec; its containers are optional, since the runtime may bring them."""
    return pod_fields.fields("PodSpec", optional=("containers",), without=("ephemeralContainers",))


@cache
def container_record(name: str) -> Record:
    """Return the type of a container whose name is optional, because only one is possible."""
    return Record(name, pod_fields.fields("Container", optional=("name",)))


def container(name: str) -> RecordRef:
    return RecordRef(name, container_record)


def document(group: str, spec: RecordRef) -> Record:
    """Return the type of an InferenceService of one API group."""
    return Record("InferenceService", {
        "apiVersion": Field(OneOf((group,)), "API group and version.", required=True),
        "kind": Field(OneOf(("InferenceService",)), "Kind of the object.", required=True),
        "metadata": Field(METADATA, "Name, namespace, labels and annotations.", required=True),
        "spec": Field(spec, "Desired state of the service.", required=True),
        "status": Field(Anything(), "Set by the cluster; ignored.", ignored=True),
    }, "One model service.")  # fmt: skip


def pod_of(value: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value[name] for name in value if name in inline_pod_fields()}


def component(role: Role, value: Mapping[str, Json], **own: Any) -> Component:
    """Build a component from the shared fields and `own`. `maxReplicas: 0` means unset, as in both groups."""
    shared: dict[str, Any] = {
        "pod": pod_of(value),
        "min_replicas": value.get("minReplicas"),
        "max_replicas": value.get("maxReplicas") or None,
        "scale_target": value.get("scaleTarget"),
        "scale_metric": value.get("scaleMetric"),
        "container_concurrency": value.get("containerConcurrency"),
        "canary_traffic_percent": value.get("canaryTrafficPercent"),
        "deployment_strategy": value.get("deploymentStrategy", {}),
        "labels": value.get("labels", {}),
        "annotations": value.get("annotations", {}),
    }
    return Component(role, **{**shared, **own})


def check_component(parsed: Component, path: str, context: DocumentContext) -> None:
    """Check rules that concern two fields."""
    minimum, maximum = parsed.min_replicas, parsed.max_replicas
    if minimum is not None and maximum is not None and minimum > maximum:
        context.error("PL104", f"{path}.maxReplicas", f"is {maximum}, must be at least minReplicas, which is {minimum}")
    if parsed.min_available is not None and parsed.max_unavailable is not None:
        context.error("PL111", f"{path}.maxUnavailable", "excludes minAvailable; keep one of them")
    for kind in ("containers", "initContainers", "volumes"):
        names = [each.get("name") for each in parsed.pod.get(kind, ())]
        for index, name in enumerate(names):
            if name in names[:index]:
                context.error("PL104", f"{path}.{kind}[{index}].name", f'is "{name}", which is already in use')


def check_name(metadata: Mapping[str, Json], context: DocumentContext) -> None:
    name = metadata.get("name", "")
    if name in RESERVED_NAMES:
        context.error("PL104", "metadata.name", f'is "{name}", which is a path of the gateway; choose another name')


def annotations_of(metadata: Mapping[str, Json]) -> dict[str, str]:
    return {key: value for key, value in metadata.get("annotations", {}).items() if key != LAST_APPLIED}


def resolve_uri(uri: str, location: SourceLocation) -> str:
    """Resolve `./model.onnx` against the document's folder, or the working directory for `--set`; keep other URIs."""
    if not uri.startswith(("./", "../")):
        return uri
    folder = "" if location.file.startswith("--set ") else os.path.dirname(location.file)
    return os.path.abspath(os.path.join(folder, uri))
