"""The planner: plan() turns one service into the Plan that render() writes out.

Stages: runtime, modes, then each component (pods, scaling, rollout, traffic), at the end the requirements on the
cluster. All problems are collected; errors are raised together, warnings are part of the Plan.
"""

from dataclasses import replace

from pilotlight import names
from pilotlight.plan import annotations
from pilotlight.plan.fields import check_fields
from pilotlight.plan.front import activator_of
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.mode import decide_modes, service_mode
from pilotlight.plan.model import Capabilities, Current, Mode, Plan, Workload
from pilotlight.plan.requirements import collect
from pilotlight.plan.runtime_choice import choose_runtime, merged_choice, with_defaults
from pilotlight.plan.subject import BOOT_S, PlanContext
from pilotlight.plan.workload import decide_workloads
from pilotlight.spec.model import Catalogue, Component, Role, Service
from pilotlight.spec.problems import InvalidDocument
from pilotlight.spec.select import Selection

ENTRIES: tuple[Role, ...] = ("router", "transformer", "engine", "predictor")


def plan(
    service: Service, catalogue: Catalogue, capabilities: Capabilities | None = None, current: Current | None = None
) -> Plan:
    """Plan a service. Raise InvalidDocument with all errors."""
    log = DecisionLog(service)
    capabilities, current = capabilities or Capabilities(), current or Current()
    if _is_stopped(service):
        log.decide("", "stopped", "no objects", "annotation stop = true")
    selection = choose_runtime(service, catalogue, log)
    _raise_errors(log)
    service = with_defaults(service, selection.runtime)
    modes = decide_modes(service, capabilities, log)
    _raise_errors(log)
    workloads = _workloads(service, modes, selection, catalogue, capabilities, current, log)
    result = _plan(service, modes, workloads, capabilities)
    collect(result, capabilities, log)
    _raise_errors(log)
    return replace(
        result,
        decisions=tuple(log.decisions),
        warnings=tuple(log.problems.warnings),
        requirements=tuple(log.requirements.values()),
    )


def _is_stopped(service: Service) -> bool:
    return annotations.first(annotations.STOP, service.annotations)[1] == "true"


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
    workloads: list[Workload] = []
    for role, mode in modes.items():
        component = _with_overrides(service, service.components[role], current, log)
        choice = merged_choice(service, component, selection, catalogue, mode == "multi-node", log)
        variant = "" if mode == "serverless" else component.name
        name = names.workload(service.name, role, variant)
        context = PlanContext(service, component, mode, choice, capabilities, name)
        check_fields(context, log)
        _record_costs(context, log)
        others = _declared_canaries(context, catalogue, log) if role == "predictor" else []
        workloads += decide_workloads(context, others, role == entry, current, log)
    return tuple(workloads)


def _record_costs(context: PlanContext, log: DecisionLog) -> None:
    """Record what the chosen mode costs or needs."""
    role = context.component.role
    if context.component.min_replicas == 0 and context.serves_model:
        wait = f"about {BOOT_S // 4 + context.load_seconds} s" if context.model_bytes else "as long as the model loads"
        log.decide(role, "cold start", wait, "the first request after an idle time waits for boot and model")
    if context.mode == "multi-node":
        log.decide(role, "network", "RDMA advised", "nodes exchange tensors: RoCE or InfiniBand decides the speed")
    if context.on_ray and "$(LWS_" in str(context.choice.container):
        message = "its command uses variables of a LeaderWorkerSet, which Ray does not set; name a runtime made for Ray"
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
        selection = choose_runtime(service, catalogue, canary_log)
        choice = merged_choice(service, component, selection, catalogue, context.mode == "multi-node", canary_log)
        canary_context = PlanContext(service, component, context.mode, choice, context.capabilities, name)
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
        log.decide(component.role, field.replace("_", " "), value, "kept as set by hand; --reset clears it")
    return replace(component, **overrides) if overrides else component  # type: ignore[arg-type]


def _entry_role(service: Service) -> Role:
    return next((role for role in ENTRIES if role in service.components), next(iter(service.components)))


def _is_public(service: Service, capabilities: Capabilities) -> bool:
    """Return whether the service gets a public route."""
    hidden = {service.labels.get(names.LABEL_VISIBILITY), service.labels.get("networking.kserve.io/visibility")}
    return capabilities.gateway_api and "cluster-local" not in hidden


def _plan(
    service: Service, modes: dict[Role, Mode], workloads: tuple[Workload, ...], capabilities: Capabilities
) -> Plan:
    entry, public = _entry_role(service), _is_public(service, capabilities)
    scraping = annotations.first(annotations.SCRAPING, service.annotations)[1] != "false"
    own_account = any(not part.pod.get("serviceAccountName") for part in service.components.values())
    return Plan(
        name=service.name,
        namespace=service.namespace,
        mode=service_mode(modes),
        workloads=workloads,
        entry=next((work.name for work in workloads if work.role == entry and not work.canary), ""),
        service_account=names.service_account(service.name) if own_account and workloads else "",
        labels={**service.labels, **names.service_labels(service.group, service.name)},
        hosts=(f"{service.name}-{service.namespace}.{capabilities.domain}",) if public else (),
        gateway=dict(capabilities.route_parent) if public else {},
        monitoring=capabilities.prometheus_operator and scraping,
        annotations=annotations.for_workload_objects(service.annotations),
        activator=activator_of(workloads, service, capabilities),
    )
