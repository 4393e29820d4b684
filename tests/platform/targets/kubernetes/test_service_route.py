"""The way to a service: what stands in front of it, which of its addresses answers, and what a probe makes of it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.platform.targets.kubernetes.fake_cluster import GATEWAY, KNATIVE, PLAIN, PaperCluster, named

from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes import service_route
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.service_route import NotPermitted, open_route, probe, ready_pods, reason_in
from pilotlight.targets.target import ServiceRoute

HOST = "iris-predictor.default.cluster.test"
URL = f"http://{HOST}"


class Told(BaseHTTPRequestHandler):
    """Answers with the Host that it was asked for; 503 where the path says so."""

    def do_GET(self) -> None:
        failing = self.path == "/v2/health/ready"
        body = b'{"error": {"message": "model iris: loading"}}' if failing else self.headers["host"].encode()
        self.send_response(503 if failing else 401 if self.path == "/closed" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made.server_port
        made.shutdown()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PILOTLIGHT_INGRESS", raising=False)


def kourier(port: int, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http2", "port": port, "targetPort": 8080}, {"name": "https", "port": 443}]
    return named("v1", "Service", "kourier-system", "kourier", spec={"ports": ports, **spec})


def network(ingress: str = "kourier.ingress.networking.knative.dev") -> dict[str, Any]:
    return named("v1", "ConfigMap", "knative-serving", "config-network", data={"ingress-class": ingress})


def slice_of(service: str, namespace: str) -> dict[str, Any]:
    ready = {"targetRef": {"kind": "Pod", "name": "gateway-1"}, "conditions": {"ready": True}}
    unready = {"targetRef": {"kind": "Pod", "name": "gateway-0"}, "conditions": {"ready": False}}
    metadata = {"labels": {"kubernetes.io/service-name": service}}
    return named(
        "discovery.k8s.io/v1", "EndpointSlice", namespace, f"{service}-x", metadata=metadata,
        endpoints=[unready, ready], ports=[{"name": "http2", "port": 8080}],
    )  # fmt: skip


def route_to(cluster: Cluster, url: str, namespace: str = "") -> ServiceRoute:
    with open_route(cluster, url, namespace) as route:
        return route


def test_an_address_from_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_INGRESS", "http://127.0.0.1:31080/")
    with PaperCluster() as paper:
        way = route_to(paper.cluster(), URL)
    assert (way.url, way.headers) == ("http://127.0.0.1:31080", {"Host": HOST})


def test_a_service_with_a_port_of_its_own_is_behind_no_ingress(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_INGRESS", "http://127.0.0.1:31080/")
    service = named("v1", "Service", "lab", "iris", spec={"clusterIP": "127.0.0.1", "ports": [{"port": server}]})
    with PaperCluster(service) as paper:
        way = route_to(paper.cluster(), f"http://iris.lab.svc:{server}")
    assert way.url == f"http://127.0.0.1:{server}"


def test_a_load_balancer_is_tried_before_the_cluster_address(server: int) -> None:
    balanced = {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}}
    service = {**kourier(server, clusterIP="127.0.0.2"), "status": balanced}
    with PaperCluster(service, network(), kinds=PLAIN + KNATIVE) as paper:
        way = route_to(paper.cluster(), URL)
    assert way.url == f"http://127.0.0.1:{server}"
    assert probe(way, "/") == ""


def test_without_an_address_that_answers_a_ready_pod_of_the_ingress_is_asked(server: int) -> None:
    objects = (kourier(1, clusterIP="127.0.0.1"), network(), slice_of("kourier", "kourier-system"))
    with PaperCluster(*objects, kinds=PLAIN + KNATIVE) as paper:
        paper.ports = {8080: server}
        with open_route(paper.cluster(), URL) as way:
            assert probe(way, "/") == ""
        assert "got no response" in probe(way, "/")


def test_an_ingress_that_cannot_be_reached_names_the_setting_that_helps() -> None:
    objects = (kourier(1, clusterIP="127.0.0.1"), network())
    with PaperCluster(*objects, kinds=PLAIN + KNATIVE) as paper, pytest.raises(NotFound) as raised:
        open_route(paper.cluster(), URL)
    assert "Service kourier in kourier-system" in str(raised.value)
    assert "PILOTLIGHT_INGRESS" in raised.value.hint


def test_a_service_with_a_route_is_reached_through_its_gateway(server: int) -> None:
    spec = {"hostnames": ["iris-default.example.com"], "parentRefs": [{"name": "pilotlight", "namespace": "edge"}]}
    route = named("gateway.networking.k8s.io/v1", "HTTPRoute", "default", "iris", spec=spec)
    gateway = named(
        "gateway.networking.k8s.io/v1", "Gateway", "edge", "pilotlight",
        spec={"listeners": [{"protocol": "HTTPS", "port": 443}, {"protocol": "HTTP", "port": server}]},
        status={"addresses": [{"type": "IPAddress", "value": "127.0.0.1"}]},
    )  # fmt: skip
    with PaperCluster(route, gateway, kinds=PLAIN + KNATIVE + GATEWAY) as paper:
        way = route_to(paper.cluster(), "http://iris-default.example.com", "default")
    assert way.url == f"http://127.0.0.1:{server}"
    assert way.headers == {"Host": "iris-default.example.com"}


def test_the_pods_behind_a_gateway_are_found_by_label_or_address() -> None:
    labels = {"gateway.envoyproxy.io/owning-gateway-name": "pilotlight"}
    by_label = named("v1", "Service", "a", "b", metadata={"labels": labels}, spec={"ports": [{"port": 80}]})
    by_address = named("v1", "Service", "c", "d", spec={"ports": [{"port": 80}], "clusterIP": "10.0.0.7"})
    assert service_route.service_behind([by_address, by_label], "pilotlight", ["10.0.0.7"], 80) is by_label
    assert service_route.service_behind([by_address], "pilotlight", ["10.0.0.7"], 80) is by_address
    assert service_route.service_behind([by_address], "pilotlight", ["10.0.0.7"], 8080) is None


def test_an_alias_in_the_cluster_leads_to_what_it_stands_for(server: int) -> None:
    alias = named(
        "v1", "Service", "default", "iris",
        spec={"type": "ExternalName", "externalName": "pilotlight-gateway.pilotlight-system.svc.cluster.local"},
    )  # fmt: skip
    ports = [{"name": "http", "port": server}]
    ours = named(
        "v1", "Service", "pilotlight-system", "pilotlight-gateway", spec={"ports": ports, "clusterIP": "127.0.0.1"}
    )
    with PaperCluster(alias, ours) as paper:
        way = route_to(paper.cluster(), "http://iris.default.svc.cluster.local")
    assert way.url == f"http://127.0.0.1:{server}"


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("iris.default.svc.cluster.local", ("default", "iris")),
        ("iris.default.svc", ("default", "iris")),
        ("iris.default", ("default", "iris")),
        ("iris.default.example.com", None),
        ("iris", None),
        ("", None),
    ],
)
def test_names_of_the_cluster_are_told_from_public_ones(host: str, found: tuple[str, str] | None) -> None:
    assert service_route.service_of(host) == found


def test_plain_http_is_taken_where_a_service_has_several_ports() -> None:
    ports = [{"name": "https", "port": 443}, {"name": "http2", "port": 8080}, {"name": "status", "port": 80}]
    assert service_route.http_port(ports)["name"] == "status"
    assert service_route.http_port(ports[:2])["name"] == "http2"
    assert service_route.http_port(ports[:1])["name"] == "https"


def test_an_unknown_ingress_class_is_named() -> None:
    objects = (network("own.example.com"),)
    with (
        PaperCluster(*objects, kinds=PLAIN + KNATIVE) as paper,
        pytest.raises(NotFound, match=r"own\.example\.com"),
    ):
        open_route(paper.cluster(), URL)


def test_who_may_not_look_at_the_ingress_asks_by_name_where_it_is_known(server: int) -> None:
    forbidden = ("services", "configmaps")
    with PaperCluster(kinds=PLAIN + KNATIVE, forbidden=forbidden) as paper:
        way = route_to(paper.cluster(), f"http://localhost:{server}")
        assert way.url == f"http://localhost:{server}"
        with pytest.raises(NotPermitted, match="you may not read") as raised:
            open_route(paper.cluster(), "http://127.0.0.1:1")
    assert "PILOTLIGHT_INGRESS" in raised.value.hint


def test_a_gateway_is_used_also_by_who_may_not_list_services(server: int) -> None:
    spec = {"hostnames": ["iris.example.com"], "parentRefs": [{"name": "edge"}]}
    route = named("gateway.networking.k8s.io/v1", "HTTPRoute", "default", "iris", spec=spec)
    gateway = named(
        "gateway.networking.k8s.io/v1", "Gateway", "default", "edge",
        spec={"listeners": [{"protocol": "HTTP", "port": server}]}, status={"addresses": [{"value": "127.0.0.1"}]},
    )  # fmt: skip
    with PaperCluster(route, gateway, kinds=PLAIN + GATEWAY, forbidden=("services",)) as paper:
        assert route_to(paper.cluster(), "http://iris.example.com").url.endswith(f":{server}")


def test_who_may_not_look_at_the_gateway_asks_what_the_route_leads_to(server: int) -> None:
    rules = [{"backendRefs": [{"name": "iris-predictor", "port": 80}]}]
    spec = {"hostnames": ["iris.example.com"], "parentRefs": [{"name": "edge", "namespace": "edge"}], "rules": rules}
    route = named("gateway.networking.k8s.io/v1", "HTTPRoute", "default", "iris", spec=spec)
    ports = [{"name": "http1", "port": server}]
    own = named("v1", "Service", "default", "iris-predictor", spec={"clusterIP": "127.0.0.1", "ports": ports})
    with PaperCluster(route, own, kinds=PLAIN + GATEWAY, forbidden=("gateways",)) as paper:
        assert route_to(paper.cluster(), "http://iris.example.com").url.endswith(f":{server}")


def test_a_probe_tells_the_status_and_the_reason(server: int) -> None:
    way = ServiceRoute(f"http://127.0.0.1:{server}", {"Host": HOST})
    assert probe(way, "/v2/health/ready") == "GET /v2/health/ready returned 503: model iris: loading"
    assert probe(way, "/closed") == "", "who asks for a token is there"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": "no such model"}', "no such model"),
        (b'{"error": {"code": 7, "message": "too long"}}', "too long"),
        (b"upstream connect error\nmore", "upstream connect error"),
        (b"", ""),
        (b"[1]", "[1]"),
    ],
)
def test_the_reason_of_an_error_is_read_from_what_servers_write(body: bytes, reason: str) -> None:
    assert reason_in(body) == reason


def test_a_pod_is_ready_unless_its_endpoint_says_otherwise() -> None:
    ends = [{"targetRef": {"kind": "Pod", "name": "a"}}, {"addresses": ["10.0.0.1"]}]
    assert ready_pods({"endpoints": ends}) == ["a"]
