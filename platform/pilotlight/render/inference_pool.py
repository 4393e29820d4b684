"""Objects of an InferencePool: the pool of a workload's pods, and its endpoint picker with what that may read. Pure."""

from typing import Any, Final

from pilotlight.k8s import names
from pilotlight.plan.types import EndpointPicker, Plan, Workload
from pilotlight.render import http_routes

Json = Any
GROUP: Final = "inference.networking.k8s.io"
KIND: Final = "InferencePool"
PORT, HEALTH_PORT, METRICS_PORT = 9002, 9003, 9090  # of the picker's image
RBAC: Final = "rbac.authorization.k8s.io"
READ: Final = ("get", "list", "watch")
RULES: Final = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": READ},
    {"apiGroups": [GROUP], "resources": ["inferencepools"], "verbs": READ},
    {"apiGroups": ["inference.networking.x-k8s.io"], "resources": ["inferenceobjectives", "inferencemodelrewrites"],
     "verbs": READ},
)  # fmt: skip
# Of several replicas one is active.
LEADER_RULES: Final = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*READ, "create", "update", "patch"]},
)
LABEL_ENGINE: Final = "inference.networking.k8s.io/engine-type"  # whose metrics a pod has; vLLM's without it
SECURITY: Final = {
    "allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip


def objects_of(plan: Plan) -> list[Json]:
    """Return a pool and its picker for the entry and, during a canary, for its other variant."""
    picker = plan.endpoint_picker
    backends = http_routes.backends_of(plan) if picker is not None else []
    return [document for work, _ in backends for document in _pool(plan, work, picker)] if picker else []


def pod_labels(plan: Plan, work: Workload) -> dict[str, str]:
    """Return the label by which the picker reads the metrics of SGLang."""
    is_sglang = plan.endpoint_picker is not None and "sglang" in str(work.template["spec"]["containers"][0])
    return {LABEL_ENGINE: "sglang"} if is_sglang else {}


def _pool(plan: Plan, work: Workload, picker: EndpointPicker) -> list[Json]:
    name = names.truncate(f"{work.name}-epp")
    labels = {**plan.labels, "app.kubernetes.io/component": "endpoint-picker"}
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels}
    pool = {
        "selector": {"matchLabels": http_routes.service_selector_of(work)},
        "targetPorts": [{"number": work.port}],
        "endpointPickerRef": {"name": name, "port": {"number": PORT}, "failureMode": "FailOpen"},
    }
    rules = [*RULES, *(LEADER_RULES if picker.replicas > 1 else ())]
    account = {"kind": "ServiceAccount", "name": name, "namespace": plan.namespace}
    ports = [{"name": "grpc", "port": PORT, "targetPort": PORT, "protocol": "TCP", "appProtocol": "http2"}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata,
         "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name}, "subjects": [account]},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
         "spec": {"type": "ClusterIP", "selector": names.selector(name), "ports": ports}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
         "spec": _picker(plan, work, name, picker)},
        {"apiVersion": f"{GROUP}/v1", "kind": KIND, "metadata": {**metadata, "name": work.name}, "spec": pool},
    ]  # fmt: skip


def _picker(plan: Plan, work: Workload, name: str, picker: EndpointPicker) -> Json:
    """Return the picker's Deployment; its prefix index is in memory, so one replica is active at a time."""
    several = picker.replicas > 1
    arguments = [f"--pool-name={work.name}", f"--pool-namespace={plan.namespace}", f"--pool-group={GROUP}"]
    arguments += ["--zap-encoder=json", "--tracing=false", "--metrics-endpoint-auth=false"]
    arguments += [f"--config-text={picker.plugins}"] if picker.plugins else []
    arguments += ["--ha-enable-leader-election"] if several else []
    container = {
        "name": "epp",
        "ports": [{"name": "grpc", "containerPort": PORT}, {"name": "metrics", "containerPort": METRICS_PORT}],
        "env": [{"name": each, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
                for each, field in (("NAMESPACE", "namespace"), ("POD_NAME", "name"))],
        "readinessProbe": _probe("readiness" if several else "inference-extension"),
        "livenessProbe": _probe("liveness" if several else "inference-extension"),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": SECURITY,
        **picker.container,
        "args": [*arguments, *picker.container.get("args", ())],
    }  # fmt: skip
    labels = {**plan.labels, **picker.labels, **names.selector(name)}
    pod = {**picker.pod, "serviceAccountName": name, "automountServiceAccountToken": True, "containers": [container]}
    return {
        "replicas": picker.replicas,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": names.selector(name)},
        "template": {"metadata": {"labels": labels, "annotations": dict(picker.annotations)}, "spec": pod},
    }


def _probe(service: str) -> Json:
    return {"grpc": {"port": HEALTH_PORT, "service": service}, "initialDelaySeconds": 5, "periodSeconds": 10}
