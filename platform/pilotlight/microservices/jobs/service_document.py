"""A microservice as an InferenceService: one stateful replica with a port of its own and no route of a gateway. Pure.
The shell command is the same on every target. Secrets are references to the service's own Secret, whose values are set
apart from the document.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pilotlight import __version__, contract
from pilotlight.errors import UsageError
from pilotlight.k8s import names
from pilotlight.microservices.jobs.host_ports import LOOPBACK, is_own
from pilotlight.microservices.registry.container_command import fetched_model_path
from pilotlight.microservices.registry.records import PLATFORMS, Job
from pilotlight.targets.kubernetes.job_options import CLAIM_PATH

Json = Any
GRACE_S: Final = 40  # a predictor drains within 30
FOREIGN_GRACE_S: Final = 10  # as `docker stop`: the shell that starts a server of others passes no signal on
START_S: Final = 86400  # without a listener so long it has failed
GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "1Gi"  # requested, so that the plan adds no limit
SHARED_MEMORY: Final = "1Gi"  # of a pod
KUBERNETES: Final = "kubernetes"
MOUNTS: Final = "mounts"  # option of targets with containers
LABEL: Final = f"{names.DOMAIN}/microservice"
_MODES: Final = {"": False, "rw": False, "ro": True}


def service_name(job_id: str) -> str:
    """Return the name of the service, with a prefix: it must begin with a letter."""
    return f"ims-{job_id}"


def has_sockets(job: Job, target: str) -> bool:
    """Return whether its replica listens on unix sockets of its user in place of the port."""
    return job.closed and target == "local"


def service_document(job: Job, target: str, gpus: int) -> str:
    """Return the document for a target; `gpus` are those that it gets there."""
    mounts = _mounts(job.options.get(MOUNTS, "")) if PLATFORMS[target].mounts_by_document else []
    if job.fetch:
        mount = {"name": "model", "mountPath": fetched_model_path(job.id), "readOnly": True}
        mounts.append((mount, {"name": "model", "emptyDir": {}}))
    pull = job.options.get("image_pull_secret") if target == KUBERNETES else None
    if target == KUBERNETES:
        mounts += _cluster_mounts(job)
    predictor = {
        "minReplicas": 1,
        "maxReplicas": 1,
        "terminationGracePeriodSeconds": GRACE_S if is_own(job) else FOREIGN_GRACE_S,
        "containers": [_container(job, target, gpus) | {"volumeMounts": [mount for mount, _ in mounts]}],
        "volumes": [volume for _, volume in mounts],
        **({"initContainers": [_fetch(job)]} if job.fetch else {}),
        **({"imagePullSecrets": [{"name": pull}]} if pull else {}),
    }
    # A load balancer's address is public in most clouds; clients of the API go through that.
    public = {names.ANNOTATION_EXPOSE: "LoadBalancer"} if target == KUBERNETES and not job.closed else {}
    return json.dumps({
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": service_name(job.id),
            "labels": {names.LABEL_VISIBILITY: "cluster-local", LABEL: job.id},
            "annotations": {
                "serving.kserve.io/deploymentMode": "Stateful",
                **({names.ANNOTATION_ISOLATION: job.isolation} if job.isolation else {}),
                **public,
            },
        },
        "spec": {"predictor": predictor},
    })  # fmt: skip


def _container(job: Job, target: str, gpus: int) -> dict[str, Json]:
    words = ["/bin/sh", "-c", _literal(job.command)]
    host_ip = LOOPBACK if job.closed or target == "local" else "0.0.0.0"  # noqa: S104 - as the scripts publish it
    # Other users of the machine reach a port of loopback: a process that is closed has sockets.
    published = {"hostPort": job.host_port, "hostIP": host_ip}
    if target == KUBERNETES or has_sockets(job, target) or not job.host_port:
        published = {}
    return {
        "name": job.id,
        "image": job.image,
        # Our own entry point has nothing to prepare.
        **({"command": words} if is_own(job) or PLATFORMS[target].replaces_entry_point else {"args": words}),
        "env": _variables(job),
        "ports": [{"containerPort": job.port, **published}],
        # It listens before its model is loaded, or much later: only its own status says more.
        "startupProbe": {"tcpSocket": {"port": job.port}, "periodSeconds": 1, "failureThreshold": START_S},
        "readinessProbe": {"tcpSocket": {"port": job.port}, "periodSeconds": 2},
        **_cluster_rights(job, target),
        "resources": _resources(job, target, gpus),
    }


def _resources(job: Job, target: str, gpus: int) -> dict[str, Json]:
    wanted = {name: job.options.get(name) for name in ("cpu", "memory")} if target == KUBERNETES else {}
    requests = {"memory": MEMORY, **{name: amount for name, amount in wanted.items() if amount}}
    limits = {**({"memory": wanted["memory"]} if wanted.get("memory") else {}), **({GPU: str(gpus)} if gpus else {})}
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _cluster_rights(job: Job, target: str) -> dict[str, Json]:
    """Return the security context of the predictor on a cluster; other images may need root."""
    if target != KUBERNETES or not contract.is_predictor_image(job.image):
        return {}
    rights = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
    return {"securityContext": rights}


def _cluster_mounts(job: Job) -> list[tuple[dict[str, Json], dict[str, Json]]]:
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    mounts = [({"name": "shared-memory", "mountPath": "/dev/shm"}, memory)]  # noqa: S108 - the container's own
    # A fetched model has its mount below CLAIM_PATH, where none can be made in a claim that is read-only.
    if (claim := job.options.get("volume_claim")) and not job.fetch:
        volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        mounts.append(({"name": "models", "mountPath": CLAIM_PATH}, volume))
    return mounts


def _fetch(job: Job) -> dict[str, Json]:
    """Return the init container that fetches the model, for an image that reads no stores."""
    return {
        "name": "fetch-model",
        "image": job.fetch_image or f"{contract.LOCAL_CAPABILITIES['image']}:{__version__}",
        "command": ["python", "-m", "pilotlight_predictor", "fetch", job.fetch, fetched_model_path(job.id)],
        "env": _variables(job),
        "volumeMounts": [{"name": "model", "mountPath": fetched_model_path(job.id)}],
    }


def _variables(job: Job) -> list[dict[str, Json]]:
    plain: Mapping[str, str] = {**job.env, **({"INFERENCE_MICROSERVICE": "true"} if is_own(job) else {})}
    values: list[dict[str, Json]] = [{"name": name, "value": _literal(value)} for name, value in plain.items()]
    references = ((name, {"name": service_name(job.id), "key": name}) for name in job.secrets)
    return values + [{"name": name, "valueFrom": {"secretKeyRef": key}} for name, key in references]


def _literal(text: str) -> str:
    """Escape `$(NAME)`, which Kubernetes expands."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _mounts(option: str) -> list[tuple[dict[str, Json], dict[str, Json]]]:
    """Return mount and volume of each `SOURCE:PATH[:ro]`."""
    found = []
    for number, text in enumerate(filter(None, option.split(","))):
        source, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not (source.startswith("/") and path.startswith("/")) or mode not in _MODES:
            raise UsageError(f"mounts = {text}, must be FOLDER:PATH or FOLDER:PATH:ro, both absolute")
        name = f"mount-{number}"
        found.append((
            {"name": name, "mountPath": path, "readOnly": _MODES[mode]},
            {"name": name, "hostPath": {"path": source}},
        ))  # fmt: skip
    return found
