"""What the cluster must have before a plan can work there: CRDs, Knative feature flags, add-ons, least versions.

Listed offline by `render` and `validate`; checked against the cluster where there is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Capabilities, Plan, Requirement, Workload

Json = Any
FLAG: Final = "kubernetes.podspec-"
MONITORING: Final = "monitoring.coreos.com"

# Pod fields that Knative refuses unless a flag of config-features allows them.
POD_FLAGS: Final[Mapping[str, str]] = {
    "nodeSelector": "nodeselector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "topologySpreadConstraints": "topologyspreadconstraints",
    "runtimeClassName": "runtimeclassname",
    "initContainers": "init-containers",
    "priorityClassName": "priorityclassname",
    "schedulerName": "schedulername",
    "securityContext": "securitycontext",
    "shareProcessNamespace": "shareprocessnamespace",
    "hostIPC": "hostipc",
    "hostPID": "hostpid",
    "hostNetwork": "hostnetwork",
    "hostAliases": "hostaliases",
    "dnsPolicy": "dnspolicy",
    "dnsConfig": "dnsconfig",
}
VOLUME_FLAGS: Final[Mapping[str, str]] = {
    "persistentVolumeClaim": "persistent-volume-claim",
    "hostPath": "volumes-hostpath",
    "csi": "volumes-csi",
    "image": "volumes-image",
    "ephemeral": "volumes-ephemeral",
}
# Allowed by Knative as they are; any other pod field has no flag and is refused by it.
KNATIVE_POD_FIELDS: Final = frozenset(
    ("containers", "volumes", "serviceAccountName", "imagePullSecrets", "enableServiceLinks",
     "automountServiceAccountToken", *POD_FLAGS)
)  # fmt: skip
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
    if any("interceptorRoute" in trigger.metadata for trigger in workload.scaling.triggers):
        yield Requirement("crd", "interceptorroutes.http.keda.sh", f"{workload.role} is woken by the HTTP add-on")
    if any("image" in volume for volume in workload.template["spec"].get("volumes") or ()):
        yield Requirement("version", "Kubernetes >= 1.33", f"{workload.role} mounts a folder of an image volume")


def _pod_flags(workload: Workload) -> Iterator[Requirement]:
    if workload.mode != "serverless":
        return
    spec, role = workload.template["spec"], workload.role
    for field, flag in POD_FLAGS.items():
        if spec.get(field):
            yield Requirement("feature", FLAG + flag, f"{role}: {field}")
    for volume in spec.get("volumes") or ():
        for kind, flag in VOLUME_FLAGS.items():
            if kind in volume:
                yield Requirement("feature", FLAG + flag, f"{role}: volume {volume['name']}")
    for container in spec["containers"]:
        for variable in container.get("env") or ():
            if {"fieldRef", "resourceFieldRef"} & (variable.get("valueFrom") or {}).keys():
                yield Requirement("feature", f"{FLAG}fieldref", f"{role}: variable {variable['name']}")
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
        if requirement.kind == "feature" and requirement.name not in capabilities.features:
            ledger.warn("PL355", "spec", f"Knative's {requirement.name} is off, and {requirement.reason} needs it")
