"""kubectl apply, edit, drift and delete with the controller, which is killed in the middle of each and started again.

Where the cluster has no nodes, an API server and a controller manager, pods are not waited for.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controller_process import KIND, Controller, our_kinds, running
from tests.cluster.iris import document
from tests.cluster.real_cluster import Cluster, seconds_until

Json = Any
PARTS = "deployment,service,horizontalpodautoscaler,controllerrevision,serviceaccount,poddisruptionbudget,networkpolicy"


@pytest.fixture(scope="module")
def kinds(cluster: Cluster) -> Iterator[None]:
    with our_kinds(cluster):
        yield


@pytest.fixture
def controller(kinds: None, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Controller]:
    with running(cluster, namespace, tmp_path / "controller.log") as process:
        yield process


def applied(cluster: Cluster, namespace: str, most: int = 2) -> None:
    """Apply a service that an HPA scales, with or without KEDA."""
    text = document("flowers", namespace, "Standard\n    serving.kserve.io/autoscalerClass: hpa")
    cluster.kubectl(
        "apply", "-f", "-", text=text.replace("maxReplicas: 2", f"scaleMetric: cpu\n    maxReplicas: {most}")
    )


def part(cluster: Cluster, namespace: str, kind: str, name: str = "flowers-predictor") -> Json:
    return cluster.get("-n", namespace, kind, name) or {}


def parts(cluster: Cluster, namespace: str) -> list[str]:
    found = cluster.get("-n", namespace, PARTS, "-l", "pilotlight.dev/service=flowers") or {"items": []}
    return [f"{each['kind']}/{each['metadata']['name']}" for each in found["items"]]


def most(cluster: Cluster, namespace: str) -> int:
    return int((part(cluster, namespace, "hpa").get("spec") or {}).get("maxReplicas") or 0)


def complete(cluster: Cluster, namespace: str, release: int) -> bool:
    found = part(cluster, namespace, "controllerrevision", f"flowers-release-{release}")
    return "pilotlight.dev/complete" in ((found.get("metadata") or {}).get("annotations") or {})


def observed(cluster: Cluster, namespace: str) -> bool:
    found = part(cluster, namespace, KIND, "flowers")
    return bool(found) and (found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"]


def ready(cluster: Cluster, namespace: str) -> bool:
    conditions = (part(cluster, namespace, KIND, "flowers").get("status") or {}).get("conditions") or [{}]
    return conditions[0].get("status") == "True" or not cluster.get("nodes")


def restarted(controller: Controller, holds: Callable[[], Json]) -> None:
    """Kill the controller as soon as something holds, and start another."""
    seconds_until(lambda: bool(holds()), "the controller has begun")
    controller.kill()
    controller.start()


def test_apply_edit_drift_and_delete_survive_a_killed_controller(
    controller: Controller, cluster: Cluster, namespace: str
) -> None:
    here = (cluster, namespace)
    applied(*here)
    restarted(controller, lambda: part(*here, "controllerrevision", "flowers-release-1"))
    seconds_until(lambda: complete(*here, 1) and observed(*here) and ready(*here), "it serves")

    applied(*here, most=3)
    restarted(controller, lambda: part(*here, "controllerrevision", "flowers-release-2"))
    seconds_until(lambda: most(*here) == 3 and complete(*here, 2) and observed(*here), "the edit is applied")
    assert not part(*here, "controllerrevision", "flowers-release-3")

    cluster.kubectl("-n", namespace, "delete", "service", "flowers")
    cluster.kubectl("-n", namespace, "patch", "hpa", "flowers-predictor", "--patch", '{"spec": {"maxReplicas": 9}}')
    restarted(controller, lambda: part(*here, "service", "flowers"))
    seconds_until(lambda: most(*here) == 3 and bool(part(*here, "service", "flowers")), "drift is repaired")

    before = len(parts(*here))
    cluster.kubectl("-n", namespace, "delete", KIND, "flowers", "--wait=false")
    restarted(controller, lambda: len(parts(*here)) < before)
    seconds_until(lambda: not part(*here, KIND, "flowers"), "it is deleted")
    assert parts(*here) == []


def test_kubectl_scale_sets_the_least(controller: Controller, cluster: Cluster, namespace: str) -> None:
    applied(cluster, namespace)
    seconds_until(lambda: complete(cluster, namespace, 1), "it is applied")
    cluster.kubectl("-n", namespace, "scale", f"{KIND}/flowers", "--replicas=2")
    seconds_until(lambda: part(cluster, namespace, "hpa")["spec"]["minReplicas"] == 2, "the least is 2")
    scale = json.loads(
        cluster.kubectl(
            "get", "--raw", f"/apis/serving.kserve.io/v1beta1/namespaces/{namespace}/inferenceservices/flowers/scale"
        )
    )
    assert scale["status"]["selector"] == "pilotlight.dev/service=flowers,component=predictor"


def test_a_field_of_another_tool_is_a_conflict_that_names_it(
    controller: Controller, cluster: Cluster, namespace: str
) -> None:
    applied(cluster, namespace)
    seconds_until(lambda: complete(cluster, namespace, 1), "it is applied")
    theirs = {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "flowers-predictor", "namespace": namespace}, "spec": {"maxReplicas": 7},
    }  # fmt: skip
    words = ("--server-side", "--force-conflicts", "--field-manager=argocd-controller")
    cluster.kubectl("apply", *words, "-f", "-", text=json.dumps(theirs))

    def reported() -> bool:
        conditions = part(cluster, namespace, KIND, "flowers")["status"]["conditions"]
        return conditions[0]["reason"] == "FieldConflict" and "argocd-controller" in conditions[0]["message"]

    seconds_until(reported, "the conflict is reported")
    assert most(cluster, namespace) == 7
