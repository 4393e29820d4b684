"""The plan as plain values: what the templates of knative/ and keda/ read, and what the Helm chart is given.

First half of render: every name, port, selector and weight that an object needs is written out here, so that a template
(ours or the chart's) only puts values in their places. The result is JSON all through, in a stable order.
"""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight import names
from pilotlight.plan.model import Plan, Scaling, Traffic, Trigger, Workload
from pilotlight.render.alerts import rules_of
from pilotlight.render.routing import address_of, exposed_in, hosts_in_cluster, route_of
from pilotlight.render.selectors import (
    SCALE_TARGETS,
    metrics_port_name_of,
    peers_of,
    ports_of,
    selector_of,
    service_selector_of,
)
from pilotlight.render.templates import plain

Json = Any
API_VERSION: Final = "pilotlight.dev/v1alpha1"


def view(plan: Plan) -> dict[str, Json]:
    """Everything that the templates read, under the names by which they read it."""
    seen = {
        "apiVersion": API_VERSION,
        "name": plan.name,
        "namespace": plan.namespace,
        "mode": plan.mode,
        "entry": plan.entry,
        "labels": plan.labels,
        "annotations": plan.annotations,
        "serviceAccount": {"create": bool(plan.service_account), "name": plan.service_account},
        "workloads": [_workload(plan, work) for work in plan.workloads if work.mode != "virtual"],
        "address": address_of(plan),
        "route": route_of(plan),
        "monitoring": {"enabled": plan.monitoring, "name": names.rules(plan.name), "rules": _rules(plan)},
        "objects": plan.objects,
    }
    made = plain(seen)
    assert isinstance(made, dict)
    return made


def _rules(plan: Plan) -> list[dict[str, Json]]:
    return rules_of(plan) if plan.monitoring else []


def _workload(plan: Plan, work: Workload) -> dict[str, Json]:
    exposed = exposed_in(plan, work)
    return {
        "role": work.role,
        "name": work.name,
        "mode": work.mode,
        "cluster": work.cluster if work.mode == "multi-node" else "",
        "revision": {"name": work.revision},
        "labels": {**plan.labels, **work.labels},
        "annotations": {**plan.annotations, **work.annotations},
        "selector": selector_of(work),
        "serviceSelector": service_selector_of(work),
        "serviceLabels": {**plan.labels, **work.labels, **names.selector(work.name), **_visibility(work, exposed)},
        "headlessName": names.headless(work.name),
        "monitorSelector": names.selector(work.name),
        "template": _labelled(work, work.template),
        "workerTemplate": _labelled(work, work.worker_template) if work.worker_template is not None else None,
        "groupSize": work.group_size,
        "replicas": work.replicas,
        "strategy": work.strategy,
        "progressDeadlineSeconds": work.progress_deadline_seconds,
        "containerConcurrency": work.container_concurrency,
        "timeoutSeconds": work.timeout_seconds,
        "traffic": _traffic(work),
        "ports": ports_of(work),
        "network": {"open": exposed, "peers": peers_of(plan, work)},
        "disruption": work.disruption,
        "scaling": _scaling(work),
        "authentications": [{"name": name, "spec": spec} for name, spec in work.scaling.authentications.items()],
        "interceptor": _interceptor(plan, work),
        "monitored": plan.monitoring and work.metrics_port is not None,
        "metricsPort": work.metrics_port,
        "metricsPortName": metrics_port_name_of(work),
        "clusters": _ray_clusters(work),
    }


def _visibility(work: Workload, exposed: bool) -> dict[str, str]:
    """A component behind another one has no business on the public gateway."""
    if work.mode != "serverless" or exposed or names.LABEL_VISIBILITY in work.labels:
        return {}
    return {names.LABEL_VISIBILITY: "cluster-local"}


def _labelled(work: Workload, template: Mapping[str, Json]) -> dict[str, Json]:
    """The pod template with the labels that select it. Knative's stays as planned: its name is the hash of it."""
    metadata = {key: value for key, value in template.get("metadata", {}).items() if value}
    own = names.selector(work.name) if work.mode != "serverless" else {}
    revision = {names.LABEL_REVISION: work.revision} if own and work.revision else {}
    labels = {**metadata.get("labels", {}), **work.selector, **own, **revision}
    return {"metadata": {**metadata, "labels": labels}, "spec": template.get("spec", {})}


def _traffic(work: Workload) -> list[dict[str, Json]]:
    """Knative's form of a split. Without a named revision all goes to the latest."""
    shares = work.traffic or (Traffic(work.revision, 100, latest=not work.revision),)
    return [_share(share) for share in shares] if work.mode == "serverless" else []


def _share(share: Traffic) -> dict[str, Json]:
    target = {"latestRevision": True} if share.latest else {"revisionName": share.revision, "latestRevision": False}
    return {**target, "percent": share.percent, **({"tag": share.tag} if share.tag else {})}


def _scaling(work: Workload) -> dict[str, Json]:
    scaling: Scaling = work.scaling
    return {
        "scaler": scaling.scaler,
        "target": {**SCALE_TARGETS.get(work.mode, {}), "name": work.name},
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "annotations": scaling.annotations,
        "metrics": scaling.metrics,
        "behavior": scaling.behavior,
        "triggers": [_trigger(trigger) for trigger in scaling.triggers],
        "fallback": scaling.fallback,
        "modifiers": scaling.modifiers,
        "pollingInterval": scaling.polling_interval,
        "cooldownPeriod": scaling.cooldown_period,
        "initialCooldownPeriod": scaling.initial_cooldown_period,
    }


def _trigger(trigger: Trigger) -> dict[str, Json]:
    return {
        "type": trigger.type,
        "name": trigger.name,
        "metadata": trigger.metadata,
        **({"metricType": trigger.metric_type} if trigger.metric_type else {}),
        **({"authenticationRef": trigger.authentication} if trigger.authentication else {}),
    }


def _interceptor(plan: Plan, work: Workload) -> Json:
    """The InterceptorRoute that the workload's own trigger asks the HTTP add-on about."""
    routes = [trigger.metadata["interceptorRoute"] for trigger in work.scaling.triggers if _asks_interceptor(trigger)]
    if not routes or plan.front is None:
        return None
    return {"name": routes[0], "hosts": [*plan.hosts, *hosts_in_cluster(plan)], "spec": plan.front.route}


def _asks_interceptor(trigger: Trigger) -> bool:
    return trigger.type == "external-push" and "interceptorRoute" in trigger.metadata


def _ray_clusters(work: Workload) -> list[str]:
    """KubeRay has no count of clusters, so each group is a cluster of its own."""
    if work.mode != "multi-node" or work.cluster != "ray":
        return []
    count = max(1, work.scaling.min_replicas if work.replicas is None else work.replicas)
    return [work.name] if count == 1 else [f"{work.name}-{index}" for index in range(count)]
