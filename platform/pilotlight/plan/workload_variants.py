"""Workloads of one component, usually one, two while a raw canary runs; and the rollout strategy of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from pilotlight.contract import ENV_REVISION
from pilotlight.k8s import names
from pilotlight.k8s.adapters import ANNOTATION_ADAPTERS, Adapter, encode, engine_name
from pilotlight.plan import document_annotations, environment_variables, model_pins, traffic
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.model_storage import model_uris
from pilotlight.plan.pods import PodTemplate, decide_template
from pilotlight.plan.probes import progress_deadline
from pilotlight.plan.scaling.scaling import decide_scaling, replicas_of
from pilotlight.plan.support import request_logs
from pilotlight.plan.support.adapters import check_canary_rank
from pilotlight.plan.types import Current, DecisionLog, Scaling, Traffic, Workload

Json = Any
NOTHING: Final = Current()


def decide_workloads(
    context: PlanContext, canaries: Sequence[tuple[PlanContext, int]], entry: bool, current: Current, log: DecisionLog
) -> list[Workload]:
    """Return the component's workload and its canary variants; `canaries` are those declared in the document."""
    if context.serverless:
        return [_with_traffic(context, _workload(context, entry, 0, log, current), current, log)]
    if canaries:
        return _with_declared_canaries(context, canaries, entry, log)
    percent = traffic.canary_percent(context, current)
    known = bool(current.revisions.get(context.name) or current.traffic.get(context.name))
    split = traffic.is_split(context, percent) and (known or context.mode == "stateful")
    workload = _with_traffic(context, _workload(context, entry, 1 if split else 0, log, current), current, log)
    stable = traffic.stable_revision(context.name, workload.revision, current)
    if split and (context.mode == "stateful" or stable):
        return _with_stable(context, workload, stable, current, log)
    return [workload]


def _with_traffic(context: PlanContext, workload: Workload, current: Current, log: DecisionLog) -> Workload:
    return replace(workload, traffic=traffic.decide_traffic(context, workload.revision, current, log))


def _workload(context: PlanContext, entry: bool, least: int, log: DecisionLog, current: Current = NOTHING) -> Workload:
    component = context.component
    timeout_s = environment_variables.decide_timeout(context, log)
    account = component.pod.get("serviceAccountName") or names.service_account(context.service.name)
    template = decide_template(context, timeout_s, account, log)
    scaling = decide_scaling(context, least, log)
    deadline = progress_deadline(context, log)
    revision = traffic.revision_name(context, template, _revision_fields(context, scaling, timeout_s, deadline))
    log.decide(component.role, "revision", revision, "hash of the rendered pod template")
    uris = model_uris(context)
    for uri, pin in model_pins.pins_of(context, uris).items():
        log.decide(component.role, "model", pin.digest, f"content of {uri} when it was deployed")
    written = {**context.service.annotations, **component.annotations} if context.serverless else {}
    object_annotations: dict[str, str] = {
        key: written[key] for key in document_annotations.ON_SERVICE_OBJECT if key in written
    }
    if entry and (model_names := context.model_names):
        object_annotations[names.ANNOTATION_MODEL_NAMES] = model_names
    object_annotations |= request_logs.object_annotations(context)
    if context.choice.adapters:
        object_annotations[ANNOTATION_ADAPTERS] = encode(_adapters(context, current, log))
    for behind in context.behind:  # of a router: the gateway reads them where requests enter
        if ANNOTATION_ADAPTERS in behind.annotations:
            object_annotations[ANNOTATION_ADAPTERS] = behind.annotations[ANNOTATION_ADAPTERS]
    return Workload(
        role=component.role, name=context.name, revision=revision, mode=context.mode,
        template=_with_revision(context, template, revision), scaling=scaling,
        strategy=decide_strategy(context, scaling, log),
        replicas=replicas_of(context, scaling),
        worker_template=template.worker, group_size=context.pods,
        port=template.port, port_name=template.port_name, metrics_port=template.metrics_port,
        container_concurrency=component.container_concurrency, timeout_seconds=timeout_s,
        progress_deadline_seconds=deadline, disruption=_disruption(context, log),
        labels={"app.kubernetes.io/component": component.role}, annotations=object_annotations,
        is_pilotlight=context.choice.is_pilotlight, cluster="ray" if context.on_ray else "leader-worker-set",
        internal=not entry, pod_security=template.level, enforces_access=context.enforces_access,
        model_bytes=context.model_bytes if context.serves_model else 0,
        model_uris=tuple(dict.fromkeys((*uris, *(each.uri for each in context.choice.adapters)))),
    )  # fmt: skip


def _adapters(context: PlanContext, current: Current, log: DecisionLog) -> Iterator[Adapter]:
    """Yield the adapters with the names that the engine knows them by, of a canary with those that they replace."""
    shares = [each.canary_traffic_percent for each in context.service.components.values()]
    percent = next((each for each in shares if each is not None), None)
    split = context.choice.dynamic_adapters and traffic.is_split(context, percent)
    known = current.adapters.get(context.name, ()) if split else ()
    if known:
        check_canary_rank(context.choice, known, log)
    for adapter in _rendered_adapters(context):
        before = next((each for each in known if each.name == adapter.name and each.model != adapter.model), None)
        if before is None or percent is None:
            yield adapter
        else:
            log.decide(context.component.role, "traffic", f"{adapter.model} {percent} %", f"canary of {adapter.name}")
            yield structs.replace(adapter, percent=percent)
            yield structs.replace(before, percent=100 - percent)


def _rendered_adapters(context: PlanContext) -> Iterator[Adapter]:
    choice, support = context.choice, context.choice.adapter_support
    base = context.model_names.partition(",")[0].strip()
    assert support is not None
    pins = model_pins.pins_of(context, [each.uri for each in choice.adapters])
    for index, each in enumerate(choice.adapters):
        digest = pins[each.uri].digest if each.uri in pins else ""
        name = engine_name(each.name, each.uri, digest) if choice.dynamic_adapters else each.name
        model = support.model.format(base=base or context.service.name, name=name)
        fields = support.fields.format(index=index)
        dynamic, base_fields = choice.dynamic_adapters, support.base_fields
        yield Adapter(each.name, model, each.uri, fields, digest, dynamic, rank=each.rank, base_fields=base_fields)


def _revision_fields(context: PlanContext, scaling: Scaling, timeout_s: int, deadline: int) -> Mapping[str, Json]:
    """Return further immutable fields of a Knative revision, which are part of its name."""
    if not context.serverless:
        return {}
    return {
        "annotations": dict(scaling.annotations),
        "containerConcurrency": context.component.container_concurrency,
        "timeoutSeconds": timeout_s,
        "progressDeadline": deadline,
    }


def _with_revision(context: PlanContext, template: PodTemplate, revision: str) -> dict[str, Json]:
    """Set the revision variable for metrics; in serverless mode Knative sets its own."""
    spec = template.template["spec"]
    if context.serverless:
        return template.template
    main = spec["containers"][0]
    main = {**main, "env": [*main.get("env", ()), {"name": ENV_REVISION, "value": revision}]}
    return {**template.template, "spec": {**spec, "containers": [main, *spec["containers"][1:]]}}


def _disruption(context: PlanContext, log: DecisionLog) -> dict[str, Json]:
    """Return the PodDisruptionBudget, with OME's default. The API rejects both bounds at once."""
    component = context.component
    if context.serverless:
        return {}
    if component.min_available is not None and component.max_unavailable is not None:
        log.error("PL356", context.path("minAvailable"), "excludes maxUnavailable; keep one of them")
    if component.min_available is not None:
        return {"minAvailable": component.min_available}
    return {"maxUnavailable": 1 if component.max_unavailable is None else component.max_unavailable}


def _with_stable(
    context: PlanContext, workload: Workload, stable: str, current: Current, log: DecisionLog
) -> list[Workload]:
    """Return the stable workload, unchanged, and the new revision as a canary workload."""
    if not traffic.check_canary(context, stable, current, log):
        return [workload]
    if workload.internal:
        message = "requests are split where they enter; a component behind another one cannot have its own canary"
        log.error("PL357", context.path("canaryTrafficPercent"), message)
    name = names.workload(context.service.name, context.component.role, "canary")
    workers = workload.worker_template
    canary = replace(
        workload, name=name, canary=True, traffic=(),
        template=traffic.relabelled(workload.template, context.name, name),
        worker_template=traffic.relabelled(workers, context.name, name) if workers is not None else None,
    )  # fmt: skip
    stable_workload = replace(workload, revision=stable, template=current.templates[stable])
    return [stable_workload, canary]


def _with_declared_canaries(
    context: PlanContext, canaries: Sequence[tuple[PlanContext, int]], entry: bool, log: DecisionLog
) -> list[Workload]:
    """Return the workloads of KServe's `canary[]`; unlike in KServe, each variant scales on its own."""
    workload = _workload(context, entry, 1, log)
    shares = [Traffic(workload.revision, 100)]
    variants: list[Workload] = []
    for canary, percent in canaries:
        variant = _workload(canary, entry, 1, log.for_variant(canary.name))
        variants.append(replace(variant, canary=True))
        shares[0] = replace(shares[0], percent=shares[0].percent - percent)
        shares.append(Traffic(variant.revision, percent))
    log.decide("predictor", "traffic", ", ".join(f"{s.revision} {s.percent} %" for s in shares), "spec.canary")
    return [replace(workload, traffic=tuple(shares)), *variants]


def decide_strategy(context: PlanContext, scaling: Scaling, log: DecisionLog) -> dict[str, Json]:
    """Return the strategy in the form of the mode's object: Deployment, StatefulSet or LeaderWorkerSet."""
    if context.serverless:
        # Knative always starts a new revision before it stops the old one.
        needed, free = context.gpus, context.capabilities.gpus
        if needed and free is not None and free < needed:
            reason = f"needs {needed} free GPUs, there are {free}"
            log.warn("PL352", context.path(), f"a new revision starts next to the old one and {reason}; use raw")
        return {}
    if context.mode == "stateful":
        return {"type": "RollingUpdate"}
    if context.on_ray:
        log.decide(context.component.role, "rollout", "KubeRay's own", "a RayCluster has no strategy to set")
        return {}
    surge, unavailable, reason = _surge(context, scaling)
    if context.mode == "multi-node":
        log.decide(context.component.role, "rollout", f"surge {surge}", reason)
        # A LeaderWorkerSet has no Recreate: without spare devices it must stop a group first.
        limits = {"maxSurge": surge, "maxUnavailable": unavailable if surge else 1}
        return {"type": "RollingUpdate", "rollingUpdateConfiguration": limits}
    if context.component.deployment_strategy:
        path = f"{context.component.role}.deploymentStrategy"
        log.decide(context.component.role, "rollout", context.component.deployment_strategy.get("type", ""), path)
        return dict(context.component.deployment_strategy)
    if not surge and not unavailable:
        log.decide(context.component.role, "rollout", "recreate", reason)
        return {"type": "Recreate"}
    log.decide(context.component.role, "rollout", "surge" if surge else "one by one", reason)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _surge(context: PlanContext, scaling: Scaling) -> tuple[int, int, str]:
    """Return (maxSurge, maxUnavailable, reason); both 0: recreate."""
    needed, free = context.gpus, context.capabilities.gpus
    if not needed or free is None:
        return 1, 0, "the number of free GPUs is unknown" if needed else "new pods start before old ones end"
    if free >= needed:
        return 1, 0, f"{free} GPUs are free and a replica needs {needed}"
    short = f"{free} GPUs are free, a replica needs {needed}"
    if scaling.min_replicas > 1:
        return 0, 1, f"{short}: the other replicas keep serving"
    return 0, 0, f"{short}: the old replica must stop before the new one starts"
