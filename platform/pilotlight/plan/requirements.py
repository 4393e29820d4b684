"""What the cluster must have before a plan can work there: CRDs, Knative feature flags, add-ons, least versions.

Listed offline by `render` and `validate`; checked against the cluster where there is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight import pod_flags
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Capabilities, Plan, Requirement, Workload

Json = Any
MONITORING: Final = "monitoring.coreos.com"

CRDS: Final[Mapping[str, str]] = {
    "serverless": "services.serving.knative.dev",
    "multi-node": "leaderworkersets.leaderworkerset.x-k8s.io",
}


def collect(made: Plan, capabilities: Capabilities, ledger: Ledger) -> None:
    """Everything the plan needs, into the ledger; what the target is known to lack becomes a warning."""
    for workload in made.workloads:
        for requirement in (*_objects(workload), *_pod_flags(workload), *_add_ons(workload)):
            ledger.need(requirement)
    for requirement in (*_routes(made), *(_monitoring(made.workloads) if made.monitoring else ())):
        ledger.need(requirement)
    _check_flags(capabilities, ledger)


def _routes(made: Plan) -> Iterator[Requirement]:
    entry = next((workload for workload in made.workloads if workload.name == made.entry), None)
    if not made.gateway or entry is None or entry.mode == "serverless":
        return
    yield Requirement("crd", "httproutes.gateway.networking.k8s.io", "requests from outside reach raw pods")
    if made.front is not None and made.front.namespace != made.namespace:
        reason = f"the route leads to {made.front.service} in {made.front.namespace}"
        yield Requirement("crd", "referencegrants.gateway.networking.k8s.io", reason)


def _monitoring(workloads: Sequence[Workload]) -> Iterator[Requirement]:
    """Knative's pods are scraped one by one, the others behind their Service."""
    measured = [workload for workload in workloads if workload.metrics_port is not None]
    for workload in measured:
        kind = "podmonitors" if workload.mode == "serverless" else "servicemonitors"
        yield Requirement("crd", f"{kind}.{MONITORING}", f"{workload.role} is scraped")
    if any(workload.ours or workload.scaling.min_replicas > 0 for workload in measured):
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


def _check_flags(capabilities: Capabilities, ledger: Ledger) -> None:
    """Only where the target has told its flags: none at all means that nobody asked."""
    if not capabilities.features:
        return
    for requirement in list(ledger.requirements.values()):
        told = requirement.kind == "feature" and requirement.name.startswith((pod_flags.FLAG, pod_flags.SIDECAR_PROBES))
        if told and requirement.name not in capabilities.features:
            ledger.warn("PL355", "spec", f"Knative's {requirement.name} is off, and {requirement.reason} needs it")
