"""Objects as a cluster shows them, with as much in them as the tests are about."""

from collections.abc import Mapping
from typing import Any

from pilotlight.k8s import names

Json = Any


def labels(workload: str, role: str = "predictor", **more: str) -> dict[str, str]:
    service = workload.rpartition("-")[0]
    return {names.LABEL_SERVICE: service, names.LABEL_WORKLOAD: workload, "app.kubernetes.io/component": role, **more}


def knative(
    workload: str, revision: str, traffic: Json = (), status: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": workload, "namespace": "default", "labels": labels(workload), "generation": 1},
        "spec": {
            "template": {"metadata": {"name": revision, "annotations": {}}, "spec": {"containers": []}},
            "traffic": list(traffic) or [{"revisionName": revision, "latestRevision": False, "percent": 100}],
        },
        "status": {"observedGeneration": 1, **(status or {})},
    }


def deployment(workload: str, revision: str, replicas: int | None = 1, **status: Json) -> dict[str, Json]:
    counts = {"observedGeneration": 1, "replicas": replicas or 0, "updatedReplicas": replicas or 0}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": workload, "namespace": "default", "labels": labels(workload), "generation": 1},
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "template": {"metadata": {"labels": labels(workload, **{names.LABEL_REVISION: revision})}, "spec": {}},
        },
        "status": {**counts, **status},
    }


def scaled_object(workload: str, *triggers: str, least: int = 1, most: int = 4) -> dict[str, Json]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": workload, "namespace": "default", "labels": labels(workload)},
        "spec": {
            "scaleTargetRef": {"name": workload},
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "triggers": [{"type": kind} for kind in triggers],
        },
    }


def route(service: str, *backends: tuple[str, int]) -> dict[str, Json]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": service, "namespace": "default", "labels": {names.LABEL_SERVICE: service}},
        "spec": {
            "hostnames": [f"{service}-default.example.com"],
            "rules": [{"backendRefs": [{"name": name, "port": 80, "weight": share} for name, share in backends]}],
        },
    }


def pod(
    workload: str, revision: str, *, ready: bool = False, name: str = "", container: Mapping[str, Json] | None = None,
    conditions: Json = (), serverless: bool = False,
) -> dict[str, Json]:  # fmt: skip
    own = {"serving.knative.dev/revision": revision} if serverless else {names.LABEL_REVISION: revision}
    status = {"name": "kserve-container", "image": "pilotlight/predictor:0.1.0", "restartCount": 0, "state": {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or f"{revision}-x", "namespace": "default", "labels": labels(workload, **own)},
        "spec": {"containers": [{"name": "kserve-container", "resources": {"limits": {"memory": "512Mi"}}}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}, *conditions],
            "containerStatuses": [{**status, **(container or {})}],
        },
    }


def knative_revision(workload: str, revision: str, ready: str, active: str = "True", **status: Json) -> dict[str, Json]:
    made = {"serving.knative.dev/service": workload}
    told = [{"type": "Ready", "status": ready}, {"type": "Active", "status": active}]
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Revision",
        "metadata": {"name": revision, "namespace": "default", "labels": labels(workload, **made)},
        "status": {"conditions": told, **status},
    }
