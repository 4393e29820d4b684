"""Kubernetes objects of a job: StatefulSet, Service and Secret, all of one name. Pure; kubernetes.py applies them.

Values of secrets are in the Secret only; the pod refers to them.
"""

from collections.abc import Mapping
from typing import Any, Final

from pilotlight import contract, names
from pilotlight.microservices.model import Job

Json = Any
Document = dict[str, Json]
LABEL: Final = f"{names.DOMAIN}/microservice"
LABEL_ARCH: Final = f"{names.DOMAIN}/network-arch"
GPU: Final = "nvidia.com/gpu"
SHARED_MEMORY: Final = "1Gi"
GRACE_S: Final = 40
MODELS: Final = "/models"  # where a volume claim is mounted
# Of a job's objects, as they are deleted: the StatefulSet first, so that nothing brings a pod back.
KINDS: Final = (("apps/v1", "StatefulSet"), ("v1", "Service"), ("v1", "Secret"))


def name_of(job_id: str) -> str:
    """Return the objects' name, with a prefix: a Service's name must begin with a letter."""
    return f"ims-{job_id}"


def labels(job: Job) -> dict[str, str]:
    return {
        LABEL: job.id, LABEL_ARCH: job.network_arch, "app.kubernetes.io/managed-by": "pilotlight",
        "app.kubernetes.io/component": "inference-microservice",
    }  # fmt: skip


def selector(job_id: str) -> str:
    return f"{LABEL}={job_id}"


def stateful_set(job: Job, namespace: str, gpus: bool) -> Document:
    """Return the StatefulSet. `gpus`: whether the cluster has any; the predictor runs without them too."""
    name = name_of(job.id)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels(job)},
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "selector": {"matchLabels": {LABEL: job.id}},
            "template": {"metadata": {"labels": labels(job)}, "spec": _pod(job, gpus)},
        },
    }


def _pod(job: Job, gpus: bool) -> Document:
    shared = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    claim = job.options.get("volume_claim")
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    pull = job.options.get("image_pull_secret")
    return {
        "containers": [_container(job, gpus)],
        "volumes": [shared, *([volume] if claim else [])],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        **({"imagePullSecrets": [{"name": pull}]} if pull else {}),
    }


def _container(job: Job, gpus: bool) -> Document:
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108 - the container's own
    if job.options.get("volume_claim"):
        mounts.append({"name": "models", "mountPath": MODELS})
    return {
        "name": job.id,
        "image": job.image,
        "command": ["/bin/sh", "-c", job.command],
        "env": _variables(job),
        "ports": [{"name": "http", "containerPort": job.port}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 2},
        "resources": _resources(job, gpus),
        "securityContext": _security(job),
        "volumeMounts": mounts,
    }


def _variables(job: Job) -> list[Document]:
    plain = [{"name": name, "value": value} for name, value in job.env.items()]
    return [
        *plain,
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": name_of(job.id), "key": name}}}
            for name in job.secrets
        ),
    ]


def _resources(job: Job, gpus: bool) -> Document:
    requests = {name: job.options[name] for name in ("cpu", "memory") if job.options.get(name)}
    limits = {"memory": requests["memory"]} if "memory" in requests else {}
    limits |= {GPU: str(job.num_gpus)} if gpus else {}
    return {**({"requests": requests} if requests else {}), **({"limits": limits} if limits else {})}


def _security(job: Job) -> Document:
    """Return the security context: restricted for the predictor; other images may need another user."""
    if not contract.is_predictor_image(job.image):
        return {"allowPrivilegeEscalation": False}
    return {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}


def service(job: Job, namespace: str) -> Document:
    """Return the Service. It routes to the pod before it is ready, since clients read its status while it loads.

    A load balancer's address is public in most clouds.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name_of(job.id), "namespace": namespace, "labels": labels(job)},
        "spec": {
            "type": "ClusterIP" if job.closed else "LoadBalancer",
            "selector": {LABEL: job.id},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "http", "port": job.port, "targetPort": "http"}],
        },
    }


def secret(job: Job, namespace: str, environ: Mapping[str, str]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name_of(job.id), "namespace": namespace, "labels": labels(job)},
        "type": "Opaque",
        "stringData": {name: environ.get(name, "") for name in job.secrets},
    }


def owned_by(owner: Document) -> Document:
    """Return a merge patch with an owner reference, so that deleting the StatefulSet deletes the object."""
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }  # fmt: skip
    return {"metadata": {"ownerReferences": [reference]}}


def parts(job_id: str, namespace: str) -> list[Document]:
    """Return all objects of a job, for deletion."""
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name_of(job_id), "namespace": namespace}}
        for version, kind in KINDS
    ]
