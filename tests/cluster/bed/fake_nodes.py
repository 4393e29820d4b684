"""Nodes without a machine, by KWOK: pods that tolerate their taint are "running" there and use nothing.

For questions of count, such as how many objects a controller holds; nothing on them answers a request.
"""

import json
from typing import Any, Final

from tests.cluster.bed.building import module_folder, run
from tests.cluster.bed.control_plane import put
from tests.cluster.bed.kubectl import apply_text, kubectl
from tests.cluster.bed.places import Places
from tests.cluster.bed.processes import start, stop
from tests.cluster.bed.programs import pinned, program

KWOK: Final = "sigs.k8s.io/kwok"
MARK: Final = "kwok.x-k8s.io/node"
TOLERATION: Final = {"key": MARK, "operator": "Exists"}
SIZE: Final = {"cpu": "256", "memory": "2Ti", "pods": "1000", "nvidia.com/gpu": "64"}


def add_fake_nodes(places: Places, count: int) -> None:
    stages = module_folder(KWOK, pinned("kwok", KWOK)) / "kustomize/stage/fast"
    hyperkube = str(program("hyperkube").product(places))
    put(places.etc / "kwok.yaml", run([hyperkube, "kubectl", "kustomize", str(stages)], places.etc))
    start(places, "kwok", [
        program("kwok").product(places), f"--kubeconfig={places.kubeconfig}", f"--config={places.etc}/kwok.yaml",
        "--manage-all-nodes=false", f"--manage-nodes-with-annotation-selector={MARK}=fake",
        "--node-lease-duration-seconds=40",  # its stages send no other heartbeat in time
    ])  # fmt: skip
    for number in range(count):
        apply_text(places, json.dumps(_node(f"fake-{number}")))
    kubectl(places, "wait", "--for=condition=Ready", "node", "-l", f"{MARK}=fake", "--timeout=60s")


def remove_fake_nodes(places: Places) -> None:
    kubectl(places, "delete", "node", "-l", f"{MARK}=fake", "--wait=false")
    stop(places, "kwok")


def _node(name: str) -> dict[str, Any]:
    labels = {MARK: "fake", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    metadata = {"name": name, "labels": labels, "annotations": {MARK: "fake"}}
    taint = {"key": MARK, "value": "fake", "effect": "NoSchedule"}
    status = {"allocatable": SIZE, "capacity": SIZE}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}, "status": status}
