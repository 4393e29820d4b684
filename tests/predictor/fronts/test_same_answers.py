"""The same requests of a server with and without fronts have the same answers: models, routes, settings, calls."""

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.certificates import Authority
from tests.conftest import Serve
from tests.onnx_models import write_add_sub, write_python
from tests.ports import free_port
from tests.predictor.frontends.test_tls import SecureServer
from tests.predictor.models.bls.test_models_of_the_server import KEEPER
from tests.predictor.models.bls.triton_models import config, tensor, write_model
from tests.predictor.models.parking.test_parking_over_http import PARKS
from tests.predictor.protocols.openai.conftest import LENGTHS, LENGTHS_CONFIG, LOOKS, LOOKS_CONFIG
from tests.predictor.protocols.test_status import MOODY
from tests.predictor.workers.several import wait_for_all
from tests.serving import Answer, RunningServer, json_tensor
from tests.triton_compatibility.servers import SERVERS, write_repository
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

VOLATILE = re.compile(r'"(id|created|created_at|item_id|request_id)":("[^"]*"|\d+)|_ns: \d+')
HEADERS = ("content-type", "retry-after", "allow", "www-authenticate", "inference-header-content-length")
LOADED = ("add", "types", "versions", "fails", "ensemble", "add2", "echo_parameters", "repeat", "zero", "keeper")
FLAGS = (
    *(f"--load-model={name}" for name in (*LOADED, "looks", "lengths", "parks", "cached", "moody")),
    "--model-control-mode=explicit", "--response-cache-bytes=100000", "--park-memory=1000", "--warmup=none",
    "--http-header-forward-pattern=^my-", "--grpc-header-forward-pattern=^my-", "--max-queue-size=3",
)  # fmt: skip
CHAT = {"model": "looks", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
X = {"inputs": [json_tensor("x", "INT32", [1], [1])]}
ONES = [json_tensor("a", "FP32", [1, 4], [1, 2, 3, 4]), json_tensor("b", "FP32", [1, 4], [1, 1, 1, 1])]
FIRST_CLASS = [{"name": "sum", "parameters": {"classification": 1}}]


class Call(NamedTuple):
    path: str
    body: Any = None
    headers: Mapping[str, str] = {}

    def of(self, server: RunningServer) -> Answer:
        method = "GET" if self.body is None else "POST"
        return server.request(method, self.path, b"" if self.body is None else self.body, self.headers)


CALLS = [
    Call("/v2"),
    Call("/v2/models/add"),
    Call("/v2/models/ensemble/config"),
    Call("/v2/models/versions/versions/2"),
    Call("/v2/models/absent"),
    Call("/v2/models/add/versions/7/ready"),
    Call("/v2/models/add/infer", {"inputs": ONES}, {"My-Word": "forwarded, and ignored"}),
    Call("/v2/models/add/infer", {"inputs": ONES, "outputs": FIRST_CLASS}),
    Call("/v2/models/add/infer", {"inputs": ONES, "outputs": [{"name": "absent"}]}),
    Call("/v2/models/add/infer", {"inputs": ONES[:1]}),
    Call("/v2/models/add/infer", b"{"),
    Call("/v2/models/ensemble/infer", {"inputs": ONES, "id": "7"}),
    Call("/v2/models/fails/infer", {"inputs": [json_tensor("x", "INT32", [2], [1, 2])]}),
    Call("/v2/models/moody/infer", {"inputs": [json_tensor("x", "FP32", [1], [0])]}),
    Call("/v2/models/zero/infer", X),
    Call("/v2/models/echo_parameters/infer", {**X, "parameters": {"a": 1}}, {"My-Word": "x", "Other": "y"}),
    Call("/v2/models/repeat/generate_stream", {"n": 3}),
    Call("/v2/models/repeat/generate_stream", {"n": -2}),
    Call("/v2/models/repeat/generate", {"n": 1}),
    *[Call("/v2/models/repeat/infer", {"inputs": [json_tensor("n", "INT32", [1], [n])]}) for n in (2, -1)],
    Call("/v1/models/add:predict", {"instances": [{"a": [1, 2, 3, 4], "b": [0, 0, 0, 0]}]}),
    Call("/v1/models/fails:predict", {"instances": [1]}),
    Call("/v1/models"),
    Call("/v1/chat/completions", CHAT),
    Call("/v1/chat/completions", {**CHAT, "stream": True}),
    Call("/v1/chat/completions", {**CHAT, "n": 100}),
    Call("/v1/chat/completions", {**CHAT, "model": "lengths"}),
    Call("/v1/completions", {"model": "absent", "prompt": "x"}),
    Call("/v1/embeddings", {"model": "lengths", "input": ["a", "bc"]}),
    Call("/v1/responses", {"model": "looks", "input": "Hello"}),
    *[Call("/v2/models/cached/infer", {"inputs": ONES})] * 3,
    Call("/api/status/add"),
    Call("/v2/logging", {"log_verbose_level": 1, "log_info": True}),
    Call("/v2/logging"),
    Call("/v2/logging", {"log_verbose_level": "x"}),
]
# The state that each leaves is what the next one is answered from, whichever front has the connection.
ADMIN_CALLS = [
    Call("/v2/repository/index", {}),
    Call("/v2/repository/models/absent/load", {}),
    Call("/v2/repository/models/bad_config/load", {}),
    Call("/v2/repository/models/other/load", {"parameters": {"config": '{"max_batch_size": 2}'}}),
    *[Call("/v2/models/other/config")] * 4,
    Call("/v2/repository/models/other/unload", {}),
    *[Call("/v2/models/other/infer", {"inputs": ONES})] * 4,
    Call("/v2/models/keeper/infer", {"inputs": [json_tensor("DO", "BYTES", [1], ["load other"])]}),
    *[Call("/v2/models/other/infer", {"inputs": ONES})] * 4,
    Call("/v2/models/keeper/infer", {"inputs": [json_tensor("DO", "BYTES", [1], ["unload other"])]}),
    *[Call("/v2/models/other/ready")] * 4,
    Call("/v2/repository/models/parks/park", {}),
    *[Call("/v2/repository/index", {"ready": True})] * 4,
    *[Call("/v2/models/parks/infer", {"inputs": [json_tensor("x", "FP32", [1], [4])]})] * 2,
    Call("/v2/repository/models/add/park", {}),
    Call("/v2/repository/models/parks/park", {}),
    Call("/v2/repository/models/parks/wake", {}),
    Call("/v2/repository/models/ensemble/unload", {"parameters": {"unload_dependents": True}}),
    *[Call("/v2/models/add2/ready")] * 4,
    Call("/v2/repository/index", {}),
]


class Pair(NamedTuple):
    alone: RunningServer
    fronts: RunningServer


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_repository(tmp_path_factory.mktemp("same") / "models", SERVERS["plain"])
    write_model(root, "keeper", KEEPER, config([tensor("DO", "STRING", "1")], [tensor("SAID", "STRING", "1")]))
    write_python(root, "looks", LOOKS, LOOKS_CONFIG)
    write_python(root, "lengths", LENGTHS, LENGTHS_CONFIG)
    write_python(root, "parks", PARKS)
    write_python(root, "moody", MOODY)
    write_add_sub(root, "cached", config="max_batch_size: 8 response_cache { enable: true }")
    return root


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def both(repository: Path, ports: tuple[int, int], serve_module: Serve) -> Pair:
    alone = serve_module(repository, *FLAGS, "--grpc-port", str(ports[0]), ready=False)
    fronts = serve_module(repository, *FLAGS, "--grpc-port", str(ports[1]), "--fronts", "2")
    wait_for_all(fronts, 3)
    alone.wait_until(lambda: alone.get("/v2/health/ready").status == 200, "ready")
    return Pair(alone, fronts)


def shown(answer: Answer) -> tuple[int, dict[str, str], str]:
    headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    return answer.status, headers, VOLATILE.sub("", answer.body.decode())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.path)
def test_a_request_has_the_answer_of_one_process(both: Pair, call: Call) -> None:
    theirs, ours = shown(call.of(both.alone)), shown(call.of(both.fronts))
    assert ours == theirs


def test_calls_of_operators_and_models_change_what_one_process_changes(both: Pair) -> None:
    for call in ADMIN_CALLS:
        theirs, ours = shown(call.of(both.alone)), shown(call.of(both.fronts))
        assert (call, ours) == (call, theirs)


def test_the_status_counts_first_failures_and_has_the_phases_of_the_models(both: Pair) -> None:
    x = {"inputs": [json_tensor("x", "FP32", [1], [-1])]}
    for server in both:
        assert [server.infer("moody", x).status for _ in range(4)] == [500] * 4
    theirs, ours = (server.get("/status").json() for server in both)
    assert ours["models"] == theirs["models"]
    assert next(row for row in ours["models"] if row["name"] == "moody")["unverified_failures"] == 4
    assert ours.keys() - {"workers"} == theirs.keys()
    assert ours["phases"].keys() == theirs["phases"].keys()
    assert ours["phases"]["load"] > 0


def test_grpc_calls_have_the_answers_of_one_process(both: Pair, ports: tuple[int, int]) -> None:
    both.fronts.wait_until(
        lambda: sum(line["event"] == "grpc.listening" for line in both.fronts.log()) == 2, "listening for gRPC"
    )
    both.alone.wait_for_event("grpc.listening")
    theirs, ours = map(rpc_answers, ports)
    assert ours == theirs


def rpc_answers(port: int) -> list[Any]:
    x = triton.InferInput("x", [1], "INT32")
    x.set_data_from_numpy(np.array([1], np.int32))
    answers: list[Any] = []
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        calls = [
            lambda: client.infer("echo_parameters", [x], headers={"my-word": "w"}).as_numpy("parameters").tolist(),
            lambda: client.infer("fails", [x]),
            lambda: client.get_model_config("versions", "2", as_json=True),
            lambda: client.get_inference_statistics("versions", "x"),
            lambda: client.unload_model("zero"),
            lambda: client.is_model_ready("zero"),
            lambda: client.load_model("zero", config='{"max_batch_size": 0}'),
            lambda: client.get_model_metadata("zero", as_json=True),
            lambda: client.load_model("bad_config"),
            lambda: client.get_model_repository_index(as_json=True),
            lambda: client.update_log_settings({"log_verbose_level": 2}, as_json=True),
            lambda: client.get_log_settings(as_json=True),
        ]
        for call in calls:
            try:
                answers.append(call())
            except InferenceServerException as error:
                answers.append(str(error))
    return answers


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Both over TLS, with restricted calls, in Triton's words."""
    write_python(tmp_path / "models", "moody", MOODY)
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    monkeypatch.setattr(SecureServer, "client", ssl.create_default_context(cafile=str(authority.path)), raising=False)
    flags = ["--tls-cert", str(certificate), "--tls-key", str(key), "--compat=triton", "--admin-loopback=false"]
    flags += ["--grpc-restricted-protocol=model-repository:key=secret"]
    flags += ["--http-restricted-api=model-repository,metadata:key=secret", "--model-control-mode=explicit"]
    flags += ["--load-model=*", "--model-repository", str(tmp_path / "models")]
    with ExitStack() as stack:
        started = []
        for name, more in (("alone", []), ("fronts", ["--fronts", "2"])):
            (tmp_path / name).mkdir()
            port = f"--grpc-port={free_port()}"
            started.append(stack.enter_context(SecureServer(tmp_path / name, *flags, port, *more)))
        yield Pair(*started)
        assert [server.stop() for server in started] == [0, 0]


def test_tls_restricted_calls_and_tritons_words_are_as_in_one_process(secure: Pair, tmp_path: Path) -> None:
    key = {"key": "secret"}
    calls = [
        Call("/v2"), Call("/v2", headers=key), Call("/v2/models/moody", headers={"key": "x"}),
        Call("/v2/repository/index", {}), Call("/v2/repository/index", {}, key), Call("/v2/health/ready"),
        *(Call("/v2/models/moody/infer", {"inputs": [json_tensor("x", "FP32", [1], [x])]}) for x in (-1, 0, 1)),
        Call("/v2/models/absent/infer", X), Call("/v2/models/moody/infer", b"{"),
    ]  # fmt: skip
    for call in calls:
        theirs, ours = shown(call.of(secure.alone)), shown(call.of(secure.fronts))
        assert (call, ours) == (call, theirs)
    credentials = grpc.ssl_channel_credentials((tmp_path / "authority.crt").read_bytes())
    load = service_pb2.RepositoryModelLoadRequest(repository_name="other", model_name="moody")
    for server in secure:
        address = f"localhost:{server.wait_for_event('grpc.listening')['grpc_port']}"
        with grpc.secure_channel(address, credentials) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                service_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryModelLoad(
                    load, metadata=[("triton-grpc-protocol-key", "secret")]
                )
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
