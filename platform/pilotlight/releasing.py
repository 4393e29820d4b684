"""From documents to releases of a target: what runs is read, all services are planned, then each one is applied.

What a target keeps of a release is the document as it was planned: changes by --set made, variables filled in, paths
absolute. So it can be planned again from anywhere, by `rollback`, `canary` or `deploy NAME`.
"""

import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pilotlight import beside
from pilotlight.errors import Conflict, NotFound
from pilotlight.names import ANNOTATION_OVERRIDES, ANNOTATION_PLANNED_WITH
from pilotlight.targets.target import Key, Release

if TYPE_CHECKING:
    from pilotlight.deploy import Documents
    from pilotlight.manifests import Manifest
    from pilotlight.plan.model import Capabilities, Current, Plan
    from pilotlight.spec.model import Service
    from pilotlight.spec.problems import Problem
    from pilotlight.targets.target import ServiceStatus, Target

# How the plan was made where that is not as usual, so that the same document gives the same revision again.
PLANNED_WITH: Final = ANNOTATION_PLANNED_WITH
TRIES: Final = 5
PAUSE_S: Final = 0.2
Overrides = Mapping[str, Mapping[str, Any]]  # by workload: bounds and traffic that were set by hand


@dataclass(frozen=True, slots=True)
class Wanted:
    """Documents with what they are planned for. `reset` forgets what was set by hand, `retake` the shares alone."""

    documents: "Documents"
    capabilities: "Capabilities"
    reset: bool = False
    retake: bool = False
    note: str = "deploy"


@dataclass(frozen=True, slots=True)
class Prepared:
    """One service, planned against what ran when `release.expected` was its generation."""

    plan: "Plan"
    release: Release
    manifests: "tuple[Manifest, ...]"
    before: "tuple[Manifest, ...]"
    overrides: Overrides

    @property
    def key(self) -> Key:
        return self.release.namespace, self.release.name


def prepare(wanted: Wanted, target: "Target | None") -> "tuple[list[Prepared], Sequence[Problem]]":
    """All of them, or InvalidDocument; and the warnings. Without a target nothing runs."""
    from pilotlight.deploy import plan_documents
    from pilotlight.running import current_of

    beside.check(wanted.documents.services, target)
    keys = [(service.namespace, service.name) for service in wanted.documents.services]
    generations = {key: generation(target, key) for key in keys}
    live = {key: tuple(target.live(key)) if target and generations[key] else () for key in keys}
    found = {key: current_of(live[key]).get(key) for key in keys}
    kept = {key: _kept(one, wanted) for key, one in found.items()}
    current = {key: _current(found[key], kept[key]) for key in keys}
    planned = plan_documents(wanted.documents, wanted.capabilities, current)
    made = [
        _prepared(service, plan, wanted, live[key], generations[key], kept[key])
        for key, service, plan in zip(keys, wanted.documents.services, planned.plans, strict=True)
    ]
    return made, planned.warnings


class Apply(Protocol):
    """How releases reach a target: by itself, or by a tool that owns them then."""

    def __call__(
        self, wanted: Wanted, prepared: Sequence[Prepared], target: "Target", *, dry_run: bool = False
    ) -> "list[tuple[Prepared, ServiceStatus]]": ...


def apply(
    wanted: Wanted, prepared: Sequence[Prepared], target: "Target", *, dry_run: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> "list[tuple[Prepared, ServiceStatus]]":  # fmt: skip
    """Each in turn. Where another deploy was quicker, that one is planned again from what it left."""
    return [_applied(wanted, one, target, dry_run, sleep) for one in prepared]


def _applied(
    wanted: Wanted, one: Prepared, target: "Target", dry_run: bool, sleep: Callable[[float], None]
) -> "tuple[Prepared, ServiceStatus]":
    for attempt in range(1, TRIES + 1):
        try:
            return one, target.apply(one.release, reset=wanted.reset, dry_run=dry_run)
        except Conflict:
            if attempt == TRIES:
                raise
            sleep(PAUSE_S * attempt)
            alone = [s for s in wanted.documents.services if (s.namespace, s.name) == one.key]
            (one,), _ = prepare(replace(wanted, documents=replace(wanted.documents, services=tuple(alone))), target)
    raise AssertionError("the last attempt returns or raises")


def generation(target: "Target | None", key: Key) -> int:
    """0: it is not there."""
    try:
        return target.status(key).generation if target else 0
    except NotFound:
        return 0


def stored(release: Release, sets: Sequence[str] = ()) -> "tuple[Documents, Capabilities]":
    """A release read again as it was planned; `sets` change its document."""
    from pilotlight.deploy import Sources, read

    text = "\n---\n".join((release.document, *release.catalogue))
    documents = read(Sources(("-",), sets=sets, stdin=io.StringIO(text), namespace=release.namespace))
    return documents, _capabilities(documents.services)


def _kept(found: "Current | None", wanted: Wanted) -> Overrides:
    """What was set by hand and stays so."""
    if found is None or wanted.reset:
        return {}
    if not wanted.retake:
        return found.overrides
    return {
        workload: {name: value for name, value in written.items() if name != "traffic"}
        for workload, written in found.overrides.items()
    }


def _current(found: "Current | None", kept: Overrides) -> "Current":
    from pilotlight.plan.model import Current

    if found is None:
        return Current()
    return replace(found, overrides=_for_plan(replace(found, overrides=kept)))


def _for_plan(current: "Current") -> dict[str, Mapping[str, Any]]:
    """What was set by hand stays out of the manifests: the target lays it over them, and takes it off again.

    Only the shares between two workloads are made of objects, so that a plan must know them.
    """
    return {
        workload: {"traffic": written["traffic"]}
        for workload, written in current.overrides.items()
        if written.get("traffic") and workload not in current.traffic
    }


def _prepared(
    service: "Service", plan: "Plan", wanted: Wanted, live: "tuple[Manifest, ...]", expected: int,
    overrides: Overrides,
) -> Prepared:  # fmt: skip
    from pilotlight.render import render

    companions = [
        one for one in wanted.documents.companions if one.kind != "Namespace" and one.namespace == plan.namespace
    ]
    catalogue = [node.plain() for node in wanted.documents.beside(service)]
    manifests = (*companions, *render(plan))
    release = Release(
        plan.namespace, plan.name, document_text(service, wanted.capabilities),
        tuple(manifest.document for manifest in manifests),
        tuple(_texts([*catalogue, *(one.document for one in companions)])),
        expected, wanted.note,
    )  # fmt: skip
    return Prepared(plan, release, manifests, tuple(map(_as_applied, live)), overrides)


def _as_applied(manifest: "Manifest") -> "Manifest":
    """Without what was set by hand, which the target shows as an annotation and nobody applies."""
    from pilotlight.manifests import Manifest

    metadata = dict(manifest.document["metadata"])
    written = metadata.pop("annotations", None) or {}
    annotations = {key: value for key, value in written.items() if key != ANNOTATION_OVERRIDES}
    kept = {**metadata, "annotations": annotations} if annotations else metadata
    return Manifest({**manifest.document, "metadata": kept})


def document_text(service: "Service", capabilities: "Capabilities") -> str:
    """The document as it was planned, complete in itself."""
    written = {**service.document, "spec": beside.located(service)}
    metadata = {**written.get("metadata", {}), "namespace": service.namespace}
    annotations = {
        key: value for key, value in (metadata.pop("annotations", None) or {}).items() if key != PLANNED_WITH
    }
    unusual = _unusual(capabilities)
    if unusual:
        annotations[PLANNED_WITH] = unusual
    if annotations:
        metadata["annotations"] = annotations
    (text,) = _texts([{**written, "metadata": metadata}])
    return text


def _texts(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    from pilotlight.manifests import Manifest, to_yaml

    return [to_yaml([Manifest(document)]).removeprefix("---\n") for document in documents]


def _unusual(capabilities: "Capabilities") -> str:
    """What differs from the defaults, as JSON; empty: nothing."""
    from msgspec import json, to_builtins

    from pilotlight.plan.model import Capabilities

    usual = Capabilities()
    given = {field.name: getattr(capabilities, field.name) for field in fields(Capabilities)}
    # How many GPUs were free is of that moment: the same document stays the same.
    other = {name: value for name, value in given.items() if value != getattr(usual, name) and name != "gpus"}
    return json.encode(to_builtins(other, order="sorted"), order="sorted").decode() if other else ""


def _capabilities(services: "Sequence[Service]") -> "Capabilities":
    from msgspec import json

    from pilotlight.plan.model import Capabilities

    written = next((s.annotations[PLANNED_WITH] for s in services if PLANNED_WITH in s.annotations), "")
    return json.decode(written, type=Capabilities) if written else Capabilities()
