"""From objects of a cluster to the gateway's routes."""

from functools import partial
from typing import Any

import pytest
import yaml
from tests.platform.gateway.cluster.things import (
    GATEWAY,
    Json,
    address,
    deployment,
    endpoint,
    knative_route,
    route,
    slice_of,
    straight,
)

from pilotlight.gateway.cluster import object_fields
from pilotlight.gateway.cluster.cluster_routes import ClusterView, routes
from pilotlight.gateway.cluster.kube_api import key_of
from pilotlight.gateway.proxy.model_routes import ModelMatch, ModelRoutes
from pilotlight.gateway.routing_table import Replica, Route, RouteMatch, RouteMatcher, Table

SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
OURS = "pilotlight-gateway.pilotlight-system"


def kept(read: Any, found: list[Json]) -> dict[Any, Any]:
    return {key_of(each): value for each in found if (value := read(each)) is not None}


def made(
    addresses: list[Json], workloads: list[Json], slices: list[Json] | None = None, hosts: list[Json] | None = None,
    knative: list[Json] | None = None,
) -> tuple[Route, ...]:  # fmt: skip
    return routes(
        ClusterView(
            kept(partial(object_fields.entry_service, gateway=OURS), addresses),
            kept(object_fields.workload, workloads),
            kept(object_fields.route_hosts, hosts or []), kept(object_fields.slice_of, slices or []),
            kept(object_fields.knative_route, knative or []),
        )
    )  # fmt: skip


IRIS = address("iris", "iris-predictor=100")
WORK = deployment("iris", "iris-predictor")


def test_a_service_at_zero_holds_its_requests_for_as_long_as_a_start_may_take() -> None:
    (found,) = made([IRIS], [WORK])
    (backend,) = found.backends
    assert (found.namespace, found.name, found.timeout_s) == ("models", "iris", 60.0)
    assert (backend.workload, backend.weight, backend.replicas, backend.hold_s) == ("iris-predictor", 100, (), 900.0)
    assert backend.tags == ("iris-predictor-1",)


def test_a_model_has_the_names_of_its_workload() -> None:
    (found,) = made([IRIS], [deployment("iris", "iris-predictor", model_names="iris, gpt-4o")])
    assert found.models == ("iris", "gpt-4o")
    assert ModelRoutes([found]).find("models/gpt-4o@canary") == ModelMatch(("models", "iris"), "canary", "iris")


def test_a_serverless_service_is_reached_through_the_ingress_of_knative_which_wakes_it() -> None:
    host = "iris.models.svc.cluster.local"
    work = deployment("iris", "iris-predictor", model_names="iris", auth_tokens_sha256=SHA)
    split = knative_route("iris", f"http://{host}", ("", "iris-1"), ("canary", "iris-2"))
    child = knative_route("iris", "http://x", name="iris-predictor")  # Knative's own, of its Service
    (found,) = made([], [work], knative=[split, child, knative_route("new", "")])
    assert (found.models, found.hosts, found.timeout_s) == (("iris",), (), 60.0 + 900.0)
    assert found.access is not None
    plain, canary = found.backends
    assert (plain.weight, plain.replicas) == (100, (Replica(host, 80, host, authority=host),))
    assert (canary.revision, canary.weight, canary.tags) == ("canary", 0, ("iris-2",))
    assert canary.replicas[0].authority == f"canary-{host}"
    assert made([], [], knative=[split]) == ()  # its access rules are not known yet


def test_a_serverless_service_with_tls_in_the_cluster_says_where_to_call_it() -> None:
    (found,) = made([], [WORK], knative=[knative_route("iris", "https://iris.models.svc.cluster.local")])
    assert "TLS" in found.backends[0].unavailable


def test_replicas_are_the_endpoints_that_are_ready_and_stay() -> None:
    slices = [
        slice_of("iris", "iris-predictor", endpoint("10.0.0.2", "b"), endpoint("10.0.0.3", ready=False), name="one"),
        slice_of("iris", "iris-predictor", endpoint("10.0.0.1", "a"), endpoint("10.0.0.4", terminating=True)),
        slice_of("iris", "iris-predictor-pods", endpoint("10.0.0.9")),
        slice_of("iris", "iris-predictor", endpoint("10.0.0.8"), namespace="others"),
    ]
    (found,) = made([IRIS], [WORK], slices)
    assert found.backends[0].replicas == (Replica("a", 8080, "10.0.0.1"), Replica("b", 8080, "10.0.0.2"))


def test_a_pod_of_two_address_families_is_one_replica() -> None:
    both = [slice_of("iris", "iris-predictor", endpoint(host, "a"), name=host) for host in ("10.0.0.1", "fd00::1")]
    both[1]["addressType"] = "IPv6"
    (found,) = made([IRIS], [WORK], both)
    assert len(found.backends[0].replicas) == 1


def test_a_canary_is_split_as_its_address_says() -> None:
    sides = [deployment("iris", "iris-predictor"), deployment("iris", "iris-canary-predictor", revision="new")]
    (found,) = made([address("iris", "iris-predictor=80, iris-canary-predictor=20")], sides)
    assert [(backend.workload, backend.weight) for backend in found.backends] == [
        ("iris-predictor", 80), ("iris-canary-predictor", 20),
    ]  # fmt: skip
    assert found.backends[1].tags == ("new",)


def test_a_host_a_name_in_the_cluster_and_a_path_lead_to_a_service() -> None:
    found = made([IRIS], [WORK], hosts=[route("iris", "Iris.Example.com")])
    router = RouteMatcher(Table(1, found))
    for host in ("iris.example.com", "iris.models", "iris.models.svc:8090", "iris.models.svc.cluster.local"):
        assert router.match("/v2/health/ready", {"host": host}, None) == RouteMatch(
            ("models", "iris"), "", "/v2/health/ready"
        )
    by_path = router.match("/models/iris/v2?x=1", {"host": "10.0.0.1"}, None)
    assert by_path == RouteMatch(("models", "iris"), "", "/v2?x=1")


def test_nobody_takes_a_host_that_an_older_route_or_the_cluster_has_given() -> None:
    thief = address("thief", "thief-predictor=100", namespace="evil")
    taken = route("thief", "iris.example.com", "iris.models.svc", namespace="evil", since="2026-02-01T00:00:00Z")
    found = made(
        [IRIS, thief], [WORK, deployment("thief", "thief-predictor", namespace="evil")],
        hosts=[taken, route("iris", "iris.example.com")],
    )  # fmt: skip
    by_name = {each.name: each.hosts for each in found}
    assert {"iris.example.com", "iris.models.svc"} <= set(by_name["iris"])
    assert not {"iris.example.com", "iris.models.svc"} & set(by_name["thief"])


def test_a_route_that_no_gateway_accepted_claims_no_host_however_old_it_is() -> None:
    thief = address("thief", "thief-predictor=100", namespace="evil")
    for word, by in (("", "public"), ("False", "public"), ("True", "another")):
        early = route("thief", "iris.example.com", namespace="evil", since="2025-01-01T00:00:00Z", accepted=word, by=by)
        found = made(
            [IRIS, thief], [WORK, deployment("thief", "thief-predictor", namespace="evil")],
            hosts=[early, route("iris", "iris.example.com")],
        )  # fmt: skip
        assert [each.name for each in found if "iris.example.com" in each.hosts] == ["iris"]


def test_addresses_that_kubernetes_own_controller_did_not_write_are_not_believed() -> None:
    for manager in ("", "somebody.example"):
        written = slice_of("iris", "iris-predictor", endpoint("203.0.113.9"))
        written["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = manager
        assert object_fields.slice_of(written) is None
        assert object_fields.pod_addresses(written) == ()


def test_a_service_whose_clients_pass_the_gateway_by_is_still_found_with_the_shares_of_its_route() -> None:
    """A canary keeps both sides up and needs no gateway; whoever was sent here before that must not be lost."""
    canary = deployment("iris", "iris-canary-predictor")
    own, pods = straight("iris", "iris-predictor"), straight("iris", "iris-predictor", name="iris-predictor")
    split = route("iris", to=(("iris-predictor", 90), ("iris-canary-predictor", 10)))
    for routes_there, shares in (([], [100]), ([route("iris")], [100]), ([split], [90, 10])):
        (found,) = made([own, pods], [WORK, canary], hosts=routes_there)
        assert [backend.weight for backend in found.backends] == shares


def test_a_service_that_leads_somewhere_else_is_no_route() -> None:
    elsewhere = [
        address("a", "a-predictor=100", leads_to="pilotlight-gateway.other.svc.cluster.local"),
        address("b", "b-predictor=100", leads_to=f"x.{GATEWAY}"),
        address("c", "c-predictor=most"),
        {**address("d", "d-predictor=100"), "spec": {"type": "ClusterIP", "selector": {"app": "d"}}},
    ]
    assert made(elsewhere, [deployment(name, f"{name}-predictor") for name in "abcd"]) == ()


def test_a_service_whose_workload_is_not_known_is_no_route_since_nobody_knows_who_may_ask() -> None:
    assert made([IRIS], [], [slice_of("iris", "iris-predictor", endpoint("10.0.0.1"))]) == ()


def test_tokens_and_rates_of_the_workload_hold() -> None:
    (found,) = made([IRIS], [deployment("iris", "iris-predictor", auth_tokens_sha256=SHA, rate_limit="5/1m")])
    assert found.access is not None
    assert found.access.tokens == (SHA,)
    assert found.rate is not None
    assert (found.rate.requests, found.rate.seconds) == (5, 60.0)


def test_rules_that_make_no_sense_close_the_door() -> None:
    ready = slice_of("iris", "iris-predictor", endpoint("10.0.0.1"))
    for wrong in ({"auth_tokens_sha256": "a plain token"}, {"auth_token": SHA}, {"rate_limit": "many"}):
        (found,) = made([IRIS], [deployment("iris", "iris-predictor", **wrong)], [ready])
        assert found.backends[0].unavailable.startswith("iris rejects all requests")
        assert found.backends[0].replicas == ()


def test_keys_that_break_their_parser_close_one_service_and_leave_the_others_open() -> None:
    evil = address("evil", "evil-predictor=100", namespace="evil")
    nested = deployment("evil", "evil-predictor", namespace="evil", auth_jwt_jwks="[" * 100_000)
    closed, open_ = made([IRIS, evil], [WORK, nested])
    assert closed.backends[0].unavailable.startswith("evil rejects all requests")
    assert (open_.name, open_.backends[0].unavailable) == ("iris", "")


def test_the_time_for_an_answer_comes_from_the_route_where_the_workload_says_none() -> None:
    work = deployment("iris", "iris-predictor", timeout="", deadline=900)
    (found,) = made([IRIS], [work], hosts=[route("iris", "iris.example.com")])
    assert found.timeout_s == 100.0  # 1000 s in all, 900 of them for the start
    (found,) = made([IRIS], [work])
    assert found.timeout_s == 300.0


@pytest.mark.parametrize(
    ("written", "seconds"), [("5m", 300.0), ("1h30m", 5400.0), ("1500ms", 1.5), ("-5s", 0.0), ("", 0.0)]
)
def test_the_timeout_of_an_httproute_may_have_any_unit(written: str, seconds: float) -> None:
    found = object_fields.route_hosts(route("iris", "iris.example.com", timeout=written))
    assert found.timeout_s == seconds


def test_what_render_writes_for_a_service_from_zero_becomes_its_route(rendered: str) -> None:
    documents = [each for each in yaml.safe_load_all(rendered) if each]
    of = {kind: [each for each in documents if each["kind"] == kind] for kind in ("Service", "Deployment", "HTTPRoute")}
    accepted = [{"type": "Accepted", "status": "True"}]
    taken = [
        {**each, "status": {"parents": [{"parentRef": each["spec"]["parentRefs"][0], "conditions": accepted}]}}
        for each in of["HTTPRoute"]
    ]
    (found,) = made(of["Service"], of["Deployment"], hosts=taken)
    assert (found.namespace, found.name) == ("default", "iris-wake")
    assert "iris-wake-default.example.com" in found.hosts
    assert [(each.workload, each.weight) for each in found.backends] == [("iris-wake-predictor", 100)]
    assert (found.timeout_s, found.backends[0].hold_s) == (300.0, 900.0)
