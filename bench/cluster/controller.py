"""The controller with many InferenceServices: seconds until all are ready, its requests to the API server, memory.

Pods run on nodes without a machine (KWOK): what is measured is the controller, not the services. It has an account and
a FlowSchema of its own, by which the API server counts its requests.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.bed.fake_nodes import MARK, TOLERATION, add_fake_nodes, remove_fake_nodes
from tests.cluster.bed.places import places
from tests.cluster.iris import document
from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster
from tests.eventually import eventually

from bench.environments import WORK
from bench.load import BenchError
from pilotlight.targets.kubernetes.client import Cluster as OurCluster

Json = Any
COUNT: Final = 200
NODES: Final = 2
IDLE_S: Final = 60.0
CRDS: Final = Path(__file__).parents[2] / "helm/inference-platform/files/crds"
KIND: Final = "inferenceservices.serving.kserve.io"
LIMIT_S: Final = 900.0
DISPATCHED: Final = "apiserver_flowcontrol_dispatched_requests_total"


def measure(cluster: Cluster, count: int = COUNT, idle_s: float = IDLE_S) -> dict[str, float]:
    """Apply so many documents, then edit all of them, then do nothing."""
    bed = places(os.environ)
    if cluster.kubeconfig != bed.kubeconfig:
        raise BenchError("only the test bed has nodes without a machine for so many pods")
    if cluster.get("crd", KIND):
        raise BenchError("InferenceService is a kind of this cluster already; its controller would act too")
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=60s")
    namespace = cluster.new_namespace("bench-controller")
    add_fake_nodes(bed, NODES)
    try:
        with _controller(cluster, namespace) as pid:
            return _figures(cluster, namespace, count, idle_s, pid)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("delete", "-f", str(CRDS), "--wait=false")
        remove_fake_nodes(bed)


@contextmanager
def _controller(cluster: Cluster, namespace: str) -> Iterator[int]:
    """Its pid; when the block ends it deletes what it has made, and ends."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "controller"}}
    rights, flow = _rights(namespace), _flow(namespace)
    cluster.apply(account, rights, flow, namespace=namespace)
    token = cluster.kubectl("-n", namespace, "create", "token", "controller", "--duration=2h").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    WORK.mkdir(parents=True, exist_ok=True)
    own = WORK / "controller.kubeconfig"
    own.touch(0o600)
    own.write_text(json.dumps(config))
    command = [str(Path(sys.executable).parent / "platformctl"), "controller", "-n", namespace]
    with (WORK / "controller.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--lease-namespace", namespace],
            env={**os.environ, "KUBECONFIG": str(own)}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process.pid
    finally:
        cluster.kubectl("-n", namespace, "delete", KIND, "--all", "--timeout=600s", check=False)
        process.terminate()
        process.wait(60)
        for each in (rights, flow):
            cluster.kubectl("delete", each["kind"], namespace, "--wait=false")
        own.unlink()


def _rights(namespace: str) -> Json:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": namespace},
        "roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": namespace}],
    }  # fmt: skip


def _flow(namespace: str) -> Json:
    """At the level that service accounts have anyway."""
    everything = {
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True,
    }  # fmt: skip
    subject = {"kind": "ServiceAccount", "serviceAccount": {"name": "controller", "namespace": namespace}}
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": namespace},
        "spec": {
            "matchingPrecedence": 1000, "priorityLevelConfiguration": {"name": "workload-low"},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [subject], "resourceRules": [everything]}],
        },
    }  # fmt: skip


def _figures(cluster: Cluster, namespace: str, count: int, idle_s: float, pid: int) -> dict[str, float]:
    figures: dict[str, float] = {"services": count}
    own = our_cluster(cluster)  # kubectl each second would be a load of its own
    for name, most in (("apply", 2), ("edit", 3)):
        before = _requests(cluster, namespace)
        begin = time.monotonic()
        cluster.kubectl("apply", "-f", "-", text="---".join(_documents(namespace, count, most)))
        eventually(lambda: _ready(own, namespace) == count, f"{count} services are ready", LIMIT_S, pause_s=1.0)
        figures[f"{name}_s"] = round(time.monotonic() - begin, 1)
        figures[f"{name}_requests"] = _requests(cluster, namespace) - before
        figures[f"{name}_load"] = round(os.getloadavg()[0], 1)
    before, cpu = _requests(cluster, namespace), _cpu_s(pid)
    time.sleep(idle_s)
    figures["idle_requests_per_minute"] = round((_requests(cluster, namespace) - before) * 60 / idle_s)
    figures["idle_cpu_percent"] = round((_cpu_s(pid) - cpu) / idle_s * 100, 1)
    status = Path(f"/proc/{pid}/status").read_text()
    figures["memory_mb"] = round(int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024)
    figures["cpu_s"] = round(_cpu_s(pid), 1)
    return figures


def _documents(namespace: str, count: int, most: int) -> list[str]:
    hpa = "Standard\n    serving.kserve.io/autoscalerClass: hpa"
    place = f"nodeSelector: {{{MARK}: fake}}\n    tolerations: [{json.dumps(TOLERATION)}]"
    bounds = f"scaleMetric: cpu\n    {place}\n    maxReplicas: {most}"
    texts = [document(f"service-{number}", namespace, hpa) for number in range(count)]
    return [text.replace("maxReplicas: 2", bounds) for text in texts]


def _ready(cluster: OurCluster, namespace: str) -> int:
    """Services that are ready as they are written now."""
    items = cluster.list("serving.kserve.io/v1beta1", "InferenceService", namespace)
    current = [each["status"] for each in items if (each.get("status") or {}).get("observedGeneration")
               == each["metadata"]["generation"]]  # fmt: skip
    states = [{each["type"]: each["status"] for each in status.get("conditions") or ()} for status in current]
    return sum(state.get("Ready") == "True" for state in states)


def _requests(cluster: Cluster, namespace: str) -> int:
    """Of the controller so far; a watch counts once."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    own = [each for each in lines if each.startswith(f"{DISPATCHED}{{") and f'flow_schema="{namespace}"' in each]
    return sum(int(float(each.rpartition(" ")[2])) for each in own)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    from tests.cluster.real_cluster import find_cluster

    found = find_cluster(os.environ)
    assert isinstance(found, Cluster), found
    print(json.dumps(measure(found, *(int(word) for word in sys.argv[1:])), indent=2))
