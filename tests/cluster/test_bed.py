"""The cluster is what the other tests of this folder take for granted."""

import json
import os
from typing import Any

import pytest
from tests.cluster.bed.fake_nodes import add_fake_nodes, remove_fake_nodes
from tests.cluster.bed.places import places
from tests.cluster.real_cluster import Cluster, seconds_until

PREDICTOR = "pilotlight/predictor:0.1.0"
SAFE = {
    "allowPrivilegeEscalation": False, "runAsNonRoot": True, "readOnlyRootFilesystem": True, "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
READY = {"httpGet": {"path": "/v2/health/ready", "port": 8080}, "periodSeconds": 1}
KINDS = (
    "services.serving.knative.dev", "scaledobjects.keda.sh", "httproutes.gateway.networking.k8s.io",
    "podmonitors.monitoring.coreos.com", "leaderworkersets.leaderworkerset.x-k8s.io", "interceptorroutes.http.keda.sh",
)  # fmt: skip


def predictor(**more: Any) -> dict[str, Any]:
    """The container that all of these pods have."""
    model = {"name": "INFERENCE_MODEL_PATH", "value": "/models/iris/model.onnx"}
    name = {"name": "INFERENCE_MODEL_NAME", "value": "iris"}
    return {"name": "predictor", "image": PREDICTOR, "env": [model, name], "securityContext": SAFE, **more}


def pod(name: str, container: dict[str, Any]) -> dict[str, Any]:
    spec = {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_we_render_is_known(cluster: Cluster, kind: str) -> None:
    assert cluster.get("crd", kind)


def test_the_predictor_serves_as_nobody_on_a_read_only_root(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod("iris", predictor(readinessProbe=READY)), namespace=namespace)
    cluster.kubectl("-n", namespace, "wait", "pod/iris", "--for=condition=Ready", "--timeout=180s")
    said = cluster.kubectl("-n", namespace, "get", "--raw", f"/api/v1/namespaces/{namespace}/pods/iris:8080/proxy/v2")
    assert json.loads(said)["name"]


def test_the_image_runs_every_program_that_manifests_name(cluster: Cluster, namespace: str) -> None:
    for module in ("pilotlight.gateway", "pilotlight_predictor", "platformctl.main"):
        name = module.replace("_", "-").replace(".", "-")
        command = {"command": ["python", "-c", f"import {module}"]}
        cluster.apply(pod(name, predictor(**command)), namespace=namespace)
        path = "jsonpath={.status.phase}"
        cluster.kubectl("-n", namespace, "wait", f"pod/{name}", f"--for={path}=Succeeded", "--timeout=180s")


def test_the_image_says_what_it_holds(cluster: Cluster, namespace: str) -> None:
    code = "print(open('/usr/share/sbom/pilotlight.cdx.json').read())"
    cluster.apply(pod("sbom", predictor(command=["python", "-c", code])), namespace=namespace)
    cluster.kubectl("-n", namespace, "wait", "pod/sbom", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
    held = json.loads(cluster.kubectl("-n", namespace, "logs", "sbom"))
    assert {"numpy", "onnxruntime"} <= {each["name"] for each in held["components"]}


def test_a_knative_service_falls_to_zero_and_wakes(cluster: Cluster, namespace: str) -> None:
    notes = {"autoscaling.knative.dev/window": "6s"}
    # Without a period Knative asks every few milliseconds until the first yes.
    container = predictor(readinessProbe={"httpGet": READY["httpGet"]})
    spec = {"template": {"metadata": {"annotations": notes}, "spec": {"containers": [container]}}}
    service = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "wake"}, "spec": spec}
    cluster.apply(service, namespace=namespace)
    cluster.kubectl("-n", namespace, "wait", "ksvc/wake", "--for=condition=Ready", "--timeout=180s")

    def replicas() -> int:
        found = cluster.get("-n", namespace, "deployments", "-l", "serving.knative.dev/service=wake")
        return sum(each["spec"]["replicas"] for each in found["items"])

    seconds_until(lambda: replicas() == 0, "the service is at zero")
    reply = cluster.ask(f"wake.{namespace}.{cluster.domain}", "/v2/models/iris")
    assert (reply.status, reply.json()["name"]) == (200, "iris")


def test_a_route_of_the_gateway_api_leads_to_pods(cluster: Cluster, namespace: str) -> None:
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "route"},
        "spec": {"selector": {"app": "route"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }  # fmt: skip
    parent = {"name": "pilotlight", "namespace": "pilotlight-system"}
    host = f"route.{namespace}.example"
    rules = [{"backendRefs": [{"name": "route", "port": 80}]}]
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "route"},
        "spec": {"parentRefs": [parent], "hostnames": [host], "rules": rules},
    }  # fmt: skip
    cluster.apply(pod("route", predictor(readinessProbe=READY)), service, route, namespace=namespace)
    seconds_until(lambda: cluster.ask(host, "/v2", through=cluster.gateway).status == 200, "the route answers")


def test_a_node_without_a_machine_renews_a_lease_so_that_its_pods_stay_ready(cluster: Cluster) -> None:
    bed = places(os.environ)
    if cluster.kubeconfig != bed.kubeconfig:
        pytest.skip("only the test bed has such nodes")
    add_fake_nodes(bed, 1)
    try:
        lease = ("lease", "fake-0", "-n", "kube-node-lease")
        seconds_until(lambda: bool((cluster.get(*lease) or {"spec": {}})["spec"].get("renewTime")), "a heartbeat")
    finally:
        remove_fake_nodes(bed)
