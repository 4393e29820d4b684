"""What the components of both API groups share: metadata, pod fields, scaling, and how read values become a Component.

`ome` and `kserve` add what is their own. A component *is* a Kubernetes pod spec with more fields, so its type is too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pilotlight.spec import core_fields
from pilotlight.spec.model import Component, Role
from pilotlight.spec.problems import Place, Problems
from pilotlight.spec.types import Anything, Field, MapOf, Named, OneOf, Record, Text, Whole

Json = Any

_LABEL_VALUE: Final = Text(
    r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?", "letters, digits, '-', '_' and '.', at most 63 of them", 63
)
_QUALIFIED: Final = r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED_MUST: Final = "a name such as app or example.com/app"
LABELS: Final = MapOf(_LABEL_VALUE, _QUALIFIED, _QUALIFIED_MUST)
ANNOTATIONS: Final = MapOf(Text(), _QUALIFIED, _QUALIFIED_MUST)
NAME: Final = Text(r"[a-z](?:[-a-z0-9]*[a-z0-9])?", "a lower-case letter, then lower-case letters, digits and '-'", 63)
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The gateway's own paths: a service of that name could not be reached by its short form.
RESERVED_NAMES: Final = frozenset({"v1", "v2", "api", "metrics", "console", "healthz"})

_WRITTEN_BY_THE_CLUSTER: Final = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generation",
    "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip
METADATA: Final = Record(
    "metadata",
    {
        "name": Field(NAME, "Name of the service; its URL and every object are named after it.", required=True),
        "namespace": Field(NAME, "Namespace; --namespace decides when it is left out."),
        "labels": Field(LABELS, "Labels that every object of the service gets."),
        "annotations": Field(ANNOTATIONS, "Annotations; deployment mode and autoscaler class among them."),
        **{name: Field(Anything(), ignored=True) for name in _WRITTEN_BY_THE_CLUSTER},
    },
    hints={"generateName": "give it a name: its URL and its revisions are named after it"},
)

SCALE_METRIC: Final = OneOf(("cpu", "memory", "concurrency", "rps"))
EXTENSION: Final[Mapping[str, Field]] = {
    "minReplicas": Field(Whole(0), "Least number of replicas; 0 lets the component scale to zero."),
    "maxReplicas": Field(Whole(0), "Greatest number of replicas; 0 or absent: the default."),
    "scaleTarget": Field(Whole(1), "Value of scaleMetric to hold: percent for cpu and memory, else requests."),
    "scaleMetric": Field(SCALE_METRIC, "What is scaled by."),
    "containerConcurrency": Field(Whole(0), "How many requests a replica takes at once; 0: no limit."),
    "canaryTrafficPercent": Field(Whole(0, 100), "Share of the requests that go to the newest revision."),
    "labels": Field(LABELS, "Labels of the component's pods."),
    "annotations": Field(ANNOTATIONS, "Annotations of the component's pods."),
    "deploymentStrategy": Field(core_fields.core("DeploymentStrategy"), "How a Deployment replaces pods (raw mode)."),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The document at hand: where its paths are written and where its problems go."""

    problems: Problems
    places: Mapping[str, Place]

    def place(self, path: str) -> Place:
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get(path, Place())

    def error(self, code: str, path: str, message: str) -> None:
        self.problems.error(code, self.place(path), path, message)

    def warn(self, code: str, path: str, message: str) -> None:
        self.problems.warn(code, self.place(path), path, message)


@cache
def pod_fields() -> dict[str, Field]:
    """A pod spec written inline: its containers may all come from the runtime."""
    return core_fields.fields("PodSpec", optional=("containers",), without=("ephemeralContainers",))


@cache
def container_record(name: str) -> Record:
    """A container whose name may be left out, because there is only one it can be."""
    return Record(name, core_fields.fields("Container", optional=("name",)))


def container(name: str) -> Named:
    return Named(name, container_record)


def document(group: str, spec: Named) -> Record:
    """The whole InferenceService of one API group."""
    return Record(
        "InferenceService",
        {
            "apiVersion": Field(OneOf((group,)), "API group and version.", required=True),
            "kind": Field(OneOf(("InferenceService",)), "Kind of the document.", required=True),
            "metadata": Field(METADATA, "Name, namespace, labels and annotations.", required=True),
            "spec": Field(spec, "What to serve and how.", required=True),
            "status": Field(Anything(), "Written by the cluster; ignored.", ignored=True),
        },
        "One model service: all that a user writes.",
    )


def misplaced(inner: Record, advice: str) -> dict[str, str]:
    """Hints for fields that were written one level too high."""
    return dict.fromkeys(inner.fields, advice)


def pod_of(value: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value[name] for name in value if name in pod_fields()}


def component(role: Role, value: Mapping[str, Json], **own: Any) -> Component:
    """A component of what both groups share, and of what the caller adds. `maxReplicas: 0` says nothing, as in both."""
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


def check_component(read: Component, path: str, reading: Reading) -> None:
    """What only two fields together can get wrong."""
    least, most = read.min_replicas, read.max_replicas
    if least is not None and most is not None and least > most:
        reading.error("PL104", f"{path}.maxReplicas", f"is {most}, must be at least minReplicas, which is {least}")
    if read.min_available is not None and read.max_unavailable is not None:
        reading.error("PL111", f"{path}.maxUnavailable", "excludes minAvailable; keep one of them")
    for kind in ("containers", "initContainers", "volumes"):
        names = [each.get("name") for each in read.pod.get(kind, ())]
        for index, name in enumerate(names):
            if name in names[:index]:
                reading.error("PL104", f"{path}.{kind}[{index}].name", f'is "{name}", which another one has already')


def check_name(metadata: Mapping[str, Json], reading: Reading) -> None:
    name = metadata.get("name", "")
    if name in RESERVED_NAMES:
        reading.error("PL104", "metadata.name", f'is "{name}", which the gateway serves itself; choose another name')


def annotations_of(metadata: Mapping[str, Json]) -> dict[str, str]:
    return {key: value for key, value in metadata.get("annotations", {}).items() if key != LAST_APPLIED}
