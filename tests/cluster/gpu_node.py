"""What the documents of OME's guide expect of a cluster, on the node of the test bed.

GPUs that a device plugin would advertise, models that OME's model agent would have put on the node, one of them in a
claim too, Knative's flags for pods with it, engines by their images' names, and requests that fit this machine.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from tests.cluster.bed.engine_image import engine_image
from tests.cluster.bed.images import import_images
from tests.cluster.bed.places import NODE, ROOT, places
from tests.cluster.real_cluster import Cluster, seconds_until

GPU: Final = "nvidia.com/gpu"
MODELS: Final = Path("/mnt/models")
SMALL: Final = {"pilotlight.dev/requests": "small"}
POLICY: Final = "pilotlight-small-requests"
ADMISSION: Final = "admissionregistration.k8s.io/v1beta1"
# Pods keep everything else that they ask for, GPUs included.
EXPRESSION: Final = """
Object{spec: Object.spec{containers: object.spec.containers.map(each, Object.spec.containers{
  name: each.name,
  resources: Object.spec.containers.resources{requests: {"cpu": "20m", "memory": "64Mi"}}
})}}
"""
FLAGS: Final = ("nodeselector", "tolerations", "persistent-volume-claim")


def is_bed(cluster: Cluster) -> bool:
    return cluster.kubeconfig == places().kubeconfig


@contextmanager
def gpu_node(cluster: Cluster, gpus: int, models: Sequence[str]) -> Iterator[None]:
    """The bed's node with so many GPUs and these models; all of it is taken back."""
    import_images(places(), [engine_image(places())])
    with ExitStack() as stack:
        stack.enter_context(_gpus(cluster, gpus))
        for name in models:
            stack.enter_context(_model(cluster, name))
        stack.enter_context(_knative_flags(cluster))
        cluster.apply(*_small_requests())
        stack.callback(_delete_policy, cluster)
        yield


def new_namespace(cluster: Cluster, stem: str) -> str:
    """One whose pods may mount the node's models, and get small requests."""
    name = cluster.new_namespace(stem)
    labels = {**SMALL, "pod-security.kubernetes.io/enforce": "privileged"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    seconds_until(lambda: _requests_are_small(cluster, name), "pods get small requests")
    return name


def claimed_model(name: str, claim: str) -> list[dict[str, Any]]:
    """A model of the node as a claim, and the ClusterBaseModel that has it there, as OME's users write them.

    Knative 1.15 takes no folder of a node, whatever its flags say; 1.16 does.
    """
    folder = {"path": str(MODELS / name)}
    size = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {**size, "capacity": {"storage": "1Gi"}, "hostPath": folder, "claimRef": {"name": claim}}
    asked = {**size, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": claim}
    catalogue = yaml.safe_load_all((ROOT / "platform/pilotlight/catalogue/models.yaml").read_text())
    (model,) = [each for each in catalogue if each["metadata"]["name"] == name]
    model["spec"]["storage"] = {"storageUri": f"pvc://{claim}"}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": asked},
        model,
    ]


def _requests_are_small(cluster: Cluster, namespace: str) -> bool:
    container = {"name": "one", "image": "dev.local/hello:1", "resources": {"requests": {"memory": "1Ti"}}}
    metadata = {"name": "try", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    said = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(pod))
    return bool(json.loads(said)["spec"]["containers"][0]["resources"]["requests"]["memory"] == "64Mi")


@contextmanager
def _gpus(cluster: Cluster, count: int) -> Iterator[None]:
    """As https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/ has it."""
    path = "/status/capacity/nvidia.com~1gpu"
    words = ("patch", "node", NODE, "--subresource=status", "--type=json", "-p")
    cluster.kubectl(*words, json.dumps([{"op": "add", "path": path, "value": str(count)}]))
    try:
        seconds_until(lambda: _allocatable(cluster) == str(count), "the GPUs are allocatable")
        yield
    finally:
        cluster.kubectl(*words, json.dumps([{"op": "remove", "path": path}]))


def _allocatable(cluster: Cluster) -> Any:
    return cluster.get("node", NODE)["status"]["allocatable"].get(GPU)


@contextmanager
def _model(cluster: Cluster, name: str) -> Iterator[None]:
    """A model on the node: its folder, and the label by which pods find the node."""
    folder, label = MODELS / name, f"models.ome.io/clusterbasemodel.{name}"
    folder.mkdir(parents=True, exist_ok=True)
    cluster.kubectl("label", "node", NODE, f"{label}=Ready", "--overwrite")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", NODE, f"{label}-")
        folder.rmdir()


@contextmanager
def _knative_flags(cluster: Cluster) -> Iterator[None]:
    words = ("-n", "knative-serving", "patch", "configmap", "config-features", "--type=merge", "-p")
    flags = [f"kubernetes.podspec-{flag}" for flag in FLAGS]
    cluster.kubectl(*words, json.dumps({"data": dict.fromkeys(flags, "enabled")}))
    try:
        yield
    finally:
        cluster.kubectl(*words, json.dumps({"data": dict.fromkeys(flags)}))


def _small_requests() -> list[dict[str, Any]]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "matchConstraints": {"resourceRules": [pods]}, "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": EXPRESSION}}],
    }  # fmt: skip
    bound = {"policyName": POLICY, "matchResources": {"namespaceSelector": {"matchLabels": SMALL}}}
    specs = {"MutatingAdmissionPolicy": policy, "MutatingAdmissionPolicyBinding": bound}
    return [
        {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": POLICY}, "spec": spec}
        for kind, spec in specs.items()
    ]


def _delete_policy(cluster: Cluster) -> None:
    for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
        cluster.kubectl("delete", kind, POLICY, "--ignore-not-found")
