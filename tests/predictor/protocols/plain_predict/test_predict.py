"""/predict, /healthz and /ready over real connections: the answers of the page, the errors, the limits."""

import gzip
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.onnx_models import write_identity, write_python
from tests.serving import ROOT, Answer, RunningServer, read_answer, rendered

Serve = Callable[..., RunningServer]
IRIS = ("--model-path", str(ROOT / "examples/iris/model.onnx"), "--model-name", "iris", "--model-version", "v1.0.0")
SETOSA = [5.1, 3.5, 1.4, 0.2]
BOTH_FRONTS = pytest.mark.parametrize("full", [False, True], ids=["lane", "aiohttp"])


@pytest.fixture(scope="module")
def iris(serve_module: Serve) -> RunningServer:
    return serve_module(None, *IRIS)


def ask(server: RunningServer, body: Any, status: int = 200, **how: Any) -> Any:
    answer = server.post("/predict", body, **how)
    assert answer.status == status, answer
    return answer.json()


def refusal(server: RunningServer, body: Any, status: int = 422, **how: Any) -> str:
    document = ask(server, body, status, **how)
    assert list(document) == ["detail"]
    return str(document["detail"])


def test_a_client_of_requests_gets_predictions_version_and_latency(iris: RunningServer) -> None:
    response = requests.post(f"{iris.url}/predict", json={"inputs": SETOSA}, timeout=20)
    document = response.json()
    assert (response.status_code, list(document)) == (200, ["predictions", "model_version", "latency_ms"])
    assert document["predictions"] == pytest.approx([0.999, 0.001, 0.0], abs=1e-3)
    assert document["model_version"] == "v1.0.0"
    assert document["latency_ms"] > 0


@BOTH_FRONTS
def test_a_batch_beyond_the_models_is_answered_in_order(iris: RunningServer, full: bool) -> None:
    rows = [[5.1, 3.5, 1.4, 0.2 + index / 1000] for index in range(100)]  # the model batches 32
    batched = ask(iris, {"batch": rows}, full=full)["predictions"]
    assert len(batched) == 100
    for index in (0, 31, 32, 99):
        assert batched[index] == pytest.approx(ask(iris, {"inputs": rows[index]})["predictions"], rel=1e-4)


@BOTH_FRONTS
@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"inputs":[1,NaN]}', "inputs[1]"), (b"{", "JSON"), ({"batch": [SETOSA, [1, 2, 3]]}, "batch[1]"),
        ({"inputs": SETOSA, "output": "z"}, "'z'"), ({"inputs": []}, "inputs cannot be empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_on_is_422_with_a_detail(
    iris: RunningServer, full: bool, body: Any, named: str
) -> None:
    assert named in refusal(iris, body, full=full)


def test_a_packed_body_is_read(iris: RunningServer) -> None:
    packed = gzip.compress(json.dumps({"inputs": SETOSA}).encode())
    assert ask(iris, packed, headers={"Content-Encoding": "gzip"})["predictions"]


def test_health_and_readiness_tell_the_version(iris: RunningServer) -> None:
    assert iris.get("/healthz").json() == {"status": "healthy", "model_version": "v1.0.0"}
    assert iris.get("/ready").json() == {"status": "ready"}


def test_a_model_that_is_not_loaded_is_503(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "broken", "no Python\n")
    server = serve(tmp_path, ready=False)
    server.wait_for_event("failed")
    health = server.get("/healthz")
    assert (health.status, health.json()["detail"]) == (503, "Model not loaded")
    assert health.headers["retry-after"] == "1"
    assert server.get("/ready").status == 503


def test_one_of_several_models_has_to_be_named(server: RunningServer) -> None:
    assert "model_name is missing, must be one of the" in refusal(server, {"inputs": [1, 2]})
    assert ask(server, {"inputs": [1, 2], "model_name": "identity_fp32"})["predictions"] == [1, 2]
    assert ask(server, {"inputs": [1, 2], "model_name": "two_versions"})["model_version"] == "2"
    assert "'none' is not found" in refusal(server, {"inputs": [1], "model_name": "none"}, 404)
    assert "has 2 inputs (a, b)" in refusal(server, {"inputs": [1], "model_name": "add_sub"})
    assert server.get("/healthz").json()["model_version"] == "unknown"


def test_a_failing_model_tells_the_log_and_not_the_client(server: RunningServer) -> None:
    assert "secret" not in refusal(server, {"inputs": [-1], "model_name": "moody"}, 500)
    assert any("secret" in json.dumps(line) for line in server.log())


def test_other_methods_and_a_plain_get_of_the_stream_are_told_what_to_do(iris: RunningServer) -> None:
    assert iris.get("/predict").status == 405
    plain = iris.get("/predict/stream")
    assert (plain.status, plain.headers["upgrade"]) == (426, "websocket")


def test_ten_megabytes_bind_this_dialect_alone(server: RunningServer) -> None:
    body = b" " * (10 << 20) + b"{}"
    for full in (False, True):
        assert "the limit is 10485760 (--max-request-size-mb)" in refusal(server, body, 413, full=full)
    assert server.infer("identity_fp32", body).status == 400


def test_a_long_body_is_read_off_the_loop(server: RunningServer) -> None:
    rows = [[float(index)] * 100 for index in range(4000)]
    document = ask(server, {"batch": rows, "model_name": "identity_fp32"})
    assert document["predictions"] == rows


def test_a_thousand_requests_a_minute_bind_this_dialect_alone(tmp_path: Path, serve: Serve) -> None:
    write_identity(tmp_path, "m", "FP32")
    server = serve(tmp_path)
    many = rendered("POST", "/predict", {"inputs": [1]}, None, server.address) * 100
    answers: list[Answer] = []
    with server.connect() as connection:
        while not answers or answers[-1].status == 200:
            if len(answers) % 100 == 0:
                connection.sendall(many)  # one by one, a busy machine might stay within the limit
            answers.append(read_answer(connection))
    refused = answers.pop()
    assert (len(answers) >= 1000, refused.status) == (True, 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert "more than 1000 requests a minute" in refused.json()["detail"]
    assert server.get("/healthz").status == 200
    v2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    assert server.infer("m", v2).status == 200


def test_the_sequence_limit_binds_what_varies(tmp_path: Path, serve: Serve) -> None:
    write_identity(tmp_path, "varies", "FP32")
    write_identity(tmp_path, "fixed", "FP32", ("batch", 600), "max_batch_size: 4")
    server = serve(tmp_path)
    assert "max_sequence_length" in refusal(server, {"inputs": [1] * 513, "model_name": "varies"})
    assert ask(server, {"inputs": [1] * 512, "model_name": "varies"})["predictions"] == [1] * 512
    assert len(ask(server, {"inputs": [1] * 600, "model_name": "fixed"})["predictions"]) == 600


def test_an_inference_has_its_time_and_then_504(zoo: Path, tmp_path: Path, serve: Serve) -> None:
    shutil.copytree(zoo / "moody", tmp_path / "moody")
    server = serve(tmp_path, "--inference-timeout-s", "0.3")
    assert "inference took longer than 0.3 s" in refusal(server, {"inputs": [20]}, 504)
    assert "longer than 0.3 s" in refusal(server, {"batch": [[0.2]] * 40}, 504)
    server.process.kill()  # the model sleeps on


def test_a_client_that_leaves_frees_its_places(zoo: Path, tmp_path: Path, serve: Serve) -> None:
    shutil.copytree(zoo / "moody", tmp_path / "moody")
    server = serve(tmp_path)
    with server.connect() as connection:
        body = json.dumps({"batch": [[0.05]] * 2000}).encode()
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        server.wait_until(lambda: server.get("/status").json()["in_flight"] == 1, "at work")
    server.wait_until(lambda: server.get("/status").json()["in_flight"] == 0, "free again", 80)  # all take 100 s
    assert ask(server, {"inputs": [0]})["predictions"] == [0]


def test_answers_that_repeat_come_from_the_cache(tmp_path: Path, serve: Serve) -> None:
    counted = 'INPUTS = {"x": ("FP32", [-1])}\nOUTPUTS = {"y": ("FP32", [-1])}\nCALLS = []\n\n\ndef predict(x):\n'
    counted += '    CALLS.append(x)\n    return {"y": x * 0 + len(CALLS)}\n'
    write_python(tmp_path, "m", counted, "max_batch_size: 0 response_cache { enable: true }")
    server = serve(tmp_path, "--response-cache-bytes", "1MiB")
    first = ask(server, {"inputs": [1]})["predictions"]
    assert ask(server, {"batch": [[1]] * 50})["predictions"] == [first] * 50
    assert ask(server, {"inputs": [2]})["predictions"] != first


def test_its_requests_are_counted_as_its_own(iris: RunningServer) -> None:
    ask(iris, {"inputs": SETOSA})
    text = iris.get("/metrics").body.decode()
    assert 'protocol="predict"' in text


def test_many_clients_share_the_models_batches(iris: RunningServer) -> None:
    expected = ask(iris, {"inputs": SETOSA})["predictions"]
    seen: list[Any] = []

    def client() -> None:
        with requests.Session() as session:
            for _ in range(20):
                answer = session.post(f"{iris.url}/predict", json={"inputs": SETOSA}, timeout=20)
                seen.append(answer.json()["predictions"])

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160
    assert all(each == pytest.approx(expected, rel=1e-4) for each in seen)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_torchscript_needs_no_configuration_for_a_list_of_numbers(tmp_path: Path, serve: Serve) -> None:
    torch = pytest.importorskip("torch")
    torch.jit.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)).save(tmp_path / "model.pt")
    server = serve(None, "--model-path", str(tmp_path / "model.pt"))
    assert len(ask(server, {"inputs": SETOSA})["predictions"]) == 2
    assert [len(row) for row in ask(server, {"batch": [SETOSA] * 3})["predictions"]] == [2, 2, 2]
