"""Platform kubernetes: a StatefulSet of one pod, a Service of type LoadBalancer on 8080, and a Secret, of one name.

For a microservice of the API the Service is of type ClusterIP, since clients go through the API. The entry stores the
kubeconfig context as `instance_id`, since the current one may change.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Final

from pilotlight import contract
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.k8s import names
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.platforms import Option
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import Cluster, connect
from pilotlight.targets.kubernetes.kinds import missing_permissions, unless_forbidden
from pilotlight.targets.kubernetes.observe import diagnosis
from pilotlight.targets.kubernetes.port_forward import PortForward
from pilotlight.targets.kubernetes.service_route import addresses_of, can_connect
from pilotlight.targets.secret_redaction import redact

Object = dict[str, Any]
Document = Mapping[str, Any]
PORT: Final = 8080
TAIL: Final = 50
POLL_S: Final = 0.5
GUARDED: Final = "nvcr.io/"
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


def stateful_set(job: Job, namespace: str, gpus: bool) -> Object:
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


def _pod(job: Job, gpus: bool) -> Object:
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


def _container(job: Job, gpus: bool) -> Object:
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


def _variables(job: Job) -> list[Object]:
    plain: list[Object] = [{"name": name, "value": value} for name, value in job.env.items()]
    references = ((name, {"name": name_of(job.id), "key": name}) for name in job.secrets)
    return plain + [{"name": name, "valueFrom": {"secretKeyRef": key}} for name, key in references]


def _resources(job: Job, gpus: bool) -> Object:
    requests = {name: job.options[name] for name in ("cpu", "memory") if job.options.get(name)}
    limits = {"memory": requests["memory"]} if "memory" in requests else {}
    limits |= {GPU: str(job.num_gpus)} if gpus else {}
    return {**({"requests": requests} if requests else {}), **({"limits": limits} if limits else {})}


def _security(job: Job) -> Object:
    """Return the security context: restricted for the predictor; other images may need another user."""
    if not contract.is_predictor_image(job.image):
        return {"allowPrivilegeEscalation": False}
    return {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}


def service_manifest(job: Job, namespace: str) -> Object:
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


def secret(job: Job, namespace: str, environ: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name_of(job.id), "namespace": namespace, "labels": labels(job)},
        "type": "Opaque",
        "stringData": {name: environ.get(name, "") for name in job.secrets},
    }


def owned_by(owner: Object) -> Object:
    """Return a merge patch with an owner reference, so that deleting the StatefulSet deletes the object."""
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }  # fmt: skip
    return {"metadata": {"ownerReferences": [reference]}}


def parts(job_id: str, namespace: str) -> list[Object]:
    """Return all objects of a job, for deletion."""
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name_of(job_id), "namespace": namespace}}
        for version, kind in KINDS
    ]


def make(environ: Mapping[str, str]) -> "Kubernetes":
    return Kubernetes(environ)


class Kubernetes:
    name = "kubernetes"
    own_ports = False
    options = (
        Option("namespace", "where it runs", variables=("PILOTLIGHT_NAMESPACE",), default="default"),
        Option("image_pull_secret", "a Secret for the image's registry; nvcr.io needs one", needed_for=GUARDED),
        Option("context", "of the kubeconfig; else its current one", variables=("PILOTLIGHT_CONTEXT",)),
        Option("volume_claim", f"a PersistentVolumeClaim with models, mounted at {MODELS}"),
        Option("cpu", "what it asks for, such as 2 or 500m"),
        Option("memory", "what it asks for and may use, such as 8Gi"),
        Option(
            "address_wait",
            "seconds for a load balancer to give an address; 30, and inside a cluster 0",
            variables=("PILOTLIGHT_ADDRESS_WAIT",),
        ),
    )

    def __init__(self, environ: Mapping[str, str], connected: "Callable[[str], Cluster] | None" = None) -> None:
        """`connected` returns the cluster of a context; empty: of the current one."""
        self._environ = environ
        self._connected = connected or (lambda context: Cluster(connect(context)))
        self._clusters: dict[str, Cluster] = {}

    def preflight(self, job: Job) -> None:
        if job.image.startswith(GUARDED) and not job.options.get("image_pull_secret"):
            raise UsageError(f"kubernetes needs image_pull_secret for {job.image}", "--image-pull-secret NAME")
        _seconds(job, self._environ)
        cluster, namespace = self._cluster(job.options.get("context", "")), _namespace(job)
        denied = missing_permissions(
            cluster, [(cluster.require_kind(*kind), namespace) for kind in KINDS], ("create", "delete")
        )
        if denied:
            kind, _, verbs = denied[0]
            raise PlatformError(f"you may not {' or '.join(verbs)} {kind.plural} in the namespace {namespace}")
        if unless_forbidden(lambda: cluster.get("v1", "Namespace", "", namespace), {}) is None:
            raise UsageError(f"namespace = {namespace}, which the cluster does not have", "--namespace NAME")
        for option, kind_name in (("image_pull_secret", "Secret"), ("volume_claim", "PersistentVolumeClaim")):
            _check_exists(cluster, kind_name, namespace, option, job.options.get(option, ""))
        if not contract.is_predictor_image(job.image) and not _has_gpus(cluster):
            raise PlatformError(f"no node of the cluster has a GPU, and {job.image} needs {job.num_gpus}")

    def start(self, job: Job) -> Entry:
        cluster, namespace = self._cluster(job.options.get("context", "")), _namespace(job)
        try:
            held = cluster.create(secret(job, namespace, self._environ)).document if job.secrets else None
            workload = cluster.create(stateful_set(job, namespace, _has_gpus(cluster))).document
            service = cluster.create(service_manifest(job, namespace)).document
            for part in filter(None, (held, service)):
                cluster.merge(part, owned_by({"apiVersion": "apps/v1", "kind": "StatefulSet", **workload}))
        except PlatformError:
            self._remove(cluster, job.id, namespace)
            raise
        started = utc_now(zone="+00:00")
        url = address(cluster, job.id, namespace, 0.0 if job.closed else _seconds(job, self._environ))
        return Entry(
            "kubernetes", job.network_arch, url, started, None, name_of(job.id),
            job.options.get("context") or self._current_context or None, namespace,
        )  # fmt: skip

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        cluster, namespace = self._of(entry)
        workload = cluster.get(*kinds.STATEFUL_SET, namespace, name_of(job_id))
        if workload is None:
            return PlatformStatus("gone", reason="the cluster has no StatefulSet for it")
        pods = cluster.list(*kinds.POD, namespace, selector(job_id))
        seen = _seen(pods[0], _evidence(cluster, pods[0])) if pods else _without_pod(cluster, workload)
        tail = tuple(redact(line, self._environ) for line in seen.tail)
        return PlatformStatus(seen.state, seen.pod_name, seen.pod_status, redact(seen.reason, self._environ), tail)

    def stop(self, job_id: str, entry: Entry) -> None:
        cluster, namespace = self._of(entry)
        self._remove(cluster, job_id, namespace)

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        """Yield the load balancer's address if it responds, the Service's in the cluster, else a port-forward's."""
        cluster, namespace = self._of(entry)
        name = name_of(job_id)
        service = cluster.get("v1", "Service", namespace, name)
        if service is None:
            raise NotFound(f"the cluster has no Service {name} in {namespace}", "platformctl microservice stop")
        for address in addresses_of(service):
            if can_connect(address, PORT):
                yield _url(address)
                return
        with PortForward(cluster.connection, namespace, f"{name}-0", PORT) as forward:
            yield f"http://127.0.0.1:{forward.port}"

    def _remove(self, cluster: Cluster, job_id: str, namespace: str) -> None:
        for part in parts(job_id, namespace):
            cluster.delete(part)

    def _of(self, entry: Entry) -> tuple[Cluster, str]:
        return self._cluster(entry.instance_id or ""), entry.namespace or "default"

    def _cluster(self, context: str) -> Cluster:
        if context not in self._clusters:
            self._clusters[context] = self._connected(context)
        return self._clusters[context]

    @cached_property
    def _current_context(self) -> str:
        """Empty inside a pod, which has no kubeconfig."""
        from kubernetes import config

        loading: Any = config
        files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        with suppress(config.ConfigException):
            return str(loading.list_kube_config_contexts(files)[1]["name"])
        return ""


def _namespace(job: Job) -> str:
    return job.options.get("namespace") or "default"


def _seconds(job: Job, environ: Mapping[str, str]) -> float:
    text = job.options.get("address_wait") or ("0" if environ.get("KUBERNETES_SERVICE_HOST") else "30")
    try:
        return max(0.0, float(text))
    except ValueError:
        raise UsageError(f"address_wait = {text}, must be a number of seconds") from None


def _check_exists(cluster: Cluster, kind: str, namespace: str, option: str, name: str) -> None:
    if name and unless_forbidden(lambda: cluster.get("v1", kind, namespace, name), {}) is None:
        raise UsageError(f"{option} = {name}, but {namespace} has no {kind} of that name")


def _has_gpus(cluster: Cluster) -> bool:
    """Return whether a node has GPUs; False without permission to list nodes."""
    nodes = unless_forbidden(lambda: cluster.list("v1", "Node"), ())
    return any(str((node["status"].get("allocatable") or {}).get(GPU, "0")) != "0" for node in nodes)


def address(cluster: Cluster, job_id: str, namespace: str, seconds: float) -> str:
    """Return the load balancer's address, else the Service's DNS name in the cluster."""
    end = time.monotonic() + seconds
    while True:
        service = cluster.get("v1", "Service", namespace, name_of(job_id)) or {}
        ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        for each in ingress:
            if host := each.get("ip") or each.get("hostname"):
                return _url(str(host))
        if time.monotonic() >= end:
            return f"http://{name_of(job_id)}.{namespace}.svc.cluster.local:{PORT}"
        time.sleep(POLL_S)


def _url(address: str) -> str:
    return f"http://[{address}]:{PORT}" if ":" in address else f"http://{address}:{PORT}"


def _seen(pod: Document, evidence: diagnosis.Evidence) -> PlatformStatus:
    name, phase = str(pod["metadata"]["name"]), str((pod.get("status") or {}).get("phase") or "Pending")
    cause = diagnosis.diagnose(pod, evidence)
    tail = tuple(evidence.logs[-TAIL:])
    if phase == "Running" and (cause is None or not _ended(pod)):
        return PlatformStatus("running", name, phase, cause.sentence if cause else "", tail)
    if cause is not None:
        return PlatformStatus("failed" if cause.fatal else "pending", name, phase, cause.sentence, tail)
    return PlatformStatus("pending", name, phase, "the pod is being made", tail)


def _ended(pod: Document) -> bool:
    """Return whether its container has terminated and waits for a restart."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    return not any("running" in (each.get("state") or {}) for each in states)


def _without_pod(cluster: Cluster, workload: Document) -> PlatformStatus:
    name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
    refused = diagnosis.pod_creation_failure(_events(cluster, namespace, name))
    return PlatformStatus(
        "failed" if refused else "pending", "", "Pending", refused.sentence if refused else "no pod yet"
    )


def _evidence(cluster: Cluster, pod: Document) -> diagnosis.Evidence:
    metadata = pod["metadata"]
    nodes = unless_forbidden(lambda: cluster.list("v1", "Node"), ())
    events = _events(cluster, metadata["namespace"], metadata["name"])
    return diagnosis.Evidence(events, _log(cluster, pod), nodes)


def _events(cluster: Cluster, namespace: str, name: str) -> list[Document]:
    events = unless_forbidden(lambda: cluster.list(*kinds.EVENT, namespace), ())
    return [each for each in events if (each.get("involvedObject") or {}).get("name") == name]


def _log(cluster: Cluster, pod: Document) -> list[str]:
    """Return the log, of the previous container if that has terminated."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    query = {"container": diagnosis.main_container(pod), "tailLines": str(TAIL)}
    for previous in ("false", "true"):
        with suppress(PlatformError):
            if lines := diagnosis.without_lost_log(cluster.connection.text(path, query | {"previous": previous})):
                return lines
    return []
