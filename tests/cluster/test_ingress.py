"""From this machine to services of a real cluster: through Knative's ingress, a Gateway, a Service, a port-forward."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cluster.iris import document, manifests
from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until

from pilotlight.targets.kubernetes.port_forward import PortForward
from pilotlight.targets.kubernetes.service_route import find_endpoint, open_port_forward, open_route, probe
from pilotlight.targets.target import ServiceRoute

SETOSA = [5.1, 3.5, 1.4, 0.2]
INPUT = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": SETOSA}


@pytest.fixture(scope="module")
def serverless(cluster: Cluster, namespace: str) -> str:
    """The host of a Knative service that is ready."""
    cluster.kubectl("apply", "-f", "-", text=manifests(document("wake", namespace, least=0)))
    cluster.kubectl("-n", namespace, "wait", "ksvc/wake-predictor", "--for=condition=Ready", "--timeout=180s")
    return f"wake-predictor.{namespace}.{cluster.domain}"


@pytest.fixture(scope="module")
def raw(cluster: Cluster, namespace: str) -> str:
    """The host of a Deployment behind an HTTPRoute."""
    cluster.kubectl("apply", "-f", "-", text=manifests(document("plain", namespace, "Standard")))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/plain-predictor", "--timeout=180s")
    return f"plain-{namespace}.example.com"


def answer(way: ServiceRoute, name: str) -> int:
    """The class that the model tells, as a client would ask."""
    request = urllib.request.Request(
        f"{way.url}/v2/models/{name}/infer", json.dumps({"inputs": [INPUT]}).encode(),
        {"content-type": "application/json", **way.headers},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as told:
        found: list[float] = json.load(told)["outputs"][0]["data"]
        return found.index(max(found))


def test_a_knative_service_answers_through_its_ingress_also_from_zero(
    cluster: Cluster, namespace: str, serverless: str
) -> None:
    def replicas() -> int:
        found = cluster.get("-n", namespace, "deployments", "-l", "serving.knative.dev/service=wake-predictor")
        return sum(each["spec"]["replicas"] for each in found["items"])

    seconds_until(lambda: replicas() == 0, "the service is at zero")
    with open_route(our_cluster(cluster), f"http://{serverless}", namespace) as way:
        assert way.headers == {"Host": serverless}
        assert probe(way, "/v2/health/ready", timeout=60) == ""
        assert answer(way, "wake") == 0


def test_where_the_ingress_has_no_address_its_pods_are_asked(cluster: Cluster, serverless: str) -> None:
    ours = our_cluster(cluster)
    with open_port_forward(ours, find_endpoint(ours, serverless)) as forward:
        way = ServiceRoute(f"http://127.0.0.1:{forward.port}", {"Host": serverless})
        assert probe(way, "/v2/health/ready", timeout=60) == ""
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: answer(way, "wake"), range(32))) == {0}
    assert "got no response" in probe(way, "/")


def test_a_raw_service_answers_through_its_gateway(cluster: Cluster, namespace: str, raw: str) -> None:
    ours = our_cluster(cluster)
    assert find_endpoint(ours, raw, namespace).description == "Gateway pilotlight in pilotlight-system"
    with open_route(ours, f"http://{raw}", namespace) as way:
        seconds_until(lambda: probe(way, "/v2/health/ready") == "", "the route answers")
        assert answer(way, "plain") == 0
        assert "returned 404" in probe(way, "/v2/models/other")


def test_the_gateways_pods_are_found_for_a_port_forward(cluster: Cluster, namespace: str, raw: str) -> None:
    ours = our_cluster(cluster)
    with open_port_forward(ours, find_endpoint(ours, raw, namespace)) as forward:
        way = ServiceRoute(f"http://127.0.0.1:{forward.port}", {"Host": raw})
        seconds_until(lambda: probe(way, "/v2/health/ready") == "", "the route answers")


def test_a_service_without_a_route_is_reached_by_its_name_in_the_cluster(
    cluster: Cluster, namespace: str, raw: str
) -> None:
    host = f"plain.{namespace}.svc.cluster.local"
    with open_route(our_cluster(cluster), f"http://{host}") as way:
        assert answer(way, "plain") == 0


def test_a_port_forward_to_a_pod_carries_bodies_of_megabytes(cluster: Cluster, namespace: str, raw: str) -> None:
    pods = cluster.get("-n", namespace, "pods", "-l", "pilotlight.dev/service=plain")["items"]
    body = json.dumps({"inputs": [INPUT]}).encode() + b" " * 8_000_000
    with PortForward(our_cluster(cluster).connection, namespace, pods[0]["metadata"]["name"], 8080) as forward:
        url = f"http://127.0.0.1:{forward.port}/v2/models/plain/infer"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as told:
            assert json.load(told)["outputs"][0]["shape"] == [1, 3]
