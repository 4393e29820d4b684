"""What is simulated: scaling rules, queue limits and resources of one workload, read from its rendered manifests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pilotlight.contract import ENV_PARK_MEMORY
from pilotlight.errors import UsageError
from pilotlight.gateway.routing_table import HOLD_LIMIT
from pilotlight.k8s.manifest import Manifest
from pilotlight.k8s.quantities import gpu_count, parse_quantity
from pilotlight.plan.capacity.cold_start import DRAIN_S
from pilotlight.plan.environment_variables import DRAIN_DELAY_S
from pilotlight.plan.types import Plan, Workload
from pilotlight.simulation.service_times import Start
from pilotlight.targets.local.scaling.from_manifests import scaling_of
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Kpa, Scaling

Json = Any
KNATIVE_TICK_S: Final = 2.0  # Knative's autoscaler decides every two seconds
HPA_SYNC_S: Final = 15.0  # KEDA decides about zero each polling interval, which may be shorter
ACTIVATOR_QUEUE: Final = 10_000  # requests that Knative's activator holds for a revision
DEFAULT_TIMEOUT_S: Final = 300.0
AUTOSCALERS: Final = ("ScaledObject", "HorizontalPodAutoscaler")


@dataclass(frozen=True)
class Scenario:
    """One workload on one kind of platform. Times are seconds.

    `tick_s`: between two decisions; `drain_s`: how long a terminating replica exists; `idle_drain_s`: the last one.
    """

    name: str
    namespace: str
    mode: str
    scaling: Scaling
    tick_s: float = 1.0
    drain_s: float = 0.0
    idle_drain_s: float = 0.0
    concurrency: int = 0  # requests in flight per replica; 0: no limit
    hold_s: float = DEFAULT_TIMEOUT_S
    hold_limit: int = HOLD_LIMIT
    timeout_s: float = DEFAULT_TIMEOUT_S
    queue_limit: int = 1024  # of the predictor in a replica; 0: none
    gpus: int = 0  # per replica
    cpus: float = 0.0
    parks: bool = False
    is_pilotlight: bool = False  # our predictor, which a pilot light can fork
    start: Start = "process"
    devices: int | None = None  # GPUs there are; None: as many as replicas need
    cores: int | None = None  # that starting replicas share; None: as many as they use
    notes: tuple[str, ...] = ()
    activator: bool = False  # Knative's queues requests, in place of our gateway
    external_push: bool = False  # a trigger reads the requests of the moment, and each prolongs KEDA's cooldown


def scenario_of(plan: Plan, manifests: Sequence[Manifest], *, embedded: bool, component: str = "") -> Scenario:
    """Return the scenario of the component that serves the model, or of the named one.

    `embedded`: on the platform of one machine; else on a cluster with Knative and KEDA. Raise UsageError if there is
    nothing to simulate.
    """
    workload = served_workload(plan, component)
    documents = [each.document for each in manifests]
    named = (each for each in documents if each["metadata"]["name"] == workload.name)
    document = next((each for each in named if "template" in _spec(each)), None)
    if document is None:
        fixed = Fixed(max(1, workload.scaling.min_replicas) if workload.replicas is None else workload.replicas)
        return _with_resources(Scenario(workload.name, plan.namespace, workload.mode, fixed), workload)
    scaled = ((each, _spec(each).get("scaleTargetRef") or {}) for each in documents if each.get("kind") in AUTOSCALERS)
    autoscaler = next((each for each, target in scaled if target.get("name") == workload.name), None)
    scaling, notes = _scaling(document, autoscaler)
    activator = isinstance(scaling, Kpa) and not embedded
    if isinstance(scaling, Kpa) and embedded:
        scaling = replace(scaling, grace_s=0.0)
    timeout = float(workload.timeout_seconds or DEFAULT_TIMEOUT_S)
    others = [each.name for each in plan.workloads if each.name != workload.name]
    if others:
        notes = (*notes, f"only {workload.name} is simulated, not {', '.join(others)}")
    cluster_tick, metrics = KNATIVE_TICK_S, scaling.metrics if isinstance(scaling, Hpa) else ()
    if isinstance(scaling, Hpa):
        cluster_tick = min(scaling.polling_s, HPA_SYNC_S) if scaling.keda else HPA_SYNC_S
    scenario = Scenario(
        workload.name, plan.namespace, workload.mode, scaling,
        tick_s=1.0 if embedded else cluster_tick,
        drain_s=DRAIN_S if activator else 0.0 if embedded else float(workload.is_pilotlight * DRAIN_DELAY_S),
        idle_drain_s=DRAIN_S if activator else 0.0,
        concurrency=workload.container_concurrency or 0,
        hold_s=min(timeout, float(workload.progress_deadline_seconds)),
        hold_limit=ACTIVATOR_QUEUE if activator else HOLD_LIMIT,
        timeout_s=timeout,
        queue_limit=1024 if workload.is_pilotlight else 0,
        notes=notes,
        activator=activator,
        external_push=not embedded and any(each.source == "requests" for each in metrics),
    )  # fmt: skip
    return _with_resources(scenario, workload)


def served_workload(plan: Plan, component: str) -> Workload:
    """Return the workload that serves the model, or the named one."""
    if component:
        chosen = next((each for each in plan.workloads if component in (each.role, each.name)), None)
        if chosen is None:
            roles = ", ".join(each.role for each in plan.workloads)
            raise UsageError(f"{plan.name} has no component {component}; it has {roles}")
        return chosen
    if not plan.workloads:
        raise UsageError(f"{plan.name} has no replicas: there is nothing to simulate")
    return next((each for each in plan.workloads if each.role in ("predictor", "engine")), plan.workloads[0])


def _with_resources(scenario: Scenario, workload: Workload) -> Scenario:
    containers: Iterable[Mapping[str, Json]] = (workload.template.get("spec") or {}).get("containers") or ()
    gpus = sum(map(gpu_count, containers)) * workload.group_size
    cpus = sum(float(parse_quantity(str(_cpu(each))) or 0) for each in containers) * workload.group_size
    variables = {env.get("name"): env.get("value") for each in containers for env in each.get("env") or ()}
    parks = str(variables.get(ENV_PARK_MEMORY) or "0") not in ("0", "0%")
    return replace(scenario, gpus=gpus, cpus=cpus, parks=parks, is_pilotlight=workload.is_pilotlight)


def _cpu(container: Mapping[str, Json]) -> Json:
    resources = container.get("resources") or {}
    parts = (resources.get(part) or {} for part in ("requests", "limits"))
    return next((part["cpu"] for part in parts if "cpu" in part), 0)


def _scaling(document: Mapping[str, Json], autoscaler: Mapping[str, Json] | None) -> tuple[Scaling, tuple[str, ...]]:
    """Return the scaling rules without triggers that only a cluster can evaluate, and a note for each of those."""
    if autoscaler is None or autoscaler.get("kind") != "ScaledObject":
        return scaling_of(document, autoscaler), ()
    triggers = autoscaler["spec"].get("triggers") or []
    known = [each for each in triggers if each.get("type") in SIMULATED]
    notes = tuple(
        f"trigger {each.get('name') or each.get('type')} of type {each.get('type')} is not simulated"
        for each in triggers
        if each not in known
    )
    if not known:
        spec = autoscaler["spec"]
        return Fixed(max(1, int(spec.get("minReplicaCount") or 0))), notes
    pruned = {**autoscaler, "spec": {**autoscaler["spec"], "triggers": known}}
    return scaling_of(document, pruned), notes


SIMULATED: Final = ("prometheus", "external-push", "cpu", "cron")


def _spec(document: Mapping[str, Json]) -> Mapping[str, Json]:
    spec = document.get("spec")
    return spec if isinstance(spec, Mapping) else {}
