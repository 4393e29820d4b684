"""Interpret manifests for the embedded target: interpret(manifests) → ServiceSpec. Pure; run on every apply.

    Knative Service                       a serverless workload, its traffic by revision
    Deployment or StatefulSet             a raw or stateful workload with one revision
    + Service, ScaledObject or HPA        its port, its scaling rules
    HTTPRoute                             entry workloads and their weights
    Secret, ConfigMap                     values of variables

What one machine cannot do is refused, all problems at once. Other objects are ignored.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pilotlight.catalogue.engine_programs import engine_command
from pilotlight.contract import ENV_REVISION, ENV_SETTINGS_PREFIX, RESERVED_NAMES, is_predictor_image
from pilotlight.errors import PlatformError
from pilotlight.k8s import names
from pilotlight.k8s.adapters import decode
from pilotlight.k8s.quantities import unsigned_duration
from pilotlight.targets.local.manifests.object_lookup import (
    MULTI_NODE_KINDS,
    Object,
    Objects,
    at,
    entry_of,
    is_knative,
    mapping_at,
    name_of,
    revision_of,
    role_of,
    template_of,
)
from pilotlight.targets.local.manifests.pods import container_of, target_of
from pilotlight.targets.local.manifests.service_spec_types import (
    ContainerSpec,
    Mode,
    Probe,
    RevisionSpec,
    ServiceSpec,
    WorkloadSpec,
)
from pilotlight.targets.local.scaling.decision import with_bounds
from pilotlight.targets.local.scaling.from_manifests import PROGRESS_DEADLINE, scaling_of
from pilotlight.targets.local.scaling.promql.evaluator import supported
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Scaling
from pilotlight.targets.target import Share

Json = Any
Overrides = Mapping[str, Mapping[str, Json]]  # by workload

MODES: Final[Mapping[str, Mode]] = {"Service": "serverless", "Deployment": "raw", "StatefulSet": "stateful"}
DEFAULT_TIMEOUT_S: Final = 300.0
DEFAULT_DEADLINE_S: Final = 600.0
# A ReferenceGrant lies in another namespace, so only these kinds determine the namespace.
OWN_KINDS: Final = frozenset({*MODES, *MULTI_NODE_KINDS, "ServiceAccount"})


def interpret(manifests: Sequence[Object], overrides: Overrides | None = None) -> ServiceSpec:
    """Return the specification of a service. Raise PlatformError with a line for each unsupported feature."""
    objects = Objects(manifests)
    namespace, service = _identity(manifests)
    refused = [  # requests are routed by path prefix
        f"{field} = {word}, which is a path of the gateway; choose another"
        for field, word in (("namespace", namespace), ("name", service))
        if word in RESERVED_NAMES
    ]
    multi_node = objects.of_kind(*MULTI_NODE_KINDS)
    refused += [f"{_label(each)}: needs several nodes; use --target kubernetes" for each in multi_node]
    overrides = overrides or {}
    try:
        workloads = tuple(
            _workload(each, namespace, service, objects, overrides.get(name_of(each)) or {}, refused)
            for each in objects.workloads()
        )
        entry = entry_of(service, objects, workloads, overrides)
        # Of its route, its cluster DNS names, and one under .localhost.
        hosts = [str(host) for route in objects.of_kind("HTTPRoute") for host in at(route, "spec", "hostnames") or ()]
        dns = f"{names.entry_service(service)}.{namespace}"
        exposed = not all(_is_hidden(each) for each in objects.workloads() if name_of(each) in dict(entry))
        hosts += [f"{dns}.localhost", dns, f"{dns}.svc", f"{dns}.svc.cluster.local"]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # The API also accepts manifests that were never validated.
        message = f"the manifests of {namespace}/{service} are not valid Kubernetes objects ({error!r})"
        raise PlatformError(f"{message}; apply what platformctl render prints") from error
    access = _access(objects, entry)
    if access and not refused:
        refused += _unprotected([workload.revision for workload in workloads], min(access))
    if refused:
        raise PlatformError("\n".join(refused), hint="platformctl render shows the objects")
    annotations = {name_of(each): mapping_at(each, "metadata", "annotations") for each in objects.workloads()}
    adapters = map(decode, annotations.values())
    models = (names.model_names(each) for name, each in annotations.items() if name in dict(entry))
    return ServiceSpec(
        namespace, service, workloads, entry, tuple(dict.fromkeys(hosts)), access, exposed,
        next(filter(None, models), ()), _logging(objects, entry), next(filter(None, adapters), ()),
    )  # fmt: skip


def revisions_of(manifests: Sequence[Object]) -> list[tuple[str, str, list[Object]]]:
    """Return (workload, revision, manifests to store): from these alone `interpret` restores the revision."""
    objects = Objects(manifests)
    return [(name_of(each), revision_of(each), objects.of_revision(each)) for each in objects.workloads()]


def check_queries(spec: ServiceSpec) -> None:
    """Raise PlatformError for scaling queries that need a Prometheus server.

    Checked on deploy only: a stored service is restored in any case, with its fallback.
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
    """Return namespace and service by the label of the rendered objects; companions have none."""
    if not manifests:
        raise PlatformError("the manifest has the annotation stop = true; use platformctl delete instead")
    keys = {
        (str(at(manifest, "metadata", "namespace") or "default"), str(service))
        for manifest in manifests
        if (service := at(manifest, "metadata", "labels", names.LABEL_SERVICE)) and manifest.get("kind") in OWN_KINDS
    }
    if len(keys) != 1:
        services = " and ".join("/".join(key) for key in sorted(keys)) or "none"
        needed = f"expected manifests of exactly one service, by label {names.LABEL_SERVICE}"
        raise PlatformError(f"{needed}: found {services}")
    return keys.pop()


def _workload(
    workload: Object, namespace: str, service: str, objects: Objects, overrides: Mapping[str, Json], refused: list[str]
) -> WorkloadSpec:
    problems: list[str] = []
    scaling: Scaling = Fixed(1)
    try:
        scaling = scaling_of(workload, objects.autoscaler(workload))
    except PlatformError as error:
        problems.append(str(error))
    scaling = with_bounds(scaling, overrides.get("minReplicas"), overrides.get("maxReplicas"))
    revision = _revision(workload, namespace, service, objects, scaling, problems)
    refused += [f"{_label(workload)}: {problem}" for problem in problems]
    surge, unavailable = _surge_and_unavailable(workload, scaling)
    return WorkloadSpec(
        revision.workload, revision.role, MODES[str(workload["kind"])], revision,
        _traffic(workload, revision.name, overrides), surge, unavailable,
    )  # fmt: skip


def _revision(
    workload: Object, namespace: str, service: str, objects: Objects, scaling: Scaling, problems: list[str]
) -> RevisionSpec:
    template, name = template_of(workload), name_of(workload)
    port = at(objects.named("Service", name), "spec", "ports") or ()
    key, target = (namespace, service), target_of(template)
    container = container_of(template, key, objects, port[0].get("targetPort") if port else None, problems)
    container = _with_sleep(replace(container, env={**container.env, ENV_REVISION: revision_of(workload)}))
    if container.host_port:
        most = getattr(scaling, "max_replicas", getattr(scaling, "replicas", 0))
        single = most == 1 and _surge_and_unavailable(workload, scaling)[0] == 0
        container = _with_host_port(container, single, target, problems)
    pod = mapping_at(template, "spec")
    timeout = _timeout(workload, container.env, objects)
    # Knative gives a replica as long to end as a request may take.
    grace = timeout if is_knative(workload) else float(pod.get("terminationGracePeriodSeconds") or 30)
    return RevisionSpec(
        namespace, service, name, role_of(workload), revision_of(workload), container, scaling,
        concurrency=int(pod.get("containerConcurrency") or 0), timeout_s=timeout,
        progress_deadline_s=_deadline(workload, container.startup), grace_s=grace, target=target,
    )  # fmt: skip


def _with_sleep(spec: ContainerSpec) -> ContainerSpec:
    """Turn on the sleep of an engine that has one, if it parks. A `hostPort` would publish what only we may call."""
    if not spec.parks or spec.own_health or spec.host_port:
        return spec
    named = engine_command(spec.image, spec.command, spec.args)
    if named is None or named.engine.sleep is None or named.sleeps is not None:
        return spec
    support = named.engine.sleep
    added = [word for word in support.args if word not in spec.args]
    return replace(spec, args=(*spec.args, *added), env={**support.env, **spec.env})


def _with_host_port(container: ContainerSpec, single: bool, target: str, problems: list[str]) -> ContainerSpec:
    """Check a hostPort, which only one replica at a time can have; `local` gives it to microservices alone."""
    if target == "local" and (container.own_health or not single):
        return replace(container, host_port=0, host_ip="")
    if not single:
        fix = "allow one (maxReplicas: 1, and Stateful or deploymentStrategy: {type: Recreate}), or remove it"
        problems.append(f"hostPort = {container.host_port}: replicas cannot share a host port; {fix}")
    return container


def _timeout(workload: Object, env: Mapping[str, str], objects: Objects) -> float:
    """Return the request timeout: of Knative's field, the predictor's setting or the HTTPRoute."""
    written = at(template_of(workload), "spec", "timeoutSeconds") or env.get(f"{ENV_SETTINGS_PREFIX}EXIT_TIMEOUT_SECS")
    if written:
        return float(written)
    for route in objects.of_kind("HTTPRoute"):
        for rule in at(route, "spec", "rules") or ():
            if seconds := unsigned_duration(str(at(rule, "timeouts", "request") or "")):
                return seconds
    return DEFAULT_TIMEOUT_S


def _deadline(workload: Object, startup: Probe | None) -> float:
    """Return the progress deadline; a StatefulSet has none, so at least its startupProbe's budget."""
    written = mapping_at(template_of(workload), "metadata", "annotations").get(PROGRESS_DEADLINE)
    seconds = unsigned_duration(str(written)) if written else at(workload, "spec", "progressDeadlineSeconds")
    budget = startup.initial_delay_s + startup.period_s * startup.failure_threshold if startup else 0.0
    return float(seconds or max(DEFAULT_DEADLINE_S, budget))


def _unprotected(revisions: Iterable[RevisionSpec], annotation: str) -> list[str]:
    """Return problems of access rules for ports that clients can reach without the gateway, which enforces them."""
    return [
        f"{revision.workload}: other users of its machine can bypass the gateway, which enforces {annotation};"
        " remove the annotation, or use --target kubernetes"
        for revision in revisions
        if revision.container.host_port or not is_predictor_image(revision.container.image)
    ]


def _traffic(workload: Object, revision: str, overrides: Mapping[str, Json]) -> tuple[Share, ...]:
    """Return the traffic split; `latest` and an entry without a name mean the manifest's own revision."""
    if not is_knative(workload):
        return (Share(revision, 100),)
    shares: list[Share] = []
    for share in overrides.get("traffic") or ():
        name = str(share.get("revision") or "latest")
        name = revision if name == "latest" else name
        shares.append(Share(name, int(share["percent"]), str(share.get("tag") or "")))
    for share in () if shares else at(workload, "spec", "traffic") or ():
        name = revision if share.get("latestRevision") else str(share.get("revisionName") or revision)
        shares.append(Share(name, int(share.get("percent") or 0), str(share.get("tag") or "")))
    return tuple(shares) or (Share(revision, 100),)


def _surge_and_unavailable(workload: Object, scaling: Scaling) -> tuple[int, int]:
    """Return (surge, unavailable) of the update strategy; a StatefulSet replaces one replica after the other."""
    if workload["kind"] == "StatefulSet":
        return 0, 1
    strategy = mapping_at(workload, "spec", "strategy")
    if is_knative(workload) or strategy.get("type") == "Recreate":
        return (1, 0) if is_knative(workload) else (0, 0)
    rolling = mapping_at(strategy, "rollingUpdate")
    count = max(1, int(getattr(scaling, "min_replicas", getattr(scaling, "replicas", 1))))
    # Kubernetes rounds surge up and unavailable down; both 0 would block the update.
    surge = _share(rolling.get("maxSurge", "25%"), count, math.ceil)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), count, math.floor)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _share(written: Json, count: int, rounded: Any) -> int:
    text = str(written)
    return int(rounded(count * float(text[:-1]) / 100)) if text.endswith("%") else int(text)


def _is_hidden(workload: Object) -> bool:
    """Whether only its own address leads to it. A Knative Service has the label if an HTTPRoute exposes it instead."""
    visibility = mapping_at(workload, "metadata", "labels").get(names.LABEL_VISIBILITY)
    return workload["kind"] == "StatefulSet" and visibility == "cluster-local"


def _logging(objects: Objects, entry: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return the annotations of request log and audit of the entry workload."""
    entries = (each for each in objects.workloads() if entry and name_of(each) == entry[0][0])
    written = [mapping_at(each, "metadata", "annotations") for each in entries]
    keys = (names.ANNOTATION_LOG_SETTINGS, names.ANNOTATION_AUDIT)
    return {key: str(each[key]) for each in written for key in keys if key in each}


def _access(objects: Objects, entry: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return the access annotations of the entry workload, and misspelt ones of any workload."""
    first = entry[0][0] if entry else ""
    access: dict[str, str] = {}
    for workload in objects.workloads():
        written = mapping_at(workload, "metadata", "annotations")
        anywhere = {**mapping_at(template_of(workload), "metadata", "annotations"), **written}
        for key, value in anywhere.items():  # unknown ones too: access_annotations.check refuses them
            if key.startswith(names.ACCESS_PREFIXES) and key not in names.ACCESS_ANNOTATIONS:
                access[key] = str(value)
        if name_of(workload) == first:
            access |= {key: str(written[key]) for key in names.ACCESS_ANNOTATIONS if key in written}
    return access
