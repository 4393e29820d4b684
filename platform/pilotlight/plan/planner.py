"""plan(): the stages that turn one service into the Plan that render() writes out.

Runtime, modes, then each component (pods, scaling, rollout, traffic), the activator, the requirements on the cluster.
All problems are collected; errors are raised together, warnings are part of the Plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from pilotlight.catalogue.runtime_selection import Selection
from pilotlight.contract import GATEWAY_PORT
from pilotlight.k8s import access_annotations, knative_features, names
from pilotlight.plan import document_annotations
from pilotlight.plan.capacity.cold_start import check_cold_start
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.component_runtime import choose_runtime, is_gateway, merged_choice, with_defaults
from pilotlight.plan.deployment_mode import decide_modes, service_mode
from pilotlight.plan.pods import serving_port
from pilotlight.plan.router import check_pool, endpoint_picker
from pilotlight.plan.scaling.keda import GATEWAY, HTTP_ADD_ON
from pilotlight.plan.scaling.triggers import concurrency_target
from pilotlight.plan.support.field_support import check_fields
from pilotlight.plan.support.target_support import check_target
from pilotlight.plan.types import (
    Activator,
    Capabilities,
    Current,
    DecisionLog,
    Mode,
    Plan,
    Requirement,
    Trigger,
    Workload,
)
from pilotlight.plan.workload_variants import decide_workloads
from pilotlight.spec.problems import InvalidDocument
from pilotlight.spec.service import Catalogue, Component, Role, Service
from pilotlight.wire.access_file import encode

Json = Any
OLD_HOST: Final = "{name}-{namespace}.{domain}"  # of earlier plans: answers until version 0.2
INTERCEPTOR: Final = ("keda-add-ons-http-interceptor-proxy", 8080)
MONITORING: Final = "monitoring.coreos.com"
CRDS: Final[Mapping[str, str]] = {
    "serverless": "services.serving.knative.dev",
    "multi-node": "leaderworkersets.leaderworkerset.x-k8s.io",
}


def plan(
    service: Service, catalogue: Catalogue, capabilities: Capabilities | None = None, current: Current | None = None
) -> Plan:
    """Plan a service. Raise InvalidDocument with all errors."""
    log = DecisionLog(service)
    capabilities, current = _capabilities(service, capabilities or Capabilities(), log), current or Current()
    if _is_stopped(service):
        log.decide("", "stopped", "no objects", "annotation stop = true")
    selection = choose_runtime(service, catalogue, capabilities, log)
    _raise_errors(log)
    service, picker = endpoint_picker(with_defaults(service, selection.runtime), capabilities, log)
    modes = decide_modes(service, capabilities, log)
    _raise_errors(log)
    if "decoder" in service.components and "router" not in service.components:
        log.error("PL377", "spec.decoder", "gets no requests without a router; add `router: {}`")
    workloads = _workloads(service, modes, selection, catalogue, capabilities, current, log)
    result = replace(_plan(service, modes, workloads, capabilities), endpoint_picker=picker)
    collect(result, capabilities, log)
    _raise_errors(log)
    return replace(
        result,
        decisions=tuple(log.decisions),
        warnings=tuple(log.problems.warnings),
        requirements=tuple(log.requirements.values()) if capabilities.is_cluster else (),
    )


def _capabilities(service: Service, capabilities: Capabilities, log: DecisionLog) -> Capabilities:
    """Return those that count: on one machine an InferenceGraph is always a process, which reaches the gateway."""
    graph = any(part.graph for part in service.components.values())
    if not graph or capabilities.target not in ("docker", "slurm"):
        return capabilities
    reason = f"it calls services through the gateway on this machine, which {capabilities.target} may not reach"
    log.decide("router", "runs as", "a process of this machine", reason)
    return replace(capabilities, target="local", target_options={})


def _is_stopped(service: Service) -> bool:
    return document_annotations.first(document_annotations.STOP, service.annotations)[1] == "true"


def _raise_errors(log: DecisionLog) -> None:
    if log.problems.errors:
        raise InvalidDocument(log.problems.items)


def _workloads(
    service: Service, modes: dict[Role, Mode], selection: Selection, catalogue: Catalogue, capabilities: Capabilities,
    current: Current, log: DecisionLog,
) -> tuple[Workload, ...]:  # fmt: skip
    if _is_stopped(service) or set(modes.values()) == {"virtual"}:
        return ()
    entry = _entry_role(service)
    # Our gateway as a router passes the client's token on; a transformer, an explainer or a router of others may not.
    own_entry = entry in ("engine", "predictor") or is_gateway(service.components[entry], selection.runtime)
    own_entry = own_entry and "explainer" not in service.components
    checks = own_entry and not capabilities.access_at_gateway and _has_access_rules(service)
    workloads: list[Workload] = []
    implied = selection.runtime.disaggregation if selection.runtime else ""
    for role, mode in sorted(modes.items(), key=lambda item: item[0] == "router"):  # last: it must know the others
        component = _with_overrides(service, service.components[role], current, log)
        choice = merged_choice(service, component, selection, catalogue, capabilities, mode == "multi-node", log)
        name = names.workload(service.name, role, "" if mode == "serverless" else component.name)
        context = PlanContext(
            service, component, mode, choice, capabilities, name, checks and choice.is_pilotlight, tuple(workloads),
            service.annotations.get(names.ANNOTATION_DISAGGREGATION, implied),
        )  # fmt: skip
        _decide_access(context, role == entry, log)
        check_fields(context, log)
        _decide_group(context, log)
        others = _declared_canaries(context, catalogue, log) if role == "predictor" else []
        decided = decide_workloads(context, others, role == entry, current, log)
        for workload in decided:
            check_target(context, workload, log)
            check_cold_start(context, workload, log)
        workloads += decided
    return tuple(workloads)


def _has_access_rules(service: Service) -> bool:
    return bool(document_annotations.for_workload_objects(service.annotations))


def _decide_access(context: PlanContext, entry: bool, log: DecisionLog) -> None:
    """Record who enforces the access annotations; report those that would not be enforced (PL367)."""
    written = document_annotations.for_workload_objects(context.service.annotations)
    if not written or context.capabilities.access_at_gateway:
        return
    role, path = context.component.role, f"metadata.annotations.{next(iter(written))}"
    if names.ANNOTATION_QUOTA in written and entry and (problem := _unfronted(context)):
        log.error("PL367", path, f"the token quota would not be enforced: the gateway counts tokens, and {problem}")
    if context.enforces_access:
        secret = names.access_secret(context.service.name)
        log.decide(role, "access", "enforced by its pods", f"rules in the Secret {secret}, without a new revision")
        if names.ANNOTATION_RATE in written and entry:
            reason = "each replica counts separately, so the limit grows with the replicas"
            log.decide(role, "rate limit", f"{written[names.ANNOTATION_RATE]} per replica", reason)
    elif context.choice.is_pilotlight and not entry:
        return  # behind a component of others, which is reported; only that may call it
    elif (entry or context.serverless) and (problem := _unfronted(context)):
        log.error("PL367", path, f"would not be enforced: {_open_because(context)}, and {problem}")
    elif entry:
        reason = "requests pass the gateway, and the NetworkPolicy allows no others"
        log.decide(role, "access", "enforced by the gateway", f"{_open_because(context)}: {reason}")


def _open_because(context: PlanContext) -> str:
    """Return why the pods of a component do not check the access annotations."""
    if context.choice.is_pilotlight:
        return f"the explainer calls {context.name} without the client's token"
    return f"{context.name} has a third-party image"


def _unfronted(context: PlanContext) -> str:
    """Return why our gateway cannot enforce access in front of an image of others, with the fix; empty: it can."""
    if context.serverless:
        return "Knative bypasses the Pilotlight gateway; set mode Standard (OME: RawDeployment), or use our image"
    if not context.capabilities.our_gateway:
        return "the cluster has no Pilotlight gateway; install the chart inference-platform, or use our predictor"
    if context.on_ray:
        return "the gateway does not route to a RayCluster; use MultiNode"
    if serving_port(context)[1] == "h2c":
        return "gRPC bypasses the gateway; use HTTP, or the Pilotlight predictor"
    if context.annotation(document_annotations.WAKE_BY) == HTTP_ADD_ON:
        return f"the HTTP add-on does not enforce it; set {document_annotations.WAKE_BY} to {GATEWAY}"
    return ""


def _decide_group(context: PlanContext, log: DecisionLog) -> None:
    """Record what the pods of a group need of each other."""
    if context.mode == "multi-node":
        log.decide(
            context.component.role,
            "network",
            "RDMA advised",
            "nodes exchange tensors: use RoCE or InfiniBand for speed",
        )
    if context.on_ray and "$(LWS_" in str(context.choice.container):
        message = "its command uses variables of a LeaderWorkerSet, which Ray does not set; use a runtime made for Ray"
        log.warn("PL365", context.path(), message)


def _declared_canaries(context: PlanContext, catalogue: Catalogue, log: DecisionLog) -> list[tuple[PlanContext, int]]:
    """Return contexts and traffic percent of KServe's `canary[]`: predictors with a model and runtime of their own."""
    canaries: list[tuple[PlanContext, int]] = []
    if context.service.canaries and context.serverless:
        message = "needs Deployments; set serving.kserve.io/deploymentMode: Standard, or use canaryTrafficPercent"
        log.error("PL358", "spec.canary", message)
        return canaries
    for entry in context.service.canaries:
        component: Component = entry["component"]
        service = replace(context.service, components={**context.service.components, "predictor": component})
        name = names.workload(service.name, "predictor", str(entry["name"]))
        canary_log = log.for_variant(name)
        selection = choose_runtime(service, catalogue, context.capabilities, canary_log)
        multi_node = context.mode == "multi-node"
        choice = merged_choice(service, component, selection, catalogue, context.capabilities, multi_node, canary_log)
        guarded = context.enforces_access and choice.is_pilotlight
        canary_context = PlanContext(service, component, context.mode, choice, context.capabilities, name, guarded)
        _decide_access(canary_context, True, canary_log)
        canaries.append((canary_context, int(entry["trafficPercent"])))
    return canaries


def _with_overrides(service: Service, component: Component, current: Current, log: DecisionLog) -> Component:
    """Apply live overrides of `platformctl scale`, which last until --reset."""
    current_overrides = current.overrides.get(names.workload(service.name, component.role, component.name)) or {}
    overrides = {
        field: int(current_overrides[key])
        for field, key in (("min_replicas", "minReplicas"), ("max_replicas", "maxReplicas"))
        if key in current_overrides
    }
    for field, value in overrides.items():
        log.decide(component.role, field.replace("_", " "), value, "manual override; --reset removes it")
    return replace(component, **overrides) if overrides else component  # type: ignore[arg-type]


def _entry_role(service: Service) -> Role:
    return next((role for role in names.ENTRY_ROLES if role in service.components), next(iter(service.components)))


def _plan(
    service: Service, modes: dict[Role, Mode], workloads: tuple[Workload, ...], capabilities: Capabilities
) -> Plan:
    entry = _entry_role(service)
    visibility = {service.labels.get(names.LABEL_VISIBILITY), service.labels.get("networking.kserve.io/visibility")}
    visible, templates = "cluster-local" not in visibility, (capabilities.host_template, OLD_HOST)
    hosts = [names.host(each, service.name, service.namespace, capabilities.domain) for each in templates]
    public, mapped = capabilities.gateway_api and visible, capabilities.maps_hosts and visible and workloads
    scraping = document_annotations.first(document_annotations.SCRAPING, service.annotations)[1] != "false"
    own_account = any(not part.pod.get("serviceAccountName") for part in service.components.values())
    return Plan(
        name=service.name, namespace=service.namespace, mode=service_mode(modes), workloads=workloads,
        entry=next((work.name for work in workloads if work.role == entry and not work.canary), ""),
        service_account=names.service_account(service.name) if own_account and workloads else "",
        labels={**service.labels, **names.service_labels(service.group, service.name)},
        hosts=tuple(dict.fromkeys(hosts)) if public else (),
        mapped_host=hosts[0] if mapped and modes[entry] == "serverless" else "",
        gateway=dict(capabilities.route_parent) if public else {},
        monitoring=capabilities.prometheus_operator and scraping,
        expose=service.annotations.get(names.ANNOTATION_EXPOSE, ""),
        annotations=document_annotations.for_workload_objects(service.annotations),
        activator=activator_of(workloads, service, capabilities),
        access_file=encode(access_annotations.rules(document_annotations.for_workload_objects(service.annotations)))
        if any(work.enforces_access for work in workloads) else "",
        prometheus_namespace=_namespace_of(capabilities.prometheus),
    )  # fmt: skip


def _namespace_of(url: str) -> str:
    """Return the namespace of a Service by its URL; empty if it is not in the cluster."""
    host = (urlsplit(url).hostname or "").removesuffix(".cluster.local")
    name, _, rest = host.partition(".")
    return rest.removesuffix(".svc") if name and rest.endswith(".svc") else ""


def activator_of(workloads: Sequence[Workload], service: Service, capabilities: Capabilities) -> Activator | None:
    """Return the activator of a service; None if requests need none.

    Our gateway also fronts pods that do not check the access annotations: images of others, and any with an explainer.
    """
    explained = "explainer" in service.components and not capabilities.access_at_gateway
    fronted = any(not work.internal and (explained or not work.is_pilotlight) for work in workloads)
    if fronted and _has_access_rules(service):
        name, namespace = _address(capabilities.gateway_scaler)
        return Activator("gateway", name, namespace, GATEWAY_PORT)
    for workload in workloads:
        for trigger in workload.scaling.triggers:
            if trigger.type == "external-push":
                target = concurrency_target(service.components[workload.role])
                return _activator(workload, trigger, target, capabilities)
    return None


def _activator(workload: Workload, trigger: Trigger, target: int, capabilities: Capabilities) -> Activator:
    if "interceptorRoute" not in trigger.metadata:
        name, namespace = _address(capabilities.gateway_scaler)
        return Activator("gateway", name, namespace, GATEWAY_PORT)
    _, namespace = _address(capabilities.http_scaler)
    start, answer = workload.progress_deadline_seconds, workload.timeout_seconds or 0
    route: dict[str, Json] = {
        "scalingMetric": {"concurrency": {"targetValue": target}},
        # The add-on's request timeout includes the wait for readiness, so a cold start needs both.
        "timeouts": {"readiness": f"{start}s", "request": f"{start + answer}s", "responseHeader": f"{start + answer}s"},
    }
    return Activator("interceptor", INTERCEPTOR[0], namespace, INTERCEPTOR[1], route)


def _address(address: str) -> tuple[str, str]:
    """Split `name.namespace.svc:9090` into name and namespace."""
    name, _, rest = address.partition(":")[0].partition(".")
    return name, rest.partition(".")[0]


def collect(plan: Plan, capabilities: Capabilities, log: DecisionLog) -> None:
    """Record all requirements of the plan; warn about those that the target is known to lack."""
    for workload in plan.workloads:
        for requirement in (*_objects(workload), *_pod_flags(workload), *_add_ons(workload)):
            log.require(requirement)
    for requirement in (*_routes(plan), *check_pool(plan, log), *_monitoring(plan)):
        log.require(requirement)
    _check_flags(capabilities, log)


def _routes(plan: Plan) -> Iterator[Requirement]:
    if plan.mapped_host:
        yield Requirement("crd", "domainmappings.serving.knative.dev", f"requests for {plan.mapped_host} reach it")
    entry = next((workload for workload in plan.workloads if workload.name == plan.entry), None)
    if entry is not None and entry.mode == "serverless":
        yield Requirement("crd", "routes.serving.knative.dev", f"requests for {plan.name} reach {plan.entry}")
        return
    if not plan.gateway or entry is None:
        return
    yield Requirement("crd", "httproutes.gateway.networking.k8s.io", "requests from outside reach raw pods")
    if plan.activator is not None and plan.activator.namespace != plan.namespace:
        reason = f"the route leads to {plan.activator.service} in {plan.activator.namespace}"
        yield Requirement("crd", "referencegrants.gateway.networking.k8s.io", reason)


def _monitoring(plan: Plan) -> Iterator[Requirement]:
    """Yield the CRDs for scraping: PodMonitors for Knative's pods, ServiceMonitors for others."""
    measured = [workload for workload in plan.workloads if plan.monitoring and workload.metrics_port is not None]
    for workload in measured:
        kind = "podmonitors" if workload.mode == "serverless" else "servicemonitors"
        yield Requirement("crd", f"{kind}.{MONITORING}", f"{workload.role} is scraped")
    if any(workload.is_pilotlight or workload.scaling.min_replicas > 0 for workload in measured):
        yield Requirement("crd", f"prometheusrules.{MONITORING}", "alerts for the service")


def _objects(workload: Workload) -> Iterator[Requirement]:
    name = "rayclusters.ray.io" if workload.cluster == "ray" else CRDS.get(workload.mode)
    if name:
        yield Requirement("crd", name, f"{workload.role} is {workload.mode}")
    if workload.scaling.scaler == "keda":
        yield Requirement("crd", "scaledobjects.keda.sh", f"{workload.role} is scaled by KEDA")
    if workload.scaling.authentications:
        yield Requirement("crd", "triggerauthentications.keda.sh", f"{workload.role}: its triggers authenticate")
    for trigger in workload.scaling.triggers:
        if trigger.authentication:
            kind, name = trigger.authentication.get("kind", "TriggerAuthentication"), trigger.authentication["name"]
            reason = f"{workload.role}: trigger {trigger.name} authenticates by {kind} {name}, which must be there"
            yield Requirement("crd", f"{kind.lower()}s.keda.sh", reason)
    if any("interceptorRoute" in trigger.metadata for trigger in workload.scaling.triggers):
        yield Requirement("crd", "interceptorroutes.http.keda.sh", f"{workload.role} is woken by the HTTP add-on")
    if any("image" in volume for volume in workload.template["spec"].get("volumes") or ()):
        yield Requirement("version", "Kubernetes >= 1.33", f"{workload.role} mounts a folder of an image volume")


def _pod_flags(workload: Workload) -> Iterator[Requirement]:
    if workload.mode != "serverless":
        return
    role = workload.role
    for flag, field in knative_features.flags(workload.template["spec"]):
        yield Requirement("feature", flag, f"{role}: {field}")
    if workload.timeout_seconds and workload.timeout_seconds > 600:
        name = f"config-defaults max-revision-timeout-seconds >= {workload.timeout_seconds}"
        yield Requirement("feature", name, f"{role}: a timeout above Knative's limit of 600 s")


def _add_ons(workload: Workload) -> Iterator[Requirement]:
    for trigger in workload.scaling.triggers:
        if trigger.type == "external-push":
            name = "keda-http-add-on" if "interceptorRoute" in trigger.metadata else "pilotlight-gateway"
            yield Requirement("addon", name, f"{workload.role}: reports requests to KEDA")
        elif trigger.type == "external":
            yield Requirement("addon", "keda-otel-add-on", f"{workload.role}: autoScaling metric of pods")
        elif trigger.type == "prometheus":
            name = f"prometheus at {trigger.metadata['serverAddress']}"
            yield Requirement("addon", name, f"{workload.role}: trigger")


def _check_flags(capabilities: Capabilities, log: DecisionLog) -> None:
    """Warn about disabled Knative flags; without any known flag, the target was not queried."""
    if not capabilities.features:
        return
    for requirement in list(log.requirements.values()):
        known = requirement.name.startswith((knative_features.FLAG, knative_features.SIDECAR_PROBES))
        if requirement.kind == "feature" and known and requirement.name not in capabilities.features:
            log.warn("PL355", "spec", f"Knative's {requirement.name} is off, and {requirement.reason} needs it")
