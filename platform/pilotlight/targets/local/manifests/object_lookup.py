"""Manifests of one service, looked up by kind and name, and the workloads that receive its requests. Pure."""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.k8s import names as k8s_names
from pilotlight.k8s.manifest import canonical_json
from pilotlight.k8s.names import ENTRY_ROLES
from pilotlight.targets.local.manifests.service_spec_types import WorkloadSpec

Json = Any
Object = Mapping[str, Json]
WORKLOADS: Final = ("Deployment", "StatefulSet")
MULTI_NODE_KINDS: Final = ("LeaderWorkerSet", "RayCluster", "RayService")
AUTOSCALERS: Final = ("ScaledObject", "HorizontalPodAutoscaler")
# Fields of `env` and `envFrom` that refer to an object, with its kind.
SOURCES: Final = {
    "secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap", "secretRef": "Secret", "configMapRef": "ConfigMap",
}  # fmt: skip
Entry = tuple[tuple[str, int], ...]


def at(document: Json, *path: str) -> Json:
    """Return the value at a path; None if absent."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def mapping_at(document: Json, *path: str) -> Mapping[str, Json]:
    value = at(document, *path)
    return value if isinstance(value, Mapping) else {}


def name_of(document: Object) -> str:
    return str(at(document, "metadata", "name") or "")


def is_knative(document: Object) -> bool:
    return document.get("kind") == "Service" and str(document.get("apiVersion")).startswith("serving.knative.dev/")


def is_workload(document: Object) -> bool:
    return is_knative(document) or document.get("kind") in WORKLOADS


def template_of(workload: Object) -> Mapping[str, Json]:
    return mapping_at(workload, "spec", "template")


def revision_of(workload: Object) -> str:
    """Return the revision's name: of Knative's template, of a label, else a hash of the template."""
    template = template_of(workload)
    key = ("metadata", "name") if is_knative(workload) else ("metadata", "labels", k8s_names.LABEL_REVISION)
    return str(at(template, *key) or "") or k8s_names.revision(name_of(workload), canonical_json(template))


def role_of(workload: Object) -> str:
    labels = mapping_at(template_of(workload), "metadata", "labels")
    own = mapping_at(workload, "metadata", "labels")
    return str(labels.get("component") or own.get("app.kubernetes.io/component") or "predictor")


@dataclass(frozen=True, slots=True)
class Objects:
    """All manifests of a service, including companions such as a Secret."""

    documents: Sequence[Object]

    def of_kind(self, *kinds: str) -> Iterator[Object]:
        return (each for each in self.documents if each.get("kind") in kinds)

    def workloads(self) -> list[Object]:
        return [each for each in self.documents if is_workload(each)]

    def named(self, kind: str, name: str) -> Object | None:
        return next((each for each in self.of_kind(kind) if name_of(each) == name and not is_knative(each)), None)

    def autoscaler(self, workload: Object) -> Object | None:
        def scales(autoscaler: Object) -> bool:
            target = mapping_at(autoscaler, "spec", "scaleTargetRef")
            same_kind = target.get("kind", "Deployment") == workload.get("kind")
            return same_kind and target.get("name") == name_of(workload)

        return next(filter(scales, self.of_kind(*AUTOSCALERS)), None)

    def of_revision(self, workload: Object) -> list[Object]:
        """Return the objects from which this revision can be interpreted after later deploys."""
        values = (self.named(kind, name) for kind, name in sorted(references(workload)))
        companions = (self.autoscaler(workload), self.named("Service", name_of(workload)), *values)
        return [workload, *(each for each in companions if each is not None)]

    def data(self, kind: str, name: str) -> Mapping[str, str] | None:
        """Return the entries of a Secret or ConfigMap as text; None: not among the manifests."""
        document = self.named(kind, name)
        if document is None:
            return None
        plain = {key: str(value) for key, value in mapping_at(document, "data").items()}
        if kind == "Secret":
            for key, value in plain.items():
                with suppress(binascii.Error, UnicodeDecodeError):
                    plain[key] = base64.b64decode(value, validate=True).decode()
        return {**plain, **{key: str(value) for key, value in mapping_at(document, "stringData").items()}}


def references(workload: Object) -> set[tuple[str, str]]:
    """Return kind and name of every Secret and ConfigMap that the containers' variables refer to."""
    names: set[tuple[str, str]] = set()
    pod = mapping_at(template_of(workload), "spec")
    for container in [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]:
        sources: Iterable[Json] = [entry.get("valueFrom") for entry in container.get("env") or ()]
        for source in [*sources, *(container.get("envFrom") or ())]:
            for key, kind in SOURCES.items():
                if name := at(source, key, "name"):
                    names.add((kind, str(name)))
    return names


def entry_of(
    service: str, objects: Objects, workloads: Sequence[WorkloadSpec], overrides: Mapping[str, Mapping[str, Json]]
) -> Entry:
    """Return the entry by the HTTPRoute, else by the Service with the service's name, else by role."""

    def rank(workload: WorkloadSpec) -> tuple[int, int]:
        # Roles not listed never receive requests from outside.
        role = ENTRY_ROLES.index(workload.role) if workload.role in ENTRY_ROLES else len(ENTRY_ROLES)
        return role, len(workload.name)  # a canary has a longer name than its stable workload

    entry = _routed(objects, {workload.name for workload in workloads})
    if not entry:
        address = objects.named("Service", k8s_names.entry_service(service))
        selected = at(address, "spec", "selector", k8s_names.LABEL_WORKLOAD)
        if selected or workloads:
            entry = ((str(selected or min(workloads, key=rank).name), 100),)
    return _apply_overrides(entry, workloads, overrides)


def _routed(objects: Objects, known: set[str]) -> Entry:
    """Return the backends of HTTPRoutes that are workloads; one to a cluster's ingress gateway names none."""
    backends = [
        (str(backend.get("name")), int(backend.get("weight", 1)))
        for route in objects.of_kind("HTTPRoute")
        for rule in at(route, "spec", "rules") or ()
        for backend in rule.get("backendRefs") or ()
    ]
    return tuple(backend for backend in backends if backend[0] in known)


def _apply_overrides(
    entry: Entry, workloads: Sequence[WorkloadSpec], overrides: Mapping[str, Mapping[str, Json]]
) -> Entry:
    """Apply shares set by `traffic` between two Deployments; `latest` is the canary, which has the longer name."""
    shares = (overrides.get(entry[0][0]) or {}).get("traffic") if len(entry) > 1 else None
    if not shares:
        return entry
    workload_of = {workload.revision.name: workload.name for workload in workloads if workload.name in dict(entry)}
    last = max((name for name, _ in entry), key=len)
    weights = {workload_of.get(str(share["revision"]), last): int(share["percent"]) for share in shares}
    return tuple((name, weights.get(name, 0)) for name, _ in entry)
