"""The controller with many InferenceServices: seconds until all are applied, requests to the API server, memory.

Pods are pending, by a node selector that no node has: what is measured is the controller, not the services.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.cluster.iris import document
from tests.cluster.real_cluster import Cluster, seconds_until

from bench.environments import WORK
from bench.load import BenchError

Json = Any
COUNT: Final = 200
IDLE_S: Final = 60.0
CRDS: Final = Path(__file__).parents[2] / "helm/inference-platform/files/crds"
KIND: Final = "inferenceservices.serving.kserve.io"
LIMIT_S: Final = 900.0


def measure(cluster: Cluster, count: int = COUNT, idle_s: float = IDLE_S) -> dict[str, float]:
    """Apply so many documents, then edit all of them, then do nothing."""
    if cluster.get("crd", KIND):
        raise BenchError("InferenceService is a kind of this cluster already; its controller would act too")
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=60s")
    namespace = cluster.new_namespace("bench-controller")
    command = [str(Path(sys.executable).parent / "platformctl"), "controller", "-n", namespace]
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "controller.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--lease-namespace", namespace],
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        return _figures(cluster, namespace, count, idle_s, process.pid)
    finally:
        cluster.kubectl("-n", namespace, "delete", KIND, "--all", "--timeout=600s", check=False)
        process.terminate()
        process.wait(60)
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("delete", "-f", str(CRDS), "--wait=false")


def _figures(cluster: Cluster, namespace: str, count: int, idle_s: float, pid: int) -> dict[str, float]:
    figures: dict[str, float] = {"services": count}
    for name, most in (("apply", 2), ("edit", 3)):
        before = _requests(cluster)
        begin = time.monotonic()
        cluster.kubectl("apply", "-f", "-", text="---".join(_documents(namespace, count, most)))
        seconds_until(lambda: _observed(cluster, namespace) == count, f"{count} services are applied", LIMIT_S)
        figures[f"{name}_s"] = round(time.monotonic() - begin, 1)
        figures[f"{name}_requests"] = _requests(cluster) - before
    before, cpu = _requests(cluster), _cpu_s(pid)
    time.sleep(idle_s)
    figures["idle_requests_per_minute"] = round((_requests(cluster) - before) * 60 / idle_s)
    figures["idle_cpu_percent"] = round((_cpu_s(pid) - cpu) / idle_s * 100, 1)
    status = Path(f"/proc/{pid}/status").read_text()
    figures["memory_mb"] = round(int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024)
    figures["cpu_s"] = round(_cpu_s(pid), 1)
    return figures


def _documents(namespace: str, count: int, most: int) -> list[str]:
    hpa = "Standard\n    serving.kserve.io/autoscalerClass: hpa"
    bounds = f"scaleMetric: cpu\n    nodeSelector: {{bench.pilotlight.dev/none: none}}\n    maxReplicas: {most}"
    texts = [document(f"service-{number}", namespace, hpa) for number in range(count)]
    return [text.replace("maxReplicas: 2", bounds) for text in texts]


def _observed(cluster: Cluster, namespace: str) -> int:
    items: list[Json] = (cluster.get("-n", namespace, KIND) or {"items": []})["items"]
    return sum((each.get("status") or {}).get("observedGeneration") == each["metadata"]["generation"] for each in items)


def _requests(cluster: Cluster) -> int:
    """Requests of all clients so far, without watches and Leases."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    counted = [each for each in lines if each.startswith("apiserver_request_total{")]
    return sum(
        int(float(each.rpartition(" ")[2]))
        for each in counted
        if 'verb="WATCH"' not in each and 'resource="leases"' not in each
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    from tests.cluster.real_cluster import find_cluster

    found = find_cluster(os.environ)
    assert isinstance(found, Cluster), found
    print(json.dumps(measure(found, *(int(word) for word in sys.argv[1:])), indent=2))
