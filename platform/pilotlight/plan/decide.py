"""plan(): from one service to everything that render() writes down. The stages in the order in which they decide.

Runtime, then modes, then each component: pods, scaling, rollout, traffic; at the end what the cluster must have.
All problems are collected; errors are raised together, warnings travel in the Plan.
"""

from dataclasses import replace

from pilotlight import names
from pilotlight.errors import InvalidDocument
from pilotlight.plan import annotations
from pilotlight.plan.fields import check_fields
from pilotlight.plan.front import front_of
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.mode import decide_modes, service_mode
from pilotlight.plan.model import Capabilities, Current, Mode, Plan, Workload
from pilotlight.plan.requirements import collect
from pilotlight.plan.runtime_choice import choose_runtime, merged_choice, with_defaults
from pilotlight.plan.subject import BOOT_S, Subject
from pilotlight.plan.workload import decide_workloads
from pilotlight.spec.model import Catalogue, Component, Role, Service
from pilotlight.spec.select import Selection

ENTRIES: tuple[Role, ...] = ("router", "transformer", "engine", "predictor")


def plan(
    service: Service, catalogue: Catalogue, capabilities: Capabilities | None = None, current: Current | None = None
) -> Plan:
    """Every decision about a service. Raises InvalidDocument with all that cannot be honoured."""
    ledger = Ledger(service)
    capabilities, current = capabilities or Capabilities(), current or Current()
    _check_service(service, ledger)
    selection = choose_runtime(service, catalogue, ledger)
    _raise_errors(ledger)
    service = with_defaults(service, selection.runtime)
    modes = decide_modes(service, capabilities, ledger)
    _raise_errors(ledger)
    made = _workloads(service, modes, selection, catalogue, capabilities, current, ledger)
    decided = _plan(service, modes, made, capabilities)
    collect(decided, capabilities, ledger)
    _raise_errors(ledger)
    return replace(
        decided,
        decisions=tuple(ledger.decisions),
        warnings=tuple(ledger.problems.warnings),
        requirements=tuple(ledger.requirements.values()),
    )


def _check_service(service: Service, ledger: Ledger) -> None:
    if annotations.first(annotations.STOP, service.annotations)[1] == "true":
        ledger.decide("", "stopped", "no objects", "annotation stop = true")


def _raise_errors(ledger: Ledger) -> None:
    if ledger.problems.errors:
        raise InvalidDocument(ledger.problems.found)


def _workloads(
    service: Service, modes: dict[Role, Mode], selection: Selection, catalogue: Catalogue, capabilities: Capabilities,
    current: Current, ledger: Ledger,
) -> tuple[Workload, ...]:  # fmt: skip
    stopped = annotations.first(annotations.STOP, service.annotations)[1] == "true"
    if stopped or set(modes.values()) == {"virtual"}:
        return ()
    entry = _entry_role(service)
    made: list[Workload] = []
    for role, mode in modes.items():
        component = _with_overrides(service, service.components[role], current, ledger)
        choice = merged_choice(service, component, selection, catalogue, mode == "multi-node", ledger)
        variant = "" if mode == "serverless" else component.name
        name = names.workload(service.name, role, variant)
        subject = Subject(service, component, mode, choice, capabilities, name)
        check_fields(subject, ledger)
        _note(subject, ledger)
        others = _written_canaries(subject, catalogue, ledger) if role == "predictor" else []
        made += decide_workloads(subject, others, role == entry, current, ledger)
    return tuple(made)


def _note(subject: Subject, ledger: Ledger) -> None:
    """What a mode costs, said where it is chosen."""
    role = subject.component.role
    if subject.component.min_replicas == 0 and subject.serves_model:
        wait = f"about {BOOT_S // 4 + subject.load_seconds} s" if subject.model_bytes else "as long as the model loads"
        ledger.decide(role, "cold start", wait, "the first request after an idle time waits for boot and model")
    if subject.mode == "multi-node":
        ledger.decide(role, "network", "RDMA advised", "nodes exchange tensors: RoCE or InfiniBand decides the speed")
    if subject.on_ray and "$(LWS_" in str(subject.choice.container):
        message = "its command uses variables of a LeaderWorkerSet, which Ray does not set; name a runtime made for Ray"
        ledger.warn("PL365", subject.path(), message)


def _written_canaries(subject: Subject, catalogue: Catalogue, ledger: Ledger) -> list[tuple[Subject, int]]:
    """KServe's `canary[]`: other predictors of the same service, each with a model and a runtime of its own."""
    found: list[tuple[Subject, int]] = []
    if subject.service.canaries and subject.serverless:
        message = "needs Deployments; set serving.kserve.io/deploymentMode: Standard, or use canaryTrafficPercent"
        ledger.error("PL358", "spec.canary", message)
        return found
    for written in subject.service.canaries:
        component: Component = written["component"]
        other = replace(subject.service, components={**subject.service.components, "predictor": component})
        name = names.workload(other.name, "predictor", str(written["name"]))
        notes = ledger.of_side(name)
        selection = choose_runtime(other, catalogue, notes)
        choice = merged_choice(other, component, selection, catalogue, subject.mode == "multi-node", notes)
        side = Subject(other, component, subject.mode, choice, subject.capabilities, name)
        found.append((side, int(written["trafficPercent"])))
    return found


def _with_overrides(service: Service, component: Component, current: Current, ledger: Ledger) -> Component:
    """`scale` is a live override: kept, and said, until --reset."""
    written = current.overrides.get(names.workload(service.name, component.role, component.name)) or {}
    found = {
        field: int(written[key])
        for field, key in (("min_replicas", "minReplicas"), ("max_replicas", "maxReplicas"))
        if key in written
    }
    for field, value in found.items():
        ledger.decide(component.role, field.replace("_", " "), value, "kept as set by hand; --reset clears it")
    return replace(component, **found) if found else component  # type: ignore[arg-type]


def _entry_role(service: Service) -> Role:
    return next((role for role in ENTRIES if role in service.components), next(iter(service.components)))


def _routed(service: Service, capabilities: Capabilities) -> bool:
    """Whether anybody outside the cluster may ask."""
    hidden = {service.labels.get(names.LABEL_VISIBILITY), service.labels.get("networking.kserve.io/visibility")}
    return capabilities.gateway_api and "cluster-local" not in hidden


def _plan(service: Service, modes: dict[Role, Mode], made: tuple[Workload, ...], capabilities: Capabilities) -> Plan:
    entry, routed = _entry_role(service), _routed(service, capabilities)
    scraping = annotations.first(annotations.SCRAPING, service.annotations)[1] != "false"
    own_account = any(not part.pod.get("serviceAccountName") for part in service.components.values())
    return Plan(
        name=service.name,
        namespace=service.namespace,
        mode=service_mode(modes),
        workloads=made,
        entry=next((work.name for work in made if work.role == entry and not work.canary), ""),
        service_account=names.service_account(service.name) if own_account and made else "",
        labels={**service.labels, **names.service_labels(service.group, service.name)},
        hosts=(f"{service.name}-{service.namespace}.{capabilities.domain}",) if routed else (),
        gateway=dict(capabilities.route_parent) if routed else {},
        monitoring=capabilities.prometheus_operator and scraping,
        annotations=annotations.kept(service.annotations),
        front=front_of(made, service, capabilities),
    )
