"""The objects of one service, found by kind and name: what interpret.py and pod.py look things up in. Pure."""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pilotlight import names
from pilotlight.manifests import canonical

Json = Any
Object = Mapping[str, Json]
WORKLOADS: Final = ("Deployment", "StatefulSet")
SEVERAL_NODES: Final = ("LeaderWorkerSet", "RayCluster", "RayService")
AUTOSCALERS: Final = ("ScaledObject", "HorizontalPodAutoscaler")


def at(document: Json, *path: str) -> Json:
    """What stands at this path; None where nothing does."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def mapping_at(document: Json, *path: str) -> Mapping[str, Json]:
    found = at(document, *path)
    return found if isinstance(found, Mapping) else {}


def name_of(document: Object) -> str:
    return str(at(document, "metadata", "name") or "")


def is_knative(document: Object) -> bool:
    return document.get("kind") == "Service" and str(document.get("apiVersion")).startswith("serving.knative.dev/")


def is_workload(document: Object) -> bool:
    return is_knative(document) or document.get("kind") in WORKLOADS


def template_of(workload: Object) -> Mapping[str, Json]:
    return mapping_at(workload, "spec", "template")


def revision_of(workload: Object) -> str:
    """Knative's template is named; others carry a label. Without either the content decides, as Knative does itself."""
    template = template_of(workload)
    key = ("metadata", "name") if is_knative(workload) else ("metadata", "labels", names.LABEL_REVISION)
    return str(at(template, *key) or "") or names.revision(name_of(workload), canonical(template))


def role_of(workload: Object) -> str:
    labels = mapping_at(template_of(workload), "metadata", "labels")
    own = mapping_at(workload, "metadata", "labels")
    return str(labels.get("component") or own.get("app.kubernetes.io/component") or "predictor")


@dataclass(frozen=True, slots=True)
class Objects:
    """All manifests of a service, companions such as a Secret among them."""

    documents: Sequence[Object]

    def of_kind(self, *kinds: str) -> Iterator[Object]:
        return (found for found in self.documents if found.get("kind") in kinds)

    def workloads(self) -> list[Object]:
        return [found for found in self.documents if is_workload(found)]

    def named(self, kind: str, name: str) -> Object | None:
        return next((found for found in self.of_kind(kind) if name_of(found) == name and not is_knative(found)), None)

    def autoscaler(self, workload: Object) -> Object | None:
        def scales(found: Object) -> bool:
            target = mapping_at(found, "spec", "scaleTargetRef")
            same_kind = target.get("kind", "Deployment") == workload.get("kind")
            return same_kind and target.get("name") == name_of(workload)

        return next(filter(scales, self.of_kind(*AUTOSCALERS)), None)

    def of_revision(self, workload: Object) -> list[Object]:
        """What this revision can be interpreted from once a later deploy has replaced the rest."""
        values = (self.named(kind, name) for kind, name in sorted(references(workload)))
        beside = (self.autoscaler(workload), self.named("Service", name_of(workload)), *values)
        return [workload, *(found for found in beside if found is not None)]

    def data(self, kind: str, name: str) -> Mapping[str, str] | None:
        """The entries of a Secret or ConfigMap as text; None: it is not among the manifests."""
        found = self.named(kind, name)
        if found is None:
            return None
        plain = {key: str(value) for key, value in mapping_at(found, "data").items()}
        if kind == "Secret":
            plain = {key: _decoded(value) for key, value in plain.items()}
        return {**plain, **{key: str(value) for key, value in mapping_at(found, "stringData").items()}}


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return value


def references(workload: Object) -> set[tuple[str, str]]:
    """Kind and name of every Secret and ConfigMap that the containers' variables come from."""
    found: set[tuple[str, str]] = set()
    for container in at(template_of(workload), "spec", "containers") or ():
        sources: Iterable[Json] = [entry.get("valueFrom") for entry in container.get("env") or ()]
        for source in [*sources, *(container.get("envFrom") or ())]:
            for key, kind in SOURCES.items():
                if name := at(source, key, "name"):
                    found.add((kind, str(name)))
    return found


# How a variable names where its value, or a whole set of variables, comes from.
SOURCES: Final = {
    "secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap", "secretRef": "Secret", "configMapRef": "ConfigMap",
}  # fmt: skip
