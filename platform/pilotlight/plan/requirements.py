"""Requirements of a plan on the cluster: CRDs, Knative feature flags, add-ons, minimum versions.

Listed offline by `render` and `validate`; checked by the Kubernetes target before applying.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight import pod_flags
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.model import Capabilities, Plan, Requirement, Workload

Json = Any
MONITORING: Final = "monitoring.coreos.com"

CRDS: Final[Mapping[str, str]] = {
    "serverless": "services.serving.knative.dev",
    "multi-node": "leaderworkersets.leaderworkerset.x-k8s.io",
}


def collect(plan: Plan, capabilities: Capabilities, log: DecisionLog) -> None:
    """Record all requirements of the plan; warn about those that the target is known to lack."""
    for workload in plan.workloads:
        for requirement in (*_objects(workload), *_pod_flags(workload), *_add_ons(workload)):
            log.require(requirement)
    for requirement in (*_routes(plan), *(_monitoring(plan.workloads) if plan.monitoring else ())):
        log.require(requirement)
    _check_flags(capabilities, log)


def _routes(plan: Plan) -> Iterator[Requirement]:
    entry = next((workload for workload in plan.workloads if workload.name == plan.entry), None)
    if not plan.gateway or entry is None or entry.mode == "serverless":
        return
    yield Requirement("crd", "httproutes.gateway.networking.k8s.io", "requests from outside reach raw pods")
    if plan.activator is not None and plan.activator.namespace != plan.namespace:
        reason = f"the route leads to {plan.activator.service} in {plan.activator.namespace}"
        yield Requirement("crd", "referencegrants.gateway.networking.k8s.io", reason)


def _monitoring(workloads: Sequence[Workload]) -> Iterator[Requirement]:
    """Yield the CRDs for scraping: PodMonitors for Knative's pods, ServiceMonitors for others."""
    measured = [workload for workload in workloads if workload.metrics_port is not None]
    for workload in measured:
        kind = "podmonitors" if workload.mode == "serverless" else "servicemonitors"
        yield Requirement("crd", f"{kind}.{MONITORING}", f"{workload.role} is scraped")
    if any(workload.is_pilotlight or workload.scaling.min_replicas > 0 for workload in measured):
        yield Requirement("crd", f"prometheusrules.{MONITORING}", "alerts of the service")


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
    for flag, field in pod_flags.flags(workload.template["spec"]):
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
            yield Requirement(
                "addon", f"prometheus at {trigger.metadata['serverAddress']}", f"{workload.role}: trigger"
            )


def _check_flags(capabilities: Capabilities, log: DecisionLog) -> None:
    """Warn about disabled Knative flags; without any known flag, the target was not queried."""
    if not capabilities.features:
        return
    for requirement in list(log.requirements.values()):
        is_known_flag = requirement.kind == "feature" and requirement.name.startswith(
            (pod_flags.FLAG, pod_flags.SIDECAR_PROBES)
        )
        if is_known_flag and requirement.name not in capabilities.features:
            log.warn("PL355", "spec", f"Knative's {requirement.name} is off, and {requirement.reason} needs it")
