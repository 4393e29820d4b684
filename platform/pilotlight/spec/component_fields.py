"""What the readers of documents share: conversion and checks of the fields that components of all kinds have.

A component *is* a Kubernetes pod spec with more fields, and so is its type.
"""

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.contract import RESERVED_NAMES
from pilotlight.spec.field_tables import COMPONENTS
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.service import Component, Group, Role, Service

Json = Any
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


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


def pod_of(value: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value[name] for name in value if name in COMPONENTS.record("Pod").fields}


def split_containers(pod: Mapping[str, Json], name: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """Separate the main container from the rest of a pod with its sidecars: the one of this name, else the first."""
    containers = list(pod.get("containers") or ())
    main = next((each for each in containers if each.get("name") == name), containers[0] if containers else {})
    sidecars = [each for each in containers if each is not main]
    rest = {key: value for key, value in pod.items() if key != "containers"}
    return rest | ({"containers": sidecars} if sidecars else {}), dict(main)


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


def service(
    group: Group, value: Mapping[str, Json], namespace: str, components: Mapping[Role, Component],
    context: DocumentContext, **own: Any,
) -> Service:  # fmt: skip
    """Build a service from the metadata of its document and `own`; `namespace` is the default."""
    metadata = value.get("metadata", {})
    shared: dict[str, Any] = {
        "namespace": metadata.get("namespace", namespace),
        "labels": metadata.get("labels", {}),
        "annotations": annotations_of(metadata),
    }
    name, where = metadata.get("name", ""), context.locations
    return Service(group, name, components=components, locations=where, document=value, **{**shared, **own})


def alias(locations: dict[str, SourceLocation], source: str, target: str) -> None:
    """Add the locations of the paths below `source` under `target` too, which later stages use."""
    for path in [each for each in locations if each == source or each.startswith((f"{source}.", f"{source}["))]:
        locations.setdefault(target + path[len(source) :], locations[path])


def annotations_of(metadata: Mapping[str, Json]) -> dict[str, str]:
    return {key: value for key, value in metadata.get("annotations", {}).items() if key != LAST_APPLIED}


def resolve_uri(uri: str, location: SourceLocation) -> str:
    """Resolve `./model.onnx` against the document's folder, or the working directory for `--set`; keep other URIs."""
    if not uri.startswith(("./", "../")):
        return uri
    folder = "" if location.file.startswith("--set ") else os.path.dirname(location.file)
    return os.path.abspath(os.path.join(folder, uri))
