"""Every object name and label set of a service, in one place: plan decides with them, render only writes them.

Kubernetes allows 63 characters where a name becomes a label or a host. Knative puts `latest-` before a workload's name
and a revision's hash behind it, LeaderWorkerSet and StatefulSet append numbers, so workloads stop at 46. A name that is
too long keeps its beginning and ends in a hash of the whole: two long names never become one.
"""

import hashlib
from typing import Final

LIMIT: Final = 63
WORKLOAD_LIMIT: Final = 46
DOMAIN: Final = "pilotlight.dev"

LABEL_WORKLOAD: Final = f"{DOMAIN}/workload"
LABEL_REVISION: Final = f"{DOMAIN}/revision"
LABEL_SERVICE: Final = f"{DOMAIN}/service"
LABEL_VISIBILITY: Final = "networking.knative.dev/visibility"

# Of the kinds that our chart installs: nobody else acts on their objects. The category is the same mark for whoever
# may not read definitions, and lists all of them: kubectl get pilotlight.
ANNOTATION_DEFINITION: Final = f"{DOMAIN}/crd"
CATEGORY: Final = "pilotlight"

# What `scale` and `traffic` have set by hand, as JSON on the workload's object: minReplicas, maxReplicas, traffic.
ANNOTATION_OVERRIDES: Final = f"{DOMAIN}/overrides"

# Of the Service that leads to our gateway: which workloads answer for it, with their shares, as "llama-engine=80,…".
ANNOTATION_SHARES: Final = f"{DOMAIN}/shares"

# Who may ask and how often. They stay on the workload's object, where the gateway's control side reads them.
ANNOTATION_TOKENS: Final = f"{DOMAIN}/auth-tokens-sha256"  # comma-separated SHA-256 of bearer tokens, in hex
ANNOTATION_JWT_KEYS: Final = f"{DOMAIN}/auth-jwt-jwks"  # a JWKS document as text
ANNOTATION_JWT_ISSUER: Final = f"{DOMAIN}/auth-jwt-issuer"
ANNOTATION_JWT_AUDIENCE: Final = f"{DOMAIN}/auth-jwt-audience"
ANNOTATION_JWT_SCOPE: Final = f"{DOMAIN}/auth-jwt-scope"  # one that a token must have
ANNOTATION_RATE: Final = f"{DOMAIN}/rate-limit"  # "100/1m": requests per client and time
ACCESS_ANNOTATIONS: Final = (
    ANNOTATION_TOKENS, ANNOTATION_JWT_KEYS, ANNOTATION_JWT_ISSUER, ANNOTATION_JWT_AUDIENCE, ANNOTATION_JWT_SCOPE,
    ANNOTATION_RATE,
)  # fmt: skip
ACCESS_PREFIXES: Final = (f"{DOMAIN}/auth", f"{DOMAIN}/rate")  # whatever begins so means to close a door

# What a document may say beside: nothing else under our domain means anything, so anything else is a slip.
ANNOTATION_TRIGGERS: Final = f"{DOMAIN}/triggers"  # "latency=0.5, queue-depth=4"
ANNOTATION_FORMULA: Final = f"{DOMAIN}/scaling-formula"
ANNOTATION_FORMULA_TARGET: Final = f"{DOMAIN}/scaling-target"
ANNOTATION_WAKE_BY: Final = f"{DOMAIN}/wake-by"  # "gateway" or "http-add-on": who holds requests for it at zero
ANNOTATION_SIZE: Final = f"{DOMAIN}/model-size"
ANNOTATION_CANARY: Final = f"{DOMAIN}/canary"  # how its next release proves itself, as YAML: canary/block.py
ANNOTATION_PARK: Final = f"{DOMAIN}/park"  # "true": its predictor gives GPU memory back while nobody asks
ANNOTATION_PREDICTOR: Final = f"{DOMAIN}/predictor"  # of a runtime: its container is our predictor
ANNOTATION_PLANNED_WITH: Final = f"{DOMAIN}/planned-with"  # of a stored release: the flags of its deploy
# Of a stored release: "both" while a canary is judged. Either side can be asked by its tag, and the previous one stays
# when the new one has all requests, until it is let go.
ANNOTATION_SIDES: Final = f"{DOMAIN}/sides"
NOTES: Final = (ANNOTATION_PLANNED_WITH, ANNOTATION_SIDES)  # written by us, into what is kept of a document
COMPONENT_ANNOTATIONS: Final = (
    ANNOTATION_TRIGGERS, ANNOTATION_FORMULA, ANNOTATION_FORMULA_TARGET, ANNOTATION_WAKE_BY
)  # fmt: skip
SERVICE_ANNOTATIONS: Final = (
    *ACCESS_ANNOTATIONS, *COMPONENT_ANNOTATIONS, ANNOTATION_SIZE, ANNOTATION_CANARY, ANNOTATION_PARK, *NOTES
)  # fmt: skip
CATALOGUE_ANNOTATIONS: Final = (ANNOTATION_PREDICTOR, ANNOTATION_SIZE)

TAG_LATEST: Final = "latest"
TAG_PREVIOUS: Final = "prev"

# What each project's users select pods by.
SERVICE_LABELS: Final = {
    "ome": ("ome.io/inferenceservice", "serving.ome.io/inferenceservice"),
    "kserve": ("serving.kserve.io/inferenceservice",),
}


def fit(name: str, limit: int = LIMIT) -> str:
    """The name itself, or its beginning with six hex digits of its hash."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: limit - 7].rstrip('-.')}-{digest}"


def workload(service: str, role: str, variant: str = "") -> str:
    """`llama-engine`; a canary side by side with it is `llama-blue-engine`, as KServe names it."""
    return fit(f"{service}-{variant}-{role}" if variant else f"{service}-{role}", WORKLOAD_LIMIT)


def revision(workload_name: str, content: str) -> str:
    """`llama-engine-1f3a9c07`: same content, same name. Knative demands the service's name in front."""
    return f"{workload_name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def service_account(service: str) -> str:
    return fit(service)


def entry_service(service: str) -> str:
    """The address of the whole service in the cluster: `http://llama.namespace.svc`."""
    return fit(service)


def headless(workload_name: str) -> str:
    return fit(f"{workload_name}-pods")


def scaled_object(workload_name: str) -> str:
    return workload_name


def route(service: str) -> str:
    return fit(service)


def interceptor_route(workload_name: str) -> str:
    return workload_name


def monitor(workload_name: str) -> str:
    return workload_name


def rules(service: str) -> str:
    return fit(service)


def service_labels(group: str, service: str) -> dict[str, str]:
    """On every object of a service."""
    return {
        "app.kubernetes.io/name": service,
        "app.kubernetes.io/managed-by": "pilotlight",
        LABEL_SERVICE: service,
        **dict.fromkeys(SERVICE_LABELS[group], service),
    }


def pod_labels(group: str, service: str, role: str, workload_name: str) -> dict[str, str]:
    """On every pod; `component` is what both projects' dashboards group by."""
    return {
        **service_labels(group, service),
        "app.kubernetes.io/component": role,
        "component": role,
        LABEL_WORKLOAD: workload_name,
    }


def selector(workload_name: str) -> dict[str, str]:
    """What a Service, a Deployment or a budget selects: unique to the workload within its namespace."""
    return {LABEL_WORKLOAD: workload_name}
