"""The plan as plain values for the templates of knative/ and keda/ and the Helm chart: the first half of render.

Every name, port, selector and weight of an object is computed here, so that templates only insert values. The result is
JSON in a stable order.
"""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight.contract import LABEL_NAMESPACE, LABEL_SERVICE, METRIC_COLD_START
from pilotlight.k8s import names
from pilotlight.plan.types import Plan, Scaling, Trigger, Workload
from pilotlight.render import http_routes, inference_pool
from pilotlight.render.jinja_templates import plain

Json = Any
AlertRule = dict[str, Json]
API_VERSION: Final = "pilotlight.dev/v1alpha1"
DEADLINE_SHARE: Final = 0.8  # of the progress deadline, above which the next slower start fails


def rules_of(plan: Plan) -> list[AlertRule]:
    """Return the alerts that depend on the plan; those of any service are in helm/inference-platform/files.

    For foreign images, which do not export our metrics, only the scrape is watched.
    """
    selector = f'{LABEL_SERVICE}="{plan.name}",{LABEL_NAMESPACE}="{plan.namespace}"'
    measured = [work for work in plan.workloads if work.metrics_port is not None and work.mode != "virtual"]
    rules = []
    if any(work.is_pilotlight for work in measured):
        deadline = max(work.progress_deadline_seconds for work in measured if work.is_pilotlight)
        bound = round(deadline * DEADLINE_SHARE)
        expression = f'max({METRIC_COLD_START}{{{selector},phase="total"}}) > {bound}'
        summary = f"A cold start took more than {bound} s of its deadline of {deadline} s: raise the progress deadline"
        rules.append(_alert("PilotlightSlowStart", expression, "", "warning", summary))
    if any(work.scaling.min_replicas > 0 for work in measured):
        summary = "The service is not scraped: scaling by latency uses its fallback"
        rules.append(_alert("PilotlightNotScraped", f"absent(up{{{selector}}} == 1)", "10m", "critical", summary))
    for rule in rules:  # `absent` and `max` drop the labels
        rule["labels"] |= {LABEL_NAMESPACE: plan.namespace, LABEL_SERVICE: plan.name}
    return rules


def _alert(name: str, expression: str, pending: str, severity: str, summary: str) -> AlertRule:
    return {
        "alert": name,
        "expr": expression,
        **({"for": pending} if pending else {}),
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }


def template_values(plan: Plan) -> dict[str, Json]:
    """Return the values under the names that the templates use."""
    values = {
        "apiVersion": API_VERSION,
        "name": plan.name,
        "namespace": plan.namespace,
        "mode": plan.mode,
        "entry": plan.entry,
        "labels": plan.labels,
        "annotations": plan.annotations,
        "serviceAccount": {"create": bool(plan.service_account), "name": plan.service_account},
        "workloads": [_workload(plan, work) for work in plan.workloads if work.mode != "virtual"],
        "address": http_routes.address_of(plan),
        "route": http_routes.route_of(plan),
        "monitoring": {
            "enabled": plan.monitoring,
            "name": names.rules(plan.name),
            "rules": rules_of(plan) if plan.monitoring else [],
        },
        "access": {"secret": names.access_secret(plan.name), "key": names.ACCESS_KEY, "rules": plan.access_file}
        if plan.access_file
        else None,
        "podReader": names.workload(plan.name, "router") if http_routes.reads_pods(plan) else "",
        "mappedHost": plan.mapped_host,
        "knativeRoute": http_routes.knative_route_of(plan),
        "objects": [*plan.objects, *inference_pool.objects_of(plan)],
    }
    result = plain(values)
    assert isinstance(result, dict)
    return result


def _workload(plan: Plan, work: Workload) -> dict[str, Json]:
    return {
        "role": work.role, "name": work.name, "mode": work.mode,
        "cluster": work.cluster if work.mode == "multi-node" else "", "revision": {"name": work.revision},
        "labels": {**plan.labels, **work.labels}, "annotations": {**plan.annotations, **work.annotations},
        "selector": http_routes.selector_of(work), "serviceSelector": http_routes.service_selector_of(work),
        "serviceLabels": http_routes.service_labels(plan, work),
        "headlessName": names.headless(work.name) if http_routes.is_headless(plan, work) else "",
        "monitorSelector": names.selector(work.name), "template": _labelled(plan, work, work.template),
        "workerTemplate": _labelled(plan, work, work.worker_template) if work.worker_template is not None else None,
        "groupSize": work.group_size, "replicas": work.replicas, "strategy": work.strategy,
        "progressDeadlineSeconds": work.progress_deadline_seconds, "containerConcurrency": work.container_concurrency,
        "timeoutSeconds": work.timeout_seconds, "traffic": http_routes.traffic_of(work),
        "ports": http_routes.ports_of(work), "network": http_routes.network_of(plan, work),
        "disruption": work.disruption, "scaling": _scaling(work),
        "authentications": [{"name": name, "spec": spec} for name, spec in work.scaling.authentications.items()],
        "interceptor": _interceptor(plan, work), "monitored": plan.monitoring and work.metrics_port is not None,
        "metricsPort": work.metrics_port, "metricsPortName": http_routes.metrics_port_name_of(work),
        "clusters": _ray_clusters(work),
    }  # fmt: skip


def _labelled(plan: Plan, work: Workload, template: Mapping[str, Json]) -> dict[str, Json]:
    """Return the pod template with selector labels. Knative's is unchanged: its revision's name is its hash."""
    metadata = {key: value for key, value in template.get("metadata", {}).items() if value}
    own = names.selector(work.name) if work.mode != "serverless" else {}
    revision = {names.LABEL_REVISION: work.revision} if own and work.revision else {}
    labels = {**inference_pool.pod_labels(plan, work), **metadata.get("labels", {}), **work.selector, **own, **revision}
    return {"metadata": {**metadata, "labels": labels}, "spec": template.get("spec", {})}


def _scaling(work: Workload) -> dict[str, Json]:
    scaling: Scaling = work.scaling
    return {
        "scaler": scaling.scaler, "target": {**http_routes.SCALE_TARGETS.get(work.mode, {}), "name": work.name},
        "minReplicas": scaling.min_replicas, "maxReplicas": scaling.max_replicas, "annotations": scaling.annotations,
        "metrics": scaling.metrics, "behavior": scaling.behavior,
        "triggers": [_trigger(trigger) for trigger in scaling.triggers], "fallback": scaling.fallback,
        "modifiers": scaling.modifiers, "pollingInterval": scaling.polling_interval,
        "cooldownPeriod": scaling.cooldown_period, "initialCooldownPeriod": scaling.initial_cooldown_period,
    }  # fmt: skip


def _trigger(trigger: Trigger) -> dict[str, Json]:
    return {
        "type": trigger.type,
        "name": trigger.name,
        "metadata": trigger.metadata,
        **({"metricType": trigger.metric_type} if trigger.metric_type else {}),
        **({"authenticationRef": trigger.authentication} if trigger.authentication else {}),
    }


def _interceptor(plan: Plan, work: Workload) -> Json:
    """Return the InterceptorRoute that the workload's trigger names."""
    pushing = (trigger.metadata for trigger in work.scaling.triggers if trigger.type == "external-push")
    routes = [metadata["interceptorRoute"] for metadata in pushing if "interceptorRoute" in metadata]
    if not routes or plan.activator is None:
        return None
    return {
        "name": routes[0],
        "hosts": [*plan.hosts, *http_routes.hosts_in_cluster(plan)],
        "spec": plan.activator.route,
    }


def _ray_clusters(work: Workload) -> list[str]:
    """Return the names of the RayClusters, one for each group, since KubeRay has no replica count."""
    if work.mode != "multi-node" or work.cluster != "ray":
        return []
    count = max(1, work.scaling.min_replicas if work.replicas is None else work.replicas)
    return [work.name] if count == 1 else [f"{work.name}-{index}" for index in range(count)]
