"""Which service and revision a request reaches, and what of its address the replica sees."""

import hashlib
import json
from typing import Any

import pytest
from tests.platform.gateway.bed import Bed, Origin, backend, error_of, play, read_answer, route

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.proxy.prepare_request import LiveRoute, RoutingState, prepare
from pilotlight.gateway.routing_table import PageMatch, Route, RouteMatch, RouteMatcher, Table, normalize_host
from pilotlight.wire.http1_strict_parser import parse_request
from pilotlight.wire.service_access import Access

ROUTER = RouteMatcher(
    Table(
        1,
        (
            Route("default", "iris", hosts=("iris.example.com",)),
            Route("team", "iris"),
            Route("default", "team"),
            Route("default", "plain"),
        ),
    )
)


@pytest.mark.parametrize(
    ("target", "headers", "aim"),
    [
        ("/iris/v2/models", {}, RouteMatch(("default", "iris"), "", "/v2/models")),
        ("/default/iris/v2", {}, RouteMatch(("default", "iris"), "", "/v2")),
        ("/team/iris/v2", {}, RouteMatch(("team", "iris"), "", "/v2")),  # the full form wins over the service `team`
        ("/team/other", {}, RouteMatch(("default", "team"), "", "/other")),
        ("/iris", {}, RouteMatch(("default", "iris"), "", "/")),
        ("/iris?x=1", {}, RouteMatch(("default", "iris"), "", "/?x=1")),
        ("/iris/?x=/a?b", {}, RouteMatch(("default", "iris"), "", "/?x=/a?b")),
        ("/iris/a%2Fb/%2e%2e/c//d?q=%20", {}, RouteMatch(("default", "iris"), "", "/a%2Fb/%2e%2e/c//d?q=%20")),
        ("/iris@next/v2", {}, RouteMatch(("default", "iris"), "next", "/v2")),
        ("/team/iris@next", {}, RouteMatch(("team", "iris"), "next", "/")),
        ("/iris/v2", {"x-pilotlight-tag": "next"}, RouteMatch(("default", "iris"), "next", "/v2")),
        ("/iris/v2", {"knative-serving-tag": "next"}, RouteMatch(("default", "iris"), "next", "/v2")),
        ("/iris@a/v2", {"x-pilotlight-tag": "b"}, RouteMatch(("default", "iris"), "a", "/v2")),
        ("/v2/x", {"host": "iris.example.com"}, RouteMatch(("default", "iris"), "", "/v2/x")),
        ("/v2/x", {"host": "IRIS.Example.com.:8090"}, RouteMatch(("default", "iris"), "", "/v2/x")),
        ("http://iris.example.com/v2?a", {"host": "other"}, RouteMatch(("default", "iris"), "", "/v2?a")),
        ("http://other:80/plain/v2", {}, RouteMatch(("default", "plain"), "", "/v2")),
        ("/healthz", {}, PageMatch("healthz")),
        ("/metrics/x", {}, PageMatch("metrics")),
        ("/v2/iris", {}, PageMatch("v2")),
        ("/", {}, None),
        ("*", {}, None),
        ("//iris/v2", {}, None),
        ("/../iris/v2", {}, None),
        ("/x/../iris/v2", {}, None),
        ("/%69ris/v2", {}, None),
        ("/nothing/there", {}, None),
        ("/other/iris/v2", {}, None),
        ("/v2/x", {"host": "iris.example.com.evil"}, None),
    ],
)
def test_where_a_request_goes(target: str, headers: dict[str, str], aim: Any) -> None:
    if target == "/v2/x" and aim is None:
        aim = PageMatch("v2")  # a first segment of the gateway's own
    assert ROUTER.match(target, headers, None) == aim


def test_a_port_of_its_own_gets_every_path_as_it_is() -> None:
    aim = ROUTER.match("/metrics?a", {"host": "iris.example.com"}, ("default", "plain"))
    assert aim == RouteMatch(("default", "plain"), "", "/metrics?a")
    assert ROUTER.match("/", {}, ("default", "gone")) is None


@pytest.mark.parametrize(("host", "bare"), [("a:80", "a"), ("A.", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]")])
def test_a_host_is_compared_without_its_port(host: str, bare: str) -> None:
    assert normalize_host(host) == bare


@pytest.mark.parametrize(("peer", "found"), [("127.0.0.1", True), ("::1", True), ("", True), ("10.0.0.7", False)])
def test_a_route_of_the_platform_itself_is_hidden_from_others(peer: str, found: bool) -> None:
    table = Table(1, (Route("default", "inner", internal=True),))
    landscape = RoutingState(table, {("default", "inner"): LiveRoute(table.routes[0], {}, None)})
    head = parse_request(b"GET /inner/ HTTP/1.1\r\nHost: x")
    prepared = prepare(landscape, head, peer, None)
    assert (prepared.route is not None) is found
    assert (prepared.error is None) is found


@pytest.mark.parametrize(
    ("accept", "loopback", "status"),
    [("text/html,*/*", True, 302), ("application/json", True, 404), ("text/html", False, 404)],
)
def test_the_root_leads_browsers_on_this_machine_to_the_console(accept: str, loopback: bool, status: int) -> None:
    routing = RoutingState(Table(1, console="http://127.0.0.1:8091/console"), {})
    head = parse_request(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:8090\r\nAccept: {accept}".encode())
    error = prepare(routing, head, "127.0.0.1", None, loopback).error
    assert error is not None
    assert error.status == status
    assert error.headers == ({"Location": "http://127.0.0.1:8091/console"} if status == 302 else {})


@pytest.mark.parametrize(("name", "found"), [("inner@k3y", True), ("inner", False), ("inner@other", False)])
def test_a_route_of_the_platform_itself_asks_for_its_key(name: str, found: bool) -> None:
    table = Table(1, (Route("default", "inner", internal=True, key="k3y"),))
    landscape = RoutingState(table, {("default", "inner"): LiveRoute(table.routes[0], {}, None)})
    prepared = prepare(landscape, parse_request(f"GET /{name}/x HTTP/1.1\r\nHost: x".encode()), "127.0.0.1", None)
    assert (prepared.route is not None) is found
    assert prepared.tag == ""
    assert b"k3y" not in prepared.upstream_head


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/chat/v1/completions?x=/sleep", 0), ("/chat/health", 0), ("/chat/sleep?level=1", 404),
        ("/chat/collective_rpc", 404), ("/chat/%73leep", 404), ("/chat//sleep", 404), ("/chat", 404),
    ],
)  # fmt: skip
def test_only_public_paths_of_an_engine_lead_to_it(target: str, status: int) -> None:
    table = Table(1, (Route("default", "chat", public=("/v1/", "/health")),))
    landscape = RoutingState(table, {("default", "chat"): LiveRoute(table.routes[0], {}, None)})
    prepared = prepare(landscape, parse_request(f"POST {target} HTTP/1.1\r\nHost: x".encode()), "127.0.0.1", None)
    assert (prepared.error.status if prepared.error else 0, prepared.route is None) == (status, bool(status))


def test_each_way_leads_to_its_service_over_real_connections() -> None:
    async def case(bed: Bed) -> None:
        one, two = await bed.origin(), await bed.origin()
        bed.publish(
            route("one", backend("one-1", one), hosts=("one.example",)),
            route("two", backend("two-1", two), namespace="team"),
        )
        port = await bed.listen(("team", "two"))
        assert (await bed.ask("GET", "/one/a?q=%20")).status == 200
        assert (await bed.ask("GET", "/b", headers={"Host": "one.example:80"})).status == 200
        assert (await bed.ask("GET", "/team/two/c")).status == 200
        assert (await bed.ask("GET", "/one/d", port=port)).status == 200
        assert [seen.path for seen in one.seen] == ["/a?q=%20", "/b"]
        assert [seen.path for seen in two.seen] == ["/c", "/one/d"]
        prefixes = [seen.headers.get("x-forwarded-prefix") for seen in (*one.seen, *two.seen)]
        assert prefixes == ["/one", None, "/team/two", None]

    play(case)


def test_a_tag_or_the_name_of_a_revision_reaches_it_whatever_its_share() -> None:
    async def case(bed: Bed) -> None:
        old, new = await bed.origin(), await bed.origin()
        bed.publish(route("iris", backend("iris-1", old), backend("iris-2", new, weight=0, tags=("next",))))

        async def hits(path: str, **headers: str) -> tuple[int, int]:
            before = len(old.seen), len(new.seen)
            assert (await bed.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})).status
            return len(old.seen) - before[0], len(new.seen) - before[1]

        assert await hits("/iris/") == (1, 0)
        assert await hits("/iris@next/") == (0, 1)
        assert await hits("/iris@iris-2/") == (0, 1)
        assert await hits("/default/iris@next/x") == (0, 1)
        assert await hits("/iris/", X_Pilotlight_Tag="next") == (0, 1)
        assert await hits("/iris/", Knative_Serving_Tag="iris-2") == (0, 1)
        missing = await bed.ask("GET", "/iris@none/")
        assert missing.status == 404
        assert "'none'" in error_of(missing)

    play(case)


def test_unknown_addresses_get_a_sentence_and_keep_the_connection() -> None:
    async def case(bed: Bed) -> None:
        origin: Origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(b"POST /nobody/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
        missing = await read_answer(reader)
        assert missing.status == 404
        assert "no service" in error_of(missing)
        writer.write(b"HEAD /nobody/x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_answer(reader, "HEAD")).status == 404
        writer.write(b"GET /iris/x HTTP/1.1\r\nHost: a\r\nX-Long: %b\r\n\r\n" % (b"l" * 10_000) * 2)
        assert [(await read_answer(reader)).status for _ in range(2)] == [200, 200]

    play(case)


@pytest.mark.parametrize(
    ("path", "token", "hint"),
    [("/irsi/v2/models", "", "did you mean /iris?"), ("/irsi/v2", "secret", "did you mean /iris?"),
     ("/team/irsi/v2", "secret", "did you mean /team/iris?"), ("/x", "", "there is only /iris"),
     ("/x", "secret", "there are /iris, /team/iris"),
     ("/models", "", "did you mean /v1/models? A base_url must end in /v1"),
     ("/irsi/v1/chat/completions", "", "did you mean /iris?")],
)  # fmt: skip
def test_an_unknown_service_names_those_that_the_caller_may_call(path: str, token: str, hint: str) -> None:
    async def case(bed: Bed) -> None:
        secret = Access(tokens=(hashlib.sha256(b"secret").hexdigest(),))
        bed.publish(
            route("iris"), route("iris", namespace="team", access=secret), route("iris-workload", internal=True)
        )
        got = await bed.ask("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        said = f"no service at this address; {hint}"
        openai = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
        plain = path not in ("/models", "/irsi/v1/chat/completions")
        assert (got.status, json.loads(got.body)) == (404, {"error": said if plain else openai})

    play(case, AccessAdmission())


def test_the_gateways_own_pages_are_read_and_nothing_else() -> None:
    async def case(bed: Bed) -> None:
        bed.plane.pages["metrics"] = lambda: (200, "text/plain; version=0.0.4", b"up 1\n")
        health = await bed.ask("GET", "/healthz")
        assert (health.status, health.body) == (200, b"ok\n")
        metrics = await bed.ask("GET", "/metrics")
        assert (metrics.body, metrics.headers["content-type"]) == (b"up 1\n", "text/plain; version=0.0.4")
        assert (await bed.ask("HEAD", "/metrics")).headers["content-length"] == "5"
        assert (await bed.ask("POST", "/metrics", b"x")).status == 405
        assert (await bed.ask("GET", "/console")).status == 404
        assert b"does not serve /v2; services are below their names: /NAME/v2" in (await bed.ask("GET", "/v2")).body

    play(case)


def test_a_page_for_this_machine_is_not_shown_to_a_client_behind_a_proxy() -> None:
    async def case(bed: Bed) -> None:
        bed.plane.pages["metrics"] = lambda: (200, "text/plain", b"up 1\n")
        bed.plane.loopback_pages = frozenset({"metrics"})
        assert (await bed.ask("GET", "/metrics")).status == 200
        refused = await bed.ask("GET", "/metrics", headers={"X-Forwarded-For": "203.0.113.9"})
        assert (refused.status, b"local clients only" in refused.body) == (403, True)
        assert (await bed.ask("GET", "/healthz", headers={"X-Forwarded-For": "203.0.113.9"})).status == 200

    play(case)


def test_a_table_takes_effect_on_connections_that_are_open() -> None:
    async def case(bed: Bed) -> None:
        old, new = await bed.origin(), await bed.origin()
        bed.publish(route("iris", backend("iris-1", old)))
        reader, writer = await bed.connect()
        raw = b"GET /iris/ HTTP/1.1\r\nHost: a\r\n\r\n"
        writer.write(raw)
        assert (await read_answer(reader)).status == 200
        bed.publish(route("iris", backend("iris-2", new)))
        writer.write(raw)
        assert (await read_answer(reader)).status == 200
        assert (len(old.seen), len(new.seen)) == (1, 1)
        bed.publish()
        writer.write(raw)
        assert (await read_answer(reader)).status == 404

    play(case)
