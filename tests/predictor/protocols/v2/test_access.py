"""Who may call what: tokens on every route of the table, trust in loopback, limits per client, names that climb."""

import json
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.onnx_models import write_identity
from tests.serving import RunningServer, json_tensor

from pilotlight_predictor.config import Limits, Settings
from pilotlight_predictor.errors import PredictorError, RateLimited
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Access, Action
from pilotlight_predictor.frontends.http.router import Dispatcher, Route, ServingProtocol
from pilotlight_predictor.protocols import serving_protocols

Serve = Callable[..., RunningServer]
ROUTES = [route for dialect in serving_protocols() for route in dialect.routes]
GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
API, ADMIN = "api-token-é", "admin-token"


def path_of(route: Route) -> str:
    return route.pattern.format(model="small", version=1, repository="r", name="n", region="n", file="swagger-ui.css")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": "Bearer " + token.encode().decode("latin-1")}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("small")
    write_identity(repository, "small", "FP32")
    return repository


@pytest.fixture(scope="module")
def guarded(small: Path, serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    """Needs the API token for inference and the admin token for the rest."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "api").write_text(API + "\n")
    (folder / "admin").write_text(ADMIN)
    tokens = ("--api-token-file", str(folder / "api"), "--admin-token-file", str(folder / "admin"))
    return serve_module(small, "--model-control-mode", "explicit", "--load-model", "small", *tokens)


@pytest.fixture(scope="module")
def by_hand(small: Path, serve_module: Serve) -> RunningServer:
    """Started without any token: loopback is trusted with the repository."""
    return serve_module(small, "--model-control-mode", "explicit", "--load-model", "small")


def test_the_table_has_routes_of_every_kind() -> None:
    assert {route.action for route in ROUTES} == set(Action)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method}-{route.pattern}")
def test_every_route_asks_for_its_token(guarded: RunningServer, route: Route) -> None:
    path = path_of(route)
    for full in (False, True):
        for wrong in ({}, bearer("wrong"), {"Authorization": API}, {"Authorization": "Basic " + "YTpi"}, bearer("")):
            answer = guarded.request(route.method, path, b"", wrong, full=full)
            if route.action is Action.HEALTH:
                assert answer.status == 200
            else:
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        known = guarded.request(route.method, path, b"", bearer(API), full=full)
        assert (known.status == 403) == (route.action is Action.ADMIN)
        assert known.status != 401
    if route.pattern.endswith(("/unload", "/load")):
        return
    assert guarded.request(route.method, path, b"", bearer(ADMIN)).status not in {401, 403}


def test_trailing_slashes_and_encodings_open_no_door(guarded: RunningServer) -> None:
    for path in (
        "/v2/",
        "//v2",
        "/%76%32",
        "/v2/models/small/",
        "/v2/models/%73mall",
        "/v2?x",
        "/v2/models/small/config/",
    ):
        assert guarded.get(path).status == 401


def test_a_token_on_loopback_does_not_make_an_admin(guarded: RunningServer) -> None:
    assert guarded.post("/v2/repository/index", b"", bearer(API)).status == 403
    assert guarded.post("/v2/repository/index", b"", bearer(ADMIN)).status == 200


def test_with_an_api_token_alone_loopback_needs_it_too(small: Path, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "api").write_text(API)
    server = serve(small, "--api-token-file", str(tmp_path / "api"))
    for path, method in (("/v2/models/small", "GET"), ("/v2/repository/index", "POST")):
        assert server.request(method, path).status == 401
        assert server.request(method, path, b"", bearer(API)).status == 200


def test_loopback_is_trusted_when_started_by_hand(by_hand: RunningServer) -> None:
    for host in ("localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:8080", "[::1]", "LOCALHOST:1"):
        assert by_hand.post("/v2/repository/index", b"", {"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "10.0.0.1"},
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Host": "example.org"},
        {"Forwarded": "for=10.0.0.1"},
        {"X-Real-IP": "10.0.0.1"},
        {"Via": "1.1 proxy"},
        {"K-Proxy-Request": "activator"},
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Host": "example.org"},
        {"Host": "example.org:8080"},
        {"Host": "127.0.0.1.example.org"},
        {"Host": ""},
    ],
)
def test_behind_a_proxy_or_a_web_page_nobody_is_local(by_hand: RunningServer, headers: dict[str, str]) -> None:
    for path in ("/v2/repository/index", "/v2/repository/models/small/unload"):
        for full in (False, True):
            assert by_hand.post(path, b"", headers, full=full).status == 403
    foreign = headers.get("Host") or headers.get("Origin")
    assert by_hand.infer("small", GOOD, headers).status == (403 if foreign else 200)


@pytest.mark.parametrize("how", [("--admin-loopback=false",), {"K_SERVICE": "knative"}, {"PILOTLIGHT_SERVICE": "s"}])
def test_trust_in_loopback_can_be_off(small: Path, serve: Serve, how: tuple[str, ...] | dict[str, str]) -> None:
    server = serve(small, env=how) if isinstance(how, dict) else serve(small, *how)
    assert server.post("/v2/repository/index").status == 403


def test_a_client_beyond_its_rate_is_429_with_the_time_to_wait(small: Path, serve: Serve) -> None:
    limits = ("--rate-limit-enabled=true", "--rate-limit-per-minute", "2", "--trusted-proxies", "127.0.0.0/8")
    server = serve(small, *limits)  # the next request is granted after half a minute
    first, second = {"X-Forwarded-For": "1.1.1.1"}, {"X-Forwarded-For": "2.2.2.2"}
    assert [server.infer("small", GOOD, first).status for _ in range(2)] == [200] * 2
    for full in (False, True):
        refused = server.infer("small", GOOD, first, full=full)
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 31
        assert "2 requests a minute" in refused.error
    assert server.infer("small", GOOD, second).status == 200
    assert server.infer("small", GOOD, {**second, "Authorization": "Bearer made-up"}).status == 200
    assert [server.infer("small", GOOD, {**first, "Authorization": f"Bearer {n}"}).status for n in range(3)] == [
        429
    ] * 3
    assert server.get("/v2/health/ready", first).status == 200


def test_a_connection_that_repeats_the_same_request_is_held_to_its_rate(small: Path, serve: Serve) -> None:
    server = serve(small, "--rate-limit-enabled=true", "--rate-limit-per-minute", "2")
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    answers = []
    for _ in range(5):
        connection.request("POST", "/v2/models/small/infer", json.dumps(GOOD))
        reply = connection.getresponse()
        reply.read()
        answers.append(reply.status)
    connection.close()
    assert answers == [200] * 2 + [429] * 3


def test_limits_of_a_dialect_that_are_given_again_forget_nobody_who_was_counted() -> None:
    admission = Admission(Access(Settings().server), Limits(1, 0.0, None, None), 1)
    admission.set_limits("predict", Limits(1, 0.0, 1, None))
    admission.admit({}, "1.1.1.1", Action.INFER, "predict")
    admission.set_limits("predict", Limits(1, 0.0, 1, None))
    with pytest.raises(RateLimited):
        admission.admit({}, "1.1.1.1", Action.INFER, "predict")


def test_a_dialect_that_cannot_be_imported_is_answered_with_an_error_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> tuple[ServingProtocol, ...]:
        raise ImportError("no module called that")

    admission = Admission(Access(Settings().server), Limits(1, 0.0, None, None), 1)
    dispatcher = Dispatcher(None, (), admission, broken)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(PredictorError, match="internal error"):
            dispatcher.match("GET", "/v1/models")
    assert "no module called that" in caplog.text


def test_a_client_cannot_rename_itself_past_its_rate(small: Path, serve: Serve) -> None:
    server = serve(small, "--rate-limit-enabled=true", "--rate-limit-per-minute", "2")
    answers = [server.infer("small", GOOD, {"X-Forwarded-For": f"1.1.1.{n}"}).status for n in range(6)]
    assert answers == [200] * 2 + [429] * 4


@pytest.mark.parametrize(
    ("behind", "proxies", "client"),
    [(False, (), "127.0.0.1"), (True, (), ""), (True, ("127.0.0.0/8",), "1.2.3.4")],
)
def test_behind_a_proxy_that_is_not_named_nobody_can_be_told_apart(
    behind: bool, proxies: tuple[str, ...], client: str
) -> None:
    access = Access(replace(Settings().server, behind_proxy=behind, trusted_proxies=proxies))
    assert access.identify({"x-forwarded-for": "1.2.3.4"}, "127.0.0.1", Action.INFER).client == client


CLIMBING = [
    "../etc", "a/../b", "..", ".", " ..", ".. ", "/etc/passwd", "model/", "\t", "a\nb", "\0", "a" * 256, "é" * 128,
    "..\\x", "small/../small", "%2e%2e",
]  # fmt: skip


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_a_name_that_is_no_single_path_component_is_refused(by_hand: RunningServer, name: str, verb: str) -> None:
    answer = by_hand.post(f"/v2/repository/models/{quote(name, safe='')}/{verb}")
    expected = {404} if name == "%2e%2e" else {400}
    assert answer.status in expected
    assert "model name" in answer.error or answer.status == 404


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("suffix", ["", "/infer", "/config", "/ready"])
def test_a_climbing_name_is_just_an_unknown_model(by_hand: RunningServer, name: str, suffix: str) -> None:
    path = f"/v2/models/{quote(name, safe='')}{suffix}"
    answer = by_hand.post(path, GOOD) if suffix == "/infer" else by_hand.get(path)
    assert answer.status == 404


@pytest.mark.parametrize(
    "path", ["/v2/models/../../etc/passwd", "/v2/models/./small", "/v2/repository/models/../index"]
)
def test_dots_in_a_path_are_not_followed(by_hand: RunningServer, path: str) -> None:
    assert by_hand.get(path).status in {404, 405}


@pytest.mark.parametrize("name", ["...", "model..1"])
def test_dots_within_a_name_are_fine(by_hand: RunningServer, name: str) -> None:
    answer = by_hand.post(f"/v2/repository/models/{name}/load")
    assert (answer.status, "none of the model repositories" in answer.error) == (404, True)


def test_an_empty_name_is_no_route(by_hand: RunningServer) -> None:
    assert by_hand.post("/v2/repository/models//load").status == 404


def test_files_within_a_request_are_refused_by_default(by_hand: RunningServer) -> None:
    parameters = {"config": '{"backend": "python"}', "file:1/model.py": "cHJpbnQoMSk="}
    answer = by_hand.post("/v2/repository/models/mine/load", {"parameters": parameters})
    assert (answer.status, "--allow-inline-files" in answer.error) == (403, True)
