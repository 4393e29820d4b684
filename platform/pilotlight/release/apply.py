"""Releases from documents: read the live state, plan all services, apply each, again after a conflict.

A target stores the document as planned: --set applied, variables substituted, paths absolute. So `rollback`, `canary`
and `deploy NAME` can plan it again on any machine.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.errors import Conflict, NotFound, OnOtherTarget, UsageError
from pilotlight.k8s.names import ANNOTATION_OVERRIDES, ANNOTATION_PLANNED_WITH
from pilotlight.targets.target import Key, Release, service_argument

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Manifest
    from pilotlight.plan.types import Capabilities, Current, Plan
    from pilotlight.release.plan_and_render import Documents
    from pilotlight.spec.problems import Problem
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import ServiceStatus, Target

Overrides = Mapping[str, Mapping[str, Any]]  # by workload: manual bounds and traffic splits
# Non-default capabilities of the plan, so that the same document gives the same revision again.
PLANNED_WITH: Final = ANNOTATION_PLANNED_WITH
_URI: Final = re.compile(r".*\.(storageUri|model\.uri|lora\.adapters\[\d+\]\.uri)")  # also of an LLMInferenceService
MAX_ATTEMPTS: Final = 5
BACKOFF_S: Final = 0.2
RELATIVE: Final = ("./", "../")  # to the folder of the document


def check_paths_reachable(services: "Sequence[Service]", target: "Target | None") -> None:
    """Raise UsageError for relative paths unless the target is this machine's: pods cannot read its files."""
    if target is not None and not target.embedded:
        for error in unreachable_paths(services):
            raise error


def missing_models(services: "Sequence[Service]", *, here: bool) -> "Iterator[Problem]":
    """Yield an error for each path of this machine at which there is no model.

    A relative path is one of this machine. An absolute one is so if the service runs `here`; else it may be one of the
    image, so it gets a warning.
    """
    from pilotlight.k8s.model_pins import is_local, local_path
    from pilotlight.spec.component_fields import resolve_uri
    from pilotlight.spec.problems import Problem

    for service in services:
        for path, value in model_uris(service):
            location, relative = service.location(path), value.startswith(RELATIVE)
            file = local_path(resolve_uri(value, location))
            if not is_local(value) or os.path.exists(file):
                continue
            if relative or here:
                yield Problem("PL341", location, path, f"{value}: there is no {file}")
            else:
                message = f"{value}: there is no {file} on this machine; a pod needs it in its image"
                yield Problem("PL341", location, path, message, "warning")


def unreachable_paths(services: "Sequence[Service]") -> "Iterator[UsageError]":
    """Yield an error for each relative path."""
    for service in services:
        for path, value in model_uris(service):
            if value.startswith(RELATIVE):
                message = f"{service.location(path)}: {path}: {value} is on this machine, where pods cannot read it"
                yield UsageError(message, f"upload it to a store: --set {path}=s3://BUCKET/PATH, or pvc://CLAIM/PATH")


def model_uris(service: "Service") -> Iterator[tuple[str, str]]:
    """Yield path and value of the model URIs of a document."""
    return _uris(service.document.get("spec") or {}, "spec")


def _uris(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _uris(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _uris(item, f"{path}[{index}]")
    elif isinstance(value, str) and _URI.fullmatch(path):
        yield path, value


def _resolve_paths(value: Any, path: str, service: "Service") -> Any:
    from pilotlight.spec.component_fields import resolve_uri

    if isinstance(value, Mapping):
        return {key: _resolve_paths(item, f"{path}.{key}", service) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_paths(item, f"{path}[{index}]", service) for index, item in enumerate(value)]
    is_uri = isinstance(value, str) and _URI.fullmatch(path)
    return resolve_uri(value, service.location(path)) if is_uri else value


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Documents and capabilities. `reset` clears all manual overrides, `reset_traffic` the traffic splits only."""

    documents: "Documents"
    capabilities: "Capabilities"
    reset: bool = False
    reset_traffic: bool = False
    note: str = "deploy"
    by: str = ""


@dataclass(frozen=True, slots=True)
class PreparedRelease:
    """One service, planned against the live state at generation `release.expected`."""

    plan: "Plan"
    release: Release
    manifests: "tuple[Manifest, ...]"
    live_manifests: "tuple[Manifest, ...]"
    overrides: Overrides

    @property
    def key(self) -> Key:
        return self.release.namespace, self.release.name


def prepare(request: ReleaseRequest, target: "Target | None") -> "tuple[list[PreparedRelease], Sequence[Problem]]":
    """Plan all services; returns warnings too. Raises InvalidDocument. Without a target nothing is live."""
    from pilotlight.release.current_state import current_of
    from pilotlight.release.plan_and_render import plan_documents
    from pilotlight.release.shared_names import shared_names

    check_paths_reachable(request.documents.services, target)
    keys = [(service.namespace, service.name) for service in request.documents.services]
    generations = {key: generation(target, key) for key in keys}
    live = {key: tuple(target.live(key)) if target and generations[key] else () for key in keys}
    running = {key: current_of(live[key]).get(key) for key in keys}
    overrides = {key: _remaining_overrides(one, request) for key, one in running.items()}
    current = {
        key: replace(live_state, overrides=_traffic_overrides(replace(live_state, overrides=overrides[key])))
        for key, live_state in running.items()
        if live_state is not None
    }
    planned = plan_documents(request.documents, request.capabilities, current)
    prepared = [
        _prepare_release(service, plan, request, live[key], generations[key], overrides[key])
        for key, service, plan in zip(keys, request.documents.services, planned.plans, strict=True)
    ]
    warnings = [*planned.warnings, *(_missing_steps(request.documents.services, target) if target else ())]
    if target is not None and target.embedded:
        names = {one.key: one.manifests for one in prepared}
        warnings += shared_names(names, request.documents.services, target)
    return prepared, warnings


def _missing_steps(services: "Sequence[Service]", target: "Target") -> "Iterator[Problem]":
    """Yield a warning for each service that a step of an InferenceGraph leads to and that is not deployed."""
    from pilotlight.spec.inference_graph.document import steps_of
    from pilotlight.spec.problems import Problem

    seen = {(service.namespace, service.name) for service in services}
    routers = [(service, service.components["router"]) for service in services if "router" in service.components]
    for service, router in routers:
        for path, step in steps_of(router.graph.get("nodes", {})):
            key = (service.namespace, step.get("serviceName", ""))
            if key[1] and key not in seen and not _exists(target, key):
                message = f"is {key[1]}, which is not deployed in {key[0]}: the step fails until then"
                path = f"{path}.serviceName"
                yield Problem("PL388", service.location(path), path, message, "warning")
            seen.add(key)


def _exists(target: "Target", key: Key) -> bool:
    try:
        target.status(key)
    except NotFound as error:
        return isinstance(error, OnOtherTarget)
    return True


class Apply(Protocol):
    """Applies releases to a target: `apply`, or a tool that owns them afterwards."""

    def __call__(
        self, request: ReleaseRequest, prepared: Sequence[PreparedRelease], target: "Target", *, dry_run: bool = False
    ) -> "list[tuple[PreparedRelease, ServiceStatus]]": ...


def apply(
    request: ReleaseRequest, prepared: Sequence[PreparedRelease], target: "Target", *, dry_run: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> "list[tuple[PreparedRelease, ServiceStatus]]":  # fmt: skip
    """Apply each release; after a Conflict with another deploy it is planned again from the new state."""
    return [_apply_with_retry(request, one, target, dry_run, sleep) for one in prepared]


def _apply_with_retry(
    request: ReleaseRequest, one: PreparedRelease, target: "Target", dry_run: bool, sleep: Callable[[float], None]
) -> "tuple[PreparedRelease, ServiceStatus]":
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return one, target.apply(one.release, reset=request.reset, dry_run=dry_run)
        except Conflict:
            if attempt == MAX_ATTEMPTS:
                raise
            sleep(BACKOFF_S * attempt)
            alone = [s for s in request.documents.services if (s.namespace, s.name) == one.key]
            (one,), _ = prepare(replace(request, documents=replace(request.documents, services=tuple(alone))), target)
    raise AssertionError("the last attempt returns or raises")


def generation(target: "Target | None", key: Key, *, deploys: bool = True) -> int:
    """Return the service's generation; 0: it does not exist. Raise OnOtherTarget, or Conflict for a deploy."""
    try:
        return target.status(key).generation if target else 0
    except OnOtherTarget as error:
        if not deploys:
            raise
        hint = f"platformctl delete {service_argument(key)} {error.hint.removeprefix('add ')}"
        raise Conflict(f"{error}, delete it there first", hint) from None
    except NotFound:
        return 0


def read_release(release: Release, sets: Sequence[str] = ()) -> "tuple[Documents, Capabilities]":
    """Read a stored release as it was planned; `sets` change its document. Its author may not read files of this
    machine."""
    from msgspec import json

    from pilotlight.plan.types import Capabilities
    from pilotlight.release.plan_and_render import Sources, read
    from pilotlight.spec.problems import InvalidDocument, Problems
    from pilotlight.spec.yaml_nodes import parse

    problems, texts = Problems(), (release.document, *release.catalogue)
    nodes = [node for text in texts for node in parse(text, "<release>", problems)]
    if problems.errors:
        raise InvalidDocument(problems.items)
    documents = read(Sources((), sets=sets, namespace=release.namespace, objects=nodes))
    written = next((s.annotations[PLANNED_WITH] for s in documents.services if PLANNED_WITH in s.annotations), "{}")
    capabilities = json.decode(written, type=Capabilities)
    # The name of this machine's target is not recorded, but its image is: which runtimes it runs depends on it.
    here = capabilities.image == LOCAL_CAPABILITIES["image"] and not capabilities.target
    return documents, replace(capabilities, target=LOCAL_CAPABILITIES["target"]) if here else capabilities


def _remaining_overrides(current: "Current | None", request: ReleaseRequest) -> Overrides:
    """Return the manual overrides that the request does not reset."""
    if current is None or request.reset:
        return {}
    if not request.reset_traffic:
        return current.overrides
    return {
        workload: {name: value for name, value in written.items() if name != "traffic"}
        for workload, written in current.overrides.items()
    }


def _traffic_overrides(current: "Current") -> dict[str, Mapping[str, Any]]:
    """Return the overrides a plan must know: splits between two workloads, which are rendered objects.

    All other overrides stay out of the manifests; the target applies them on top and can remove them again.
    """
    return {
        workload: {"traffic": written["traffic"]}
        for workload, written in current.overrides.items()
        if written.get("traffic") and workload not in current.traffic
    }


def _prepare_release(
    service: "Service", plan: "Plan", request: ReleaseRequest, live: "tuple[Manifest, ...]", expected: int,
    overrides: Overrides,
) -> PreparedRelease:  # fmt: skip
    from pilotlight.render import render

    others = (one for one in request.documents.companions if one.kind != "Namespace")
    companions = [one for one in others if one.namespace == plan.namespace]
    catalogue = [node.plain() for node in request.documents.documents_with(service)]
    manifests = (*companions, *render(plan))
    release = Release(
        plan.namespace, plan.name, document_text(service, request.capabilities),
        tuple(manifest.document for manifest in manifests),
        tuple(_texts([*catalogue, *(one.document for one in companions)])),
        expected, request.note, by=request.by,
    )  # fmt: skip
    return PreparedRelease(plan, release, manifests, tuple(map(_without_overrides, live)), overrides)


def _without_overrides(manifest: "Manifest") -> "Manifest":
    """Drop the annotation that reports manual overrides: it is never applied."""
    from pilotlight.k8s.manifest import Manifest

    metadata = dict(manifest.document["metadata"])
    written = metadata.pop("annotations", None) or {}
    annotations = {key: value for key, value in written.items() if key != ANNOTATION_OVERRIDES}
    remaining = {**metadata, "annotations": annotations} if annotations else metadata
    return Manifest({**manifest.document, "metadata": remaining})


def document_text(service: "Service", capabilities: "Capabilities") -> str:
    """Return the document as planned, self-contained."""
    spec = _resolve_paths(service.document.get("spec", {}), "spec", service)  # the text leaves its folder
    written = {**service.document, "spec": spec}
    metadata = {**written.get("metadata", {}), "namespace": service.namespace}
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(PLANNED_WITH, None)
    recorded = _non_default_capabilities(capabilities)
    if recorded:
        annotations[PLANNED_WITH] = recorded
    if annotations:
        metadata["annotations"] = annotations
    (text,) = _texts([{**written, "metadata": metadata}])
    return text


def _texts(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    from pilotlight.k8s.manifest import Manifest, to_yaml

    return [to_yaml([Manifest(document)]).removeprefix("---\n") for document in documents]


def _non_default_capabilities(capabilities: "Capabilities") -> str:
    """Return the capabilities that differ from the defaults as JSON; empty: none."""
    from msgspec import json, to_builtins

    from pilotlight.plan.types import Capabilities

    defaults = Capabilities()
    values = {field.name: getattr(capabilities, field.name) for field in fields(Capabilities)}
    # Numbers of GPUs and installed engines vary: recording them would change the document. So would the name of a
    # target whose pod templates do not carry it.
    skipped = {"gpus", "gpus_total", "engines"}
    skipped |= {"target"} if capabilities.target in ("local", "kubernetes") else set()
    changed = {name: value for name, value in values.items() if value != getattr(defaults, name)}
    changed = {name: value for name, value in changed.items() if name not in skipped}
    return json.encode(to_builtins(changed, order="sorted"), order="sorted").decode() if changed else ""
