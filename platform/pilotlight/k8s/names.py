"""Object names, labels and annotations of a service.

Kubernetes allows 63 characters where a name becomes a label or a host. Knative puts `latest-` before a workload's name
and a revision's hash after it, LeaderWorkerSet and StatefulSet append numbers, so workload names end at 46. A longer
name is truncated and gets a hash of the whole, so that it stays unique.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

LIMIT: Final = 63
WORKLOAD_LIMIT: Final = 46
DOMAIN: Final = "pilotlight.dev"
# Components in the order in which a request passes them; the first present one is the entry.
ENTRY_ROLES: Final = ("router", "transformer", "engine", "predictor")
MODEL_ROLES: Final = ("engine", "decoder", "predictor")  # components that load the model

LABEL_WORKLOAD: Final = f"{DOMAIN}/workload"
LABEL_REVISION: Final = f"{DOMAIN}/revision"
LABEL_SERVICE: Final = f"{DOMAIN}/service"
LABEL_GATEWAY: Final = f"{DOMAIN}/gateway"  # on the pods of the gateway
LABEL_VISIBILITY: Final = "networking.knative.dev/visibility"

# Mark the CRDs that our chart installs. The category shows the same without the right to read CRDs, and lists all
# objects: kubectl get pilotlight.
ANNOTATION_DEFINITION: Final = f"{DOMAIN}/crd"
CATEGORY: Final = "pilotlight"
FINALIZER: Final = f"{DOMAIN}/controller"  # on InferenceServices that the controller reconciles

# Live overrides of `scale` and `traffic`, as JSON on the workload's object: minReplicas, maxReplicas, traffic.
ANNOTATION_OVERRIDES: Final = f"{DOMAIN}/overrides"

# On the Service that is an alias of our gateway: its workloads with their percent, as "llama-engine=80,…".
ANNOTATION_SHARES: Final = f"{DOMAIN}/shares"

# Access rules and rate limits, copied to the workload's object, where the gateway reads them, and into a Secret.
ANNOTATION_TOKENS: Final = f"{DOMAIN}/auth-tokens-sha256"  # comma-separated [NAME=]SHA-256 of bearer tokens, in hex
ANNOTATION_JWT_KEYS: Final = f"{DOMAIN}/auth-jwt-jwks"  # a JWKS document as text
ANNOTATION_JWT_ISSUER: Final = f"{DOMAIN}/auth-jwt-issuer"
ANNOTATION_JWT_AUDIENCE: Final = f"{DOMAIN}/auth-jwt-audience"
ANNOTATION_JWT_SCOPE: Final = f"{DOMAIN}/auth-jwt-scope"  # required scope of a token
ANNOTATION_JWT_TEAM: Final = f"{DOMAIN}/auth-jwt-team-claim"  # claim with the caller's team
ANNOTATION_RATE: Final = f"{DOMAIN}/rate-limit"  # "100/1m": requests per client and time
ANNOTATION_QUOTA: Final = f"{DOMAIN}/token-quota"  # "20000/1m, 1000000/1d": tokens per caller and time
ACCESS_ANNOTATIONS: Final = (
    ANNOTATION_TOKENS, ANNOTATION_JWT_KEYS, ANNOTATION_JWT_ISSUER, ANNOTATION_JWT_AUDIENCE, ANNOTATION_JWT_SCOPE,
    ANNOTATION_JWT_TEAM, ANNOTATION_RATE, ANNOTATION_QUOTA,
)  # fmt: skip
# Their file in the pods of a service, from a Secret: its volume, folder and key.
ACCESS_VOLUME: Final = "access"
ACCESS_DIR: Final = "/etc/pilotlight/access"
ACCESS_KEY: Final = "access.json"
ACCESS_PREFIXES: Final = (f"{DOMAIN}/auth", f"{DOMAIN}/rate", f"{DOMAIN}/token")  # prefixes of access rules

# Names of a service's model behind the gateway's /v1, separated by commas; its engine knows the first. Empty: none.
ANNOTATION_MODEL_NAMES: Final = f"{DOMAIN}/model-names"

# Request log: options beyond those of `logger`, as YAML; on the entry workload's object the complete settings, as JSON.
ANNOTATION_REQUEST_LOG: Final = f"{DOMAIN}/request-log"
ANNOTATION_LOG_SETTINGS: Final = f"{DOMAIN}/request-log-settings"
ANNOTATION_AUDIT: Final = f"{DOMAIN}/audit"  # "true": the gateway records each request in the audit log

# Other annotations of a document; any unknown one under our domain is an error.
ANNOTATION_TRIGGERS: Final = f"{DOMAIN}/triggers"  # "latency=0.5, queue-depth=4"
ANNOTATION_SCHEDULE: Final = f"{DOMAIN}/schedule"  # "0 8 * * 1-5 to 0 18 * * 1-5 Europe/Berlin = 3"
ANNOTATION_FORMULA: Final = f"{DOMAIN}/scaling-formula"
ANNOTATION_FORMULA_TARGET: Final = f"{DOMAIN}/scaling-target"
ANNOTATION_WAKE_BY: Final = f"{DOMAIN}/wake-by"  # activator at zero: "gateway" or "http-add-on"
ANNOTATION_SIZE: Final = f"{DOMAIN}/model-size"
ANNOTATION_MODEL_CACHE: Final = f"{DOMAIN}/model-cache"  # "pvc://CLAIM" or "hostPath:/path", shared by revisions
ANNOTATION_CANARY: Final = f"{DOMAIN}/canary"  # canary policy of its next release, as YAML: spec/canary_policy.py
ANNOTATION_PARK: Final = f"{DOMAIN}/park"  # "true": it frees GPU memory while idle
# Memory that a replica needs on each of its GPUs, which others may then share; "auto": as measured. On one machine.
ANNOTATION_GPU_MEMORY: Final = f"{DOMAIN}/gpu-memory"
ANNOTATION_GPU_PINNED: Final = f"{DOMAIN}/gpu-pinned"  # "true": it never leaves its GPU for another service
ANNOTATION_GPU_RESIDENCE: Final = f"{DOMAIN}/gpu-residence"  # "30s": it stays at least so long after it is ready
# "LoadBalancer": the entry Service of a raw or stateful service is one, on the port of its container.
ANNOTATION_EXPOSE: Final = f"{DOMAIN}/expose"
# On documents and pod templates of the target local: how a model of others is run, always from a private copy. "data":
# without code of its own; "sandbox": with code, in a sandbox.
ANNOTATION_ISOLATION: Final = f"{DOMAIN}/isolation"
ISOLATIONS: Final = ("data", "sandbox")
ANNOTATION_MEMORY_CHECK: Final = f"{DOMAIN}/memory-check"  # "off": a model that does not fit its GPUs is no error
# For the controller of a cluster. "true": it changes nothing of the service. Another value: plan for what the cluster
# has now.
ANNOTATION_PAUSED: Final = f"{DOMAIN}/paused"
ANNOTATION_REPLAN: Final = f"{DOMAIN}/replan"
ANNOTATION_IMAGE_VARIANT: Final = f"{DOMAIN}/image-variant"  # of our image; absent: by model format and devices
IMAGE_VARIANTS: Final = ("cpu", "cuda", "sklearn", "torch", "text")
ANNOTATION_PREDICTOR: Final = f"{DOMAIN}/predictor"  # on a runtime: its container is our predictor
# On a document or a runtime: how engine and decoder hand over KV caches, where their arguments do not show it.
ANNOTATION_DISAGGREGATION: Final = f"{DOMAIN}/disaggregation"
DISAGGREGATIONS: Final = ("sglang", "vllm", "llm-d")
ANNOTATION_PLANNED_WITH: Final = f"{DOMAIN}/planned-with"  # on a stored release: the flags of its deploy
# On a stored release and its pod templates: what its model URIs contained when it was deployed, as JSON.
ANNOTATION_PINS: Final = f"{DOMAIN}/model-pins"
# On pod templates: the target whose launcher runs its replicas, and the options of that target as JSON; absent: the
# target is local or kubernetes.
ANNOTATION_TARGET: Final = f"{DOMAIN}/target"
ANNOTATION_TARGET_OPTIONS: Final = f"{DOMAIN}/target-options"
# On a stored release: "both" during a canary analysis. Each variant is reachable by its tag, and the previous one stays
# at 100 percent too, until it is released.
ANNOTATION_SIDES: Final = f"{DOMAIN}/sides"
# On a stored release of an LLMInferenceService, which has no field for it: traffic of its new revision or adapters.
ANNOTATION_CANARY_PERCENT: Final = f"{DOMAIN}/canary-traffic-percent"
RELEASE_ANNOTATIONS: Final = (
    ANNOTATION_PLANNED_WITH, ANNOTATION_SIDES, ANNOTATION_PINS, ANNOTATION_CANARY_PERCENT
)  # fmt: skip
COMPONENT_ANNOTATIONS: Final = (
    ANNOTATION_TRIGGERS, ANNOTATION_SCHEDULE, ANNOTATION_FORMULA, ANNOTATION_FORMULA_TARGET, ANNOTATION_WAKE_BY
)  # fmt: skip
SERVICE_ANNOTATIONS: Final = (
    *ACCESS_ANNOTATIONS, *COMPONENT_ANNOTATIONS, ANNOTATION_MODEL_NAMES, ANNOTATION_SIZE, ANNOTATION_CANARY,
    ANNOTATION_REQUEST_LOG, ANNOTATION_AUDIT,
    ANNOTATION_PARK, ANNOTATION_MODEL_CACHE, ANNOTATION_EXPOSE, ANNOTATION_ISOLATION, ANNOTATION_MEMORY_CHECK,
    ANNOTATION_DISAGGREGATION, ANNOTATION_PAUSED, ANNOTATION_REPLAN, ANNOTATION_IMAGE_VARIANT, ANNOTATION_GPU_MEMORY,
    ANNOTATION_GPU_PINNED, ANNOTATION_GPU_RESIDENCE, *RELEASE_ANNOTATIONS,
)  # fmt: skip
# Copied to pod templates.
POD_ANNOTATIONS: Final = (
    ANNOTATION_ISOLATION, ANNOTATION_GPU_MEMORY, ANNOTATION_GPU_PINNED, ANNOTATION_GPU_RESIDENCE, ANNOTATION_PARK
)  # fmt: skip
CATALOGUE_ANNOTATIONS: Final = (ANNOTATION_PREDICTOR, ANNOTATION_SIZE, ANNOTATION_DISAGGREGATION)

TAG_LATEST: Final = "latest"
TAG_PREVIOUS: Final = "prev"

# Labels by which users of each project select pods.
SERVICE_LABELS: Final = {
    "ome": ("ome.io/inferenceservice", "serving.ome.io/inferenceservice"),
    "kserve": ("serving.kserve.io/inferenceservice",),
}


def model_names(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the model behind /v1 by the annotations of a workload."""
    return tuple(filter(None, map(str.strip, annotations.get(ANNOTATION_MODEL_NAMES, "").split(","))))


def truncate(name: str, limit: int = LIMIT) -> str:
    """Return the name, or its beginning and six hex digits of its hash if it is too long."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: limit - 7].rstrip('-.')}-{digest}"


def workload(service: str, role: str, variant: str = "") -> str:
    """Return `llama-engine`; of a variant `llama-blue-engine`, as in KServe."""
    return truncate(f"{service}-{variant}-{role}" if variant else f"{service}-{role}", WORKLOAD_LIMIT)


def revision(workload_name: str, content: str) -> str:
    """Return `llama-engine-1f3a9c07`, a hash of the content. Knative requires the service's name as prefix."""
    return f"{workload_name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def access_secret(service: str) -> str:
    """Return the Secret with the access rules that the pods of a service enforce."""
    return truncate(f"{service}-access")


def service_account(service: str) -> str:
    return truncate(service)


def entry_service(service: str) -> str:
    """Return the Service for requests inside the cluster: `http://llama.namespace.svc`."""
    return truncate(service)


def headless(workload_name: str) -> str:
    return truncate(f"{workload_name}-pods")


def route(service: str) -> str:
    return truncate(service)


def rules(service: str) -> str:
    return truncate(service)


def host(template: str, name: str, namespace: str, domain: str) -> str:
    """Return the public host of a service by a template such as `{name}.{namespace}.{domain}`."""
    return template.replace("{name}", name).replace("{namespace}", namespace).replace("{domain}", domain)


def service_labels(group: str, service: str) -> dict[str, str]:
    """Return the labels of every object of a service."""
    return {
        "app.kubernetes.io/name": service,
        "app.kubernetes.io/managed-by": "pilotlight",
        LABEL_SERVICE: service,
        **dict.fromkeys(SERVICE_LABELS[group], service),
    }


def pod_labels(group: str, service: str, role: str, workload_name: str) -> dict[str, str]:
    """Return the labels of every pod; dashboards of both projects group by `component`."""
    return {
        **service_labels(group, service),
        "app.kubernetes.io/component": role,
        "component": role,
        LABEL_WORKLOAD: workload_name,
    }


def selector(workload_name: str) -> dict[str, str]:
    """Return the pod selector of a workload, unique within its namespace."""
    return {LABEL_WORKLOAD: workload_name}
