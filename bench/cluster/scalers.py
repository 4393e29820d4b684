"""The autoscalers that are compared: Knative and KEDA on the cluster, and the embedded platform in place of each.

All four get the same document but for its mode and for where the model lies; each has a namespace or a platform.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until

from bench.cluster.subjects import REQUESTS, deploy_documents
from bench.embedded.platforms import platform
from bench.environments import ROOT, WORK

Json = Any
MODEL: Final = ROOT / "bench" / "cluster" / "slow"
MOUNTED: Final = "/models/slow"
WINDOW_S: Final = 20  # of Knative's average, of KEDA's cooldown and of the HPA's patience when it steps down
MOST: Final = 8
TARGET: Final = 4
REST_S: Final = 120.0
# As planned KEDA keeps a service for as long as its start may take; nobody waits so long here.
HURRY: Final = {"cooldownPeriod": WINDOW_S, "initialCooldownPeriod": 0, "pollingInterval": 5}
BEHAVIOR: Final = {
    "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": MOST, "periodSeconds": 5}]},
    "scaleDown": {
        "stabilizationWindowSeconds": WINDOW_S, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 5}],
    },
}  # fmt: skip
KNATIVE: Final = {
    "serving.kserve.io/deploymentMode": "Serverless", "autoscaling.knative.dev/window": f"{WINDOW_S}s",
}  # fmt: skip
KEDA: Final = {"serving.kserve.io/deploymentMode": "Standard", "serving.kserve.io/autoscalerClass": "keda"}
MODES: Final[Mapping[str, Mapping[str, str]]] = {"knative": KNATIVE, "keda": KEDA}


@dataclass(frozen=True, slots=True)
class Counted:
    """Replicas that the autoscaler wants, and those that are ready."""

    wanted: int
    ready: int


@dataclass(frozen=True, slots=True)
class Scaler:
    """Where its service answers, and who counts its replicas."""

    name: str
    base: str
    path: str
    headers: Mapping[str, str]
    count: Callable[[], Counted]


def document(mode: str, model: str, mounted: bool) -> dict[str, Json]:
    """Return the InferenceService. `mounted`: its model is a ConfigMap, since only the bed's own image has the file."""
    container: dict[str, Json] = {
        "modelFormat": {"name": "python"}, "protocolVersion": "v2", "storageUri": model,
        "resources": {"requests": {**REQUESTS, "cpu": "20m"}, "limits": {"memory": "1Gi"}},
    }  # fmt: skip
    predictor: dict[str, Json] = {
        "minReplicas": 0, "maxReplicas": MOST, "scaleMetric": "concurrency", "scaleTarget": TARGET, "model": container,
    }  # fmt: skip
    if mode == "keda":
        predictor["autoScaling"] = {"behavior": BEHAVIOR}
    if mounted:
        predictor["volumes"] = [{"name": "slow", "configMap": {"name": "slow"}}]
        container["volumeMounts"] = [{"name": "slow", "mountPath": MOUNTED}]
    return {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "metadata": {"name": "slow", "annotations": dict(MODES[mode])}, "spec": {"predictor": predictor},
    }  # fmt: skip


@contextmanager
def on_cluster(cluster: Cluster, mode: str) -> Iterator[Scaler]:
    """At zero when the block begins."""
    namespace = cluster.new_namespace(f"bench-{mode}")
    try:
        files = {path.name: path.read_text() for path in MODEL.iterdir() if path.is_file()}
        cluster.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slow"}, "data": files}, namespace=namespace
        )
        host = deploy_documents(cluster, namespace, document(mode, f"file://{MOUNTED}", mounted=True))
        if mode == "keda":
            hurry(cluster, namespace, "slow")
        count = _deployments(cluster, namespace)
        seconds_until(lambda: count() == Counted(0, 0), f"{mode} at zero", REST_S)
        base = cluster.ingress if mode == "knative" else cluster.gateway
        yield Scaler(mode, base, "/v2/models/slow/infer", {"Host": host}, count)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def hurry(cluster: Cluster, namespace: str, service: str) -> None:
    patch = json.dumps({"spec": HURRY})
    cluster.kubectl("-n", namespace, "patch", "scaledobject", f"{service}-predictor", "--type=merge", "-p", patch)


def _deployments(cluster: Cluster, namespace: str) -> Callable[[], Counted]:
    """By the client library: kubectl each second would be a load of its own."""
    from kubernetes import client

    api: Any = client.AppsV1Api(our_cluster(cluster).connection.api)

    def count() -> Counted:
        found = api.list_namespaced_deployment(namespace).items
        wanted = sum(int(each.spec.replicas or 0) for each in found)
        return Counted(wanted, sum(int(each.status.ready_replicas or 0) for each in found))

    return count


@contextmanager
def on_this_machine(mode: str) -> Iterator[Scaler]:
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.local.control_process_launcher import ensure
    from pilotlight.targets.local.home_directory import Home

    work = WORK / "work"
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"slow-{mode}.json"
    path.write_text(json.dumps(document(mode, str(MODEL), mounted=False)))
    with ExitStack() as stack:
        made = stack.enter_context(platform(work / f"home-{mode}"))
        made.deploy(path)
        target = LocalTarget(ensure(Home(made.home), start=False))
        if mode == "keda":
            _hurry(target)
        made.sleep()
        target = LocalTarget(ensure(Home(made.home), start=False))

        def count() -> Counted:
            rows = target.status(("default", "slow")).revisions
            return Counted(sum(row.desired for row in rows), sum(row.ready for row in rows))

        base = f"http://127.0.0.1:{made.gateway}"
        yield Scaler(f"local-{mode}", base, "/slow/v2/models/slow/infer", {}, count)


def _hurry(target: Any) -> None:
    """The same change of the ScaledObject as on the cluster."""
    from msgspec.structs import replace

    release = target.releases(("default", "slow"))[-1]
    manifests = tuple(
        {**each, "spec": {**each["spec"], **HURRY}} if each["kind"] == "ScaledObject" else each
        for each in release.manifests
    )
    target.apply(replace(release, manifests=manifests, expected=None, note="hurried"))
