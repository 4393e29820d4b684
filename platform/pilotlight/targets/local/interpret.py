"""Manifests as the embedded target understands them: interpret(manifests) → ServiceSpec. Pure; run on every apply.

    Knative Service                       a serverless workload, its traffic by revision
    Deployment or StatefulSet             a raw or stateful workload with one revision
    + Service, ScaledObject or HPA        its port, its rules of scaling
    HTTPRoute                             who receives the service's requests, with which weight
    Secret, ConfigMap                     values of variables

What cannot be done on one machine is refused with the reason, everything at once. Other objects mean nothing here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pilotlight import names
from pilotlight.contract import ENV_REVISION, ENV_SETTINGS_PREFIX, RESERVED_NAMES
from pilotlight.errors import PlatformError
from pilotlight.targets.local.entry import entry_of
from pilotlight.targets.local.model import Mode, Probe, RevisionSpec, ServiceSpec, TrafficShare, WorkloadSpec
from pilotlight.targets.local.objects import (
    AUTOSCALERS,
    SEVERAL_NODES,
    Object,
    Objects,
    at,
    is_knative,
    is_workload,
    mapping_at,
    name_of,
    revision_of,
    role_of,
    template_of,
)
from pilotlight.targets.local.pod import container_of
from pilotlight.targets.local.scaling.bounds import with_bounds
from pilotlight.targets.local.scaling.fields import seconds_of
from pilotlight.targets.local.scaling.model import Fixed, Hpa, Scaling
from pilotlight.targets.local.scaling.promql import supported
from pilotlight.targets.local.scaling.read import scaling_of

Json = Any
Overrides = Mapping[str, Mapping[str, Json]]  # by workload

MODES: Final[Mapping[str, Mode]] = {"Service": "serverless", "Deployment": "raw", "StatefulSet": "stateful"}
READ: Final = frozenset({*AUTOSCALERS, *SEVERAL_NODES, "Service", "HTTPRoute", "Secret", "ConfigMap"})
PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
DEFAULT_TIMEOUT_S: Final = 300.0
DEFAULT_DEADLINE_S: Final = 600.0


def interpret(manifests: Sequence[Object], overrides: Overrides | None = None) -> ServiceSpec:
    """Raises PlatformError with a line for each thing that this machine cannot do."""
    objects = Objects(manifests)
    namespace, service = _identity(manifests)
    refused = _reserved(namespace, service)
    several = objects.of_kind(*SEVERAL_NODES)
    refused += [f"{_label(found)}: needs several nodes; use --target kubernetes" for found in several]
    set_by_hand = overrides or {}
    try:
        workloads = tuple(
            _workload(found, namespace, service, objects, set_by_hand.get(name_of(found)) or {}, refused)
            for found in objects.workloads()
        )
        entry, hosts = entry_of(service, objects, workloads, set_by_hand), _hosts(namespace, service, objects)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # They come over the API as well, where nobody has checked them.
        message = f"the manifests of {namespace}/{service} are not as Kubernetes defines them ({error!r})"
        raise PlatformError(f"{message}; apply what platformctl render prints") from error
    if refused:
        raise PlatformError("\n".join(refused), hint="platformctl render shows the objects")
    return ServiceSpec(namespace, service, workloads, entry, hosts, _access(objects, entry))


def revisions_of(manifests: Sequence[Object]) -> list[tuple[str, str, list[Object]]]:
    """Workload, revision and what the store keeps of it: from these objects alone `interpret` tells it again."""
    objects = Objects(manifests)
    return [(name_of(found), revision_of(found), objects.of_revision(found)) for found in objects.workloads()]


def ignored(manifests: Sequence[Object]) -> list[str]:
    """`Kind name` of what has no meaning without a cluster."""
    return [_label(found) for found in manifests if not is_workload(found) and found.get("kind") not in READ]


def check_queries(spec: ServiceSpec) -> None:
    """Raises PlatformError where no Prometheus is given and scaling asks what our own metrics cannot answer.

    Asked on a deploy only: a service that is stored starts again in any case, and its fallback holds.
    """
    refused = [
        f"{workload.name}: {reason}"
        for workload in spec.workloads
        if isinstance(workload.revision.scaling, Hpa)
        for metric in workload.revision.scaling.metrics
        if metric.source == "prometheus" and (reason := supported(metric.query)) is not None
    ]
    if refused:
        raise PlatformError("\n".join(refused), hint="platformctl up --prometheus ADDRESS")


def _label(document: Object) -> str:
    return f"{'Knative ' if is_knative(document) else ''}{document.get('kind')} {name_of(document)}"


def _identity(manifests: Sequence[Object]) -> tuple[str, str]:
    """Namespace and service by the label that every object of ours has. Companions have none."""
    if not manifests:
        raise PlatformError("the document asks for no objects (annotation stop = true); use platformctl delete instead")
    found = {
        (str(at(manifest, "metadata", "namespace") or "default"), str(service))
        for manifest in manifests
        if (service := at(manifest, "metadata", "labels", names.LABEL_SERVICE)) and manifest.get("kind") in OWN_KINDS
    }
    if len(found) != 1:
        told = " and ".join("/".join(key) for key in sorted(found)) or "none"
        raise PlatformError(
            f"manifests of exactly one service are needed, by label {names.LABEL_SERVICE}: found {told}"
        )
    return found.pop()


def _reserved(namespace: str, service: str) -> list[str]:
    """Requests are told apart by the first part of their path."""
    words = {"namespace": namespace, "name": service}
    return [
        f"{field} = {word}, which is a path of the gateway itself; choose another"
        for field, word in words.items()
        if word in RESERVED_NAMES
    ]


# A ReferenceGrant lies in another namespace, so identity is told by the objects that cannot.
OWN_KINDS: Final = frozenset({*MODES, *SEVERAL_NODES, "ServiceAccount"})


def _workload(
    workload: Object, namespace: str, service: str, objects: Objects, by_hand: Mapping[str, Json], refused: list[str]
) -> WorkloadSpec:
    problems: list[str] = []
    scaling = with_bounds(_scaling(workload, objects, problems), by_hand.get("minReplicas"), by_hand.get("maxReplicas"))
    revision = _revision(workload, namespace, service, objects, scaling, problems)
    refused += [f"{_label(workload)}: {problem}" for problem in problems]
    surge, unavailable = _room(workload, scaling)
    return WorkloadSpec(
        revision.workload, revision.role, MODES[str(workload["kind"])], revision,
        _traffic(workload, revision.name, by_hand), surge, unavailable,
    )  # fmt: skip


def _scaling(workload: Object, objects: Objects, problems: list[str]) -> Scaling:
    try:
        return scaling_of(workload, objects.autoscaler(workload))
    except PlatformError as error:
        problems.append(str(error))
        return Fixed(1)


def _revision(
    workload: Object, namespace: str, service: str, objects: Objects, scaling: Scaling, problems: list[str]
) -> RevisionSpec:
    template, name = template_of(workload), name_of(workload)
    port = at(objects.named("Service", name), "spec", "ports") or ()
    container = container_of(template, namespace, objects, port[0].get("targetPort") if port else None, problems)
    container = replace(container, env={**container.env, ENV_REVISION: revision_of(workload)})
    pod = mapping_at(template, "spec")
    timeout = _timeout(workload, container.env, objects)
    # Knative gives a replica as long to end as a request may take.
    grace = timeout if is_knative(workload) else float(pod.get("terminationGracePeriodSeconds") or 30)
    return RevisionSpec(
        namespace, service, name, role_of(workload), revision_of(workload), container, scaling,
        concurrency=int(pod.get("containerConcurrency") or 0), timeout_s=timeout,
        progress_deadline_s=_deadline(workload, container.startup), grace_s=grace,
    )  # fmt: skip


def _timeout(workload: Object, env: Mapping[str, str], objects: Objects) -> float:
    """A Deployment has no field for it: the predictor is told, and so is the route."""
    written = at(template_of(workload), "spec", "timeoutSeconds") or env.get(f"{ENV_SETTINGS_PREFIX}EXIT_TIMEOUT_SECS")
    if written:
        return float(written)
    for route in objects.of_kind("HTTPRoute"):
        for rule in at(route, "spec", "rules") or ():
            if found := seconds_of(str(at(rule, "timeouts", "request") or "")):
                return found
    return DEFAULT_TIMEOUT_S


def _deadline(workload: Object, startup: Probe | None) -> float:
    """A StatefulSet has none of its own; it must at least leave a start the time that its probe does."""
    written = mapping_at(template_of(workload), "metadata", "annotations").get(PROGRESS_DEADLINE)
    seconds = seconds_of(str(written)) if written else at(workload, "spec", "progressDeadlineSeconds")
    budget = startup.initial_delay_s + startup.period_s * startup.failure_threshold if startup else 0.0
    return float(seconds or max(DEFAULT_DEADLINE_S, budget))


def _traffic(workload: Object, revision: str, by_hand: Mapping[str, Json]) -> tuple[TrafficShare, ...]:
    """`latest` and an entry without a name mean the revision that the manifest describes."""
    if not is_knative(workload):
        return (TrafficShare(revision, 100),)
    shares = tuple(_by_hand(by_hand, revision)) or tuple(_written(workload, revision))
    return shares or (TrafficShare(revision, 100),)


def _by_hand(by_hand: Mapping[str, Json], revision: str) -> Iterator[TrafficShare]:
    for share in by_hand.get("traffic") or ():
        name = str(share.get("revision") or "latest")
        yield TrafficShare(revision if name == "latest" else name, int(share["percent"]), str(share.get("tag") or ""))


def _written(workload: Object, revision: str) -> Iterator[TrafficShare]:
    for share in at(workload, "spec", "traffic") or ():
        name = revision if share.get("latestRevision") else str(share.get("revisionName") or revision)
        yield TrafficShare(name, int(share.get("percent") or 0), str(share.get("tag") or ""))


def _room(workload: Object, scaling: Scaling) -> tuple[int, int]:
    """(surge, unavailable) of the strategy. A set replaces one after the other, each under its own name."""
    if workload["kind"] == "StatefulSet":
        return 0, 1
    strategy = mapping_at(workload, "spec", "strategy")
    if is_knative(workload) or strategy.get("type") == "Recreate":
        return (1, 0) if is_knative(workload) else (0, 0)
    room, count = mapping_at(strategy, "rollingUpdate"), _least(scaling)
    surge = _share(room.get("maxSurge", "25%"), count, math.ceil)
    unavailable = _share(room.get("maxUnavailable", "25%"), count, math.floor)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _least(scaling: Scaling) -> int:
    low = getattr(scaling, "min_replicas", getattr(scaling, "replicas", 1))
    return max(1, int(low))


def _share(written: Json, count: int, rounded: Any) -> int:
    text = str(written)
    return int(rounded(count * float(text[:-1]) / 100)) if text.endswith("%") else int(text)


def _hosts(namespace: str, service: str, objects: Objects) -> tuple[str, ...]:
    """Names by which a Host header means this service: those of its route, a cluster's own, and one for browsers."""
    routed = [str(host) for route in objects.of_kind("HTTPRoute") for host in at(route, "spec", "hostnames") or ()]
    name = f"{names.entry_service(service)}.{namespace}"
    return tuple(dict.fromkeys([*routed, f"{name}.localhost", name, f"{name}.svc", f"{name}.svc.cluster.local"]))


def _access(objects: Objects, entry: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The annotations about tokens and rates, from where the requests enter; a misspelt one from anywhere."""
    first = entry[0][0] if entry else ""
    found: dict[str, str] = {}
    for workload in objects.workloads():
        written = mapping_at(workload, "metadata", "annotations")
        anywhere = {**mapping_at(template_of(workload), "metadata", "annotations"), **written}
        found |= {key: str(value) for key, value in anywhere.items() if _misspelt(key)}
        if name_of(workload) == first:
            found |= {key: str(written[key]) for key in names.ACCESS_ANNOTATIONS if key in written}
    return found


def _misspelt(annotation: str) -> bool:
    """Carried on, so that the rules of access refuse it, which know all that there are."""
    return annotation.startswith(names.ACCESS_PREFIXES) and annotation not in names.ACCESS_ANNOTATIONS
