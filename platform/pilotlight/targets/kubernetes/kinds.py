"""Kinds of objects that a service consists of, and what this account may do with them."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from pilotlight.k8s import names
from pilotlight.targets.kubernetes.client import CONCURRENCY, Cluster, KubeApiError, ResourceKind

Json = Any
T = TypeVar("T")
U = TypeVar("U")

FORBIDDEN: Final = 403
VERBS: Final = ("create", "patch", "delete")  # server-side apply needs the first two, pruning the third
KNATIVE_SERVICE: Final = ("serving.knative.dev/v1", "Service")
DEPLOYMENT: Final = ("apps/v1", "Deployment")
STATEFUL_SET: Final = ("apps/v1", "StatefulSet")
LEADER_WORKER_SET: Final = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
RAY_CLUSTER: Final = ("ray.io/v1", "RayCluster")
SCALED_OBJECT: Final = ("keda.sh/v1alpha1", "ScaledObject")
HPA: Final = ("autoscaling/v2", "HorizontalPodAutoscaler")
HTTP_ROUTE: Final = ("gateway.networking.k8s.io/v1", "HTTPRoute")
REFERENCE_GRANT: Final = ("gateway.networking.k8s.io/v1beta1", "ReferenceGrant")
POD: Final = ("v1", "Pod")
EVENT: Final = ("v1", "Event")
LEASE: Final = ("coordination.k8s.io/v1", "Lease")
KNATIVE_REVISION: Final = ("serving.knative.dev/v1", "Revision")
KNATIVE_ROUTE: Final = ("serving.knative.dev/v1", "Route")
DOMAIN_MAPPING: Final = ("serving.knative.dev/v1beta1", "DomainMapping")

WORKLOADS: Final = (KNATIVE_SERVICE, DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET, RAY_CLUSTER)
# Kinds of rendered and additional objects: those with our label are pruned and deleted.
OWNED: Final = (
    ("v1", "ServiceAccount"), ("v1", "ConfigMap"), ("v1", "PersistentVolumeClaim"), ("v1", "Service"),
    ("networking.k8s.io/v1", "NetworkPolicy"), ("keda.sh/v1alpha1", "TriggerAuthentication"), *WORKLOADS,
    ("policy/v1", "PodDisruptionBudget"), HPA, SCALED_OBJECT, ("http.keda.sh/v1beta1", "InterceptorRoute"), HTTP_ROUTE,
    ("inference.networking.k8s.io/v1", "InferencePool"),
    KNATIVE_ROUTE, DOMAIN_MAPPING,
    ("monitoring.coreos.com/v1", "ServiceMonitor"), ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
)  # fmt: skip
# Of routers that discover pods; who may not list them has written none.
ROLES: Final = (("rbac.authorization.k8s.io/v1", "Role"), ("rbac.authorization.k8s.io/v1", "RoleBinding"))


def selector(name: str) -> str:
    return f"{names.LABEL_SERVICE}={name}"


def is_controlled(document: Mapping[str, Json]) -> bool:
    """Whether a controller owns the object; such objects inherit labels, but are not ours to change."""
    return any(owner.get("controller") for owner in document["metadata"].get("ownerReferences") or ())


def is_endpoint_ready(endpoint: Mapping[str, Json]) -> bool:
    """Whether an endpoint of an EndpointSlice is ready; a missing condition means ready, as in Kubernetes."""
    return (endpoint.get("conditions") or {}).get("ready") is not False


def is_leader(pod: Mapping[str, Json]) -> bool:
    """Whether a pod answers requests: of a group its leader does, which is ready once its workers have joined it."""
    rank, node = labels(pod).get("leaderworkerset.sigs.k8s.io/worker-index", "0"), labels(pod).get("ray.io/node-type")
    return rank == "0" and node in (None, "head")


def labels(document: Mapping[str, Json]) -> Mapping[str, str]:
    return document["metadata"].get("labels") or {}


def condition(document: Mapping[str, Json], kind: str) -> Mapping[str, Json]:
    """Return a condition of an object's status; empty if it has none of this type."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def unless_forbidden(lookup: Callable[[], T], otherwise: U) -> T | U:
    """Return the result of the lookup; `otherwise` if it is forbidden: ordinary users may not read everything."""
    try:
        return lookup()
    except KubeApiError as error:
        if error.code != FORBIDDEN:
            raise
        return otherwise


def missing_permissions(
    cluster: Cluster, wanted: Iterable[tuple[ResourceKind, str]], verbs: Iterable[str] = VERBS
) -> list[tuple[ResourceKind, str, tuple[str, ...]]]:
    """Return the kinds and namespaces with verbs that are not permitted."""
    checks = [(kind, namespace, verb) for kind, namespace in wanted for verb in verbs]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(lambda each: cluster.is_allowed(each[2], each[0], each[1]), checks))
    denials: dict[tuple[ResourceKind, str], tuple[str, ...]] = {}
    for (kind, namespace, verb), allowed in zip(checks, answers, strict=True):
        if not allowed:
            denials[kind, namespace] = (*denials.get((kind, namespace), ()), verb)
    return [(kind, namespace, denied) for (kind, namespace), denied in denials.items()]
