"""Groups of calls with a key of their own, and headers that become parameters, over HTTP and gRPC."""

import json
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tests.serving import RunningServer
from tests.triton_compatibility.servers import SERVERS, write_repository
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from pilotlight_predictor.config import SettingsError, parse
from pilotlight_predictor.config.value_types import API_GROUPS
from pilotlight_predictor.errors import Restricted
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc import services
from pilotlight_predictor.frontends.restricted_apis import Restriction, api_group
from pilotlight_predictor.protocols import serving_protocols

KEYS = ("model-repository,inference:key=secret", "metadata:other=word")
BODY = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
KEY, RPC_KEY = {"key": "secret"}, {"triton-grpc-protocol-key": "secret"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("restricted")
    flags = [f"--{name}={groups}" for name in ("http-restricted-api", "grpc-restricted-protocol") for groups in KEYS]
    flags += ["--http-header-forward-pattern=^my-", "--grpc-header-forward-pattern=^my-", "--grpc-port=0"]
    flags += ["--admin-loopback=false", "--model-control-mode=explicit", "--load-model=*"]
    repository = write_repository(folder / "models", SERVERS["forward"])
    with RunningServer(folder, "--model-repository", str(repository), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[InferenceServerClient]:
    port = server.wait_for_event("grpc.listening")["grpc_port"]
    with InferenceServerClient(f"127.0.0.1:{port}") as opened:
        yield opened


def parameters(server: RunningServer, **headers: str) -> object:
    answer = server.infer(
        "echo_parameters", BODY, {**KEY, **{name.replace("_", "-"): headers[name] for name in headers}}
    )
    assert answer.status == 200
    return json.loads(answer.json()["outputs"][0]["data"][0])


def test_a_restricted_call_needs_the_key_of_its_group(server: RunningServer) -> None:
    refusal = server.infer("echo_parameters", BODY)
    assert (refusal.status, refusal.error) == (403, "This API is restricted, expecting header 'key'")
    assert server.infer("echo_parameters", BODY, {"key": "wrong"}).status == 403
    assert server.infer("echo_parameters", BODY, {"other": "word"}).status == 403
    assert server.infer("echo_parameters", BODY, KEY).status == 200
    assert server.get("/v2").status == 403
    assert server.get("/v2", {"Other": "word"}).status == 200
    assert server.get("/v2/health/ready").status == 200


def test_a_key_of_any_script_is_compared_byte_by_byte() -> None:
    restriction = Restriction("key", "ключ", "API")
    restriction.check({"key": "ключ".encode().decode("latin-1")})  # as a header is read
    for headers in ({}, {"key": ""}, {"key": "????"}, {"key": "\xff\xff\xff\xff"}):
        with pytest.raises(Restricted):
            restriction.check(headers)


def test_every_protocol_of_a_group_is_restricted(server: RunningServer) -> None:
    for path in ("/v1/models/m:predict", "/v2/models/m/generate", "/api/infer/m", "/v1/completions"):
        assert [server.post(path, {}, headers).status == 403 for headers in ({}, KEY)] == [True, False]


def test_an_error_names_no_models_whose_list_needs_another_key(server: RunningServer) -> None:
    assert server.infer("echo", BODY, KEY).error == "Request for unknown model: 'echo' is not found"


def test_the_key_of_a_group_replaces_the_admin_token(server: RunningServer) -> None:
    load = "/v2/repository/models/echo_parameters/load"
    assert [server.post(load, {}, headers).status for headers in ({}, KEY)] == [403, 200]
    assert server.get("/v2/logging", KEY).status == 403  # not its group


def test_grpc_calls_need_the_prefixed_key(client: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-key'") as refused:
        client.load_model("echo_parameters", {"key": "secret"})
    assert refused.value.status() == str(grpc.StatusCode.UNAVAILABLE)
    client.load_model("echo_parameters", RPC_KEY)
    assert client.is_server_ready()


def test_matching_headers_are_parameters_of_the_request(server: RunningServer, client: InferenceServerClient) -> None:
    assert parameters(server, My_Team="red", other="x") == {"My-Team": "red"}
    assert parameters(server, other="x") == {}
    x = InferInput("x", [1], "INT32")
    x.set_data_from_numpy(np.array([1], np.int32))
    result = client.infer("echo_parameters", [x], headers={**RPC_KEY, "my-team": "red"})
    assert json.loads(result.as_numpy("parameters")[0]) == {"my-team": "red"}


def test_every_route_and_method_has_a_known_group() -> None:
    routes = [(route.action, route.pattern) for protocol in serving_protocols() for route in protocol.routes]
    methods = [(method.action, f"/{each.name}/{method.name}") for each in services() for method in each.methods]
    found = {call: api_group(*call) for call in (*routes, *methods)}
    assert set(found.values()) == {*API_GROUPS, ""}
    assert {action for (action, _), group in found.items() if not group} == {Action.METRICS}
    assert {group for (action, _), group in found.items() if action is Action.ADMIN} == {
        "shared-memory", "model-repository", "trace", "logging"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--http-restricted-api=nix:key=value"], "must be groups"),
        (["--http-restricted-api=inference"], "must be groups"),
        (["--grpc-restricted-protocol=inference:key"], "must be groups"),
        (["--http-restricted-api=inference,inference:key=value"], "must be groups"),
        (["--http-restricted-api=trace:a=b", "--http-restricted-api=inference,trace:c=d"], "restricts trace twice"),
        (["--http-header-forward-pattern=("], "must be a regular expression"),
    ],
)
def test_a_mistake_in_these_flags_is_refused(flags: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse(["--model-path=m", *flags], {})
