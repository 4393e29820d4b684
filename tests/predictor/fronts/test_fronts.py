"""A server with fronts: what it serves, counts and refuses, as one process would."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Serve
from tests.onnx_models import write_add_sub, write_identity
from tests.predictor.models.bls.triton_models import DECOUPLED, config, tensor, write_model, write_models
from tests.predictor.scheduling.sequence_scheduler.sequence_models import PATIENT, write_sums
from tests.predictor.workers.several import count_of, pid_of, pids_of, seconds, wait_for_all, workers, write_pid
from tests.serving import RunningServer, json_tensor

WORDS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in tensor_of(request, "text_input").ravel()[0].decode().split():
                sender.send(response_of(text_output=np.array([word], np.object_)))
            sender.send(flags=FINAL)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_models(tmp_path_factory.mktemp("models"), "endless")
    text_in, text_out = tensor("text_input", "STRING", "1"), tensor("text_output", "STRING", "1")
    write_model(root, "words", WORDS, config([text_in], [text_out], DECOUPLED))
    write_sums(root, "sums", f"direct {{}} {PATIENT}")
    write_add_sub(root, "add_sub")
    write_identity(root, "identity", "FP32")
    return write_pid(root)


@pytest.fixture(scope="module")
def two(repository: Path, serve_module: Serve) -> RunningServer:
    server = serve_module(repository, "--fronts", "2", "--model-control-mode", "explicit", "--load-model", "*")
    wait_for_all(server, 3)
    return server


def test_all_requests_run_in_one_process_whichever_front_takes_them(two: RunningServer) -> None:
    *fronts, models = (row["pid"] for row in workers(two))
    assert pids_of(two, 20) == {models}
    assert two.process.pid not in fronts
    both = {line["front"] for line in two.log() if line["event"] == "listening" and "front" in line}
    assert both == {0, 1}


def test_large_tensors_pass_unchanged_through_both_fronts_at_once(two: RunningServer) -> None:
    def sent(number: int) -> bool:
        x = np.full(100_000, number, "<f4") + np.arange(100_000, dtype="<f4")
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "shape": [x.size],
                        "datatype": "FP32",
                        "parameters": {"binary_data_size": x.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        answer = two.infer("identity", head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
        size = int(answer.headers["inference-header-content-length"])
        return answer.status == 200 and answer.body[size:] == x.tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(sent, range(64)))


def test_what_does_not_fit_the_model_is_refused_in_the_words_of_one_process(
    two: RunningServer, serve: Serve, tmp_path: Path
) -> None:
    write_add_sub(tmp_path, "add_sub")
    alone = serve(tmp_path)
    bad = {"inputs": [json_tensor("a", "FP32", [1, 3], [1, 2, 3]), json_tensor("b", "FP32", [1, 4], [1, 2, 3, 4])]}
    ours, theirs = two.infer("add_sub", bad), alone.infer("add_sub", bad)
    assert (ours.status, ours.error) == (theirs.status, theirs.error)
    assert ours.status == 400


def test_a_sequence_is_one_over_all_fronts(two: RunningServer) -> None:
    def sent(number: int, **flags: bool) -> int:
        inputs = [json_tensor("INPUT", "INT32", [1, 1], [number])]
        answer = two.infer("sums", {"inputs": inputs, "parameters": {"sequence_id": 7, **flags}})
        assert answer.status == 200, answer.body
        return int(answer.json()["outputs"][0]["data"][0])

    assert sent(1, sequence_start=True) == 1
    assert [sent(1) for _ in range(10)] == list(range(2, 12))
    assert sent(1, sequence_end=True) == 12


def test_a_stream_comes_in_order_and_ends(two: RunningServer) -> None:
    words = [str(number) for number in range(200)]
    answer = two.post("/v2/models/words/generate_stream", {"text_input": " ".join(words)})
    events = [json.loads(part.removeprefix("data: ")) for part in answer.body.decode().split("\n\n") if part]
    assert [event["text_output"] for event in events] == words


def test_a_client_that_leaves_amid_a_stream_stops_the_model(two: RunningServer, repository: Path) -> None:
    noted = repository / "endless/1/cancelled"
    body = b'{"IN": 1}'
    head = f"POST /v2/models/endless/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", two.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        noted.unlink(missing_ok=True)
    two.wait_until(noted.exists, "the model stops")


def test_a_request_that_waits_is_taken_out_when_its_client_leaves(two: RunningServer, repository: Path) -> None:
    held = repository / "pid" / "held"
    held.touch()
    try:
        first = threading.Thread(target=pid_of, args=(two,))
        first.start()
        body = json.dumps(seconds(0)).encode()
        head = f"POST /v2/models/pid/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        before = count_of(two, "nv_inference_request_failure")
        two.wait_until(lambda: count_of(two, "pilotlight_requests_in_flight") >= 1, "one runs")
        with two.connect() as connection:
            connection.sendall(head + body)
            two.wait_until(lambda: count_of(two, "pilotlight_queue_depth") == 1, "one waits")
        two.wait_until(lambda: count_of(two, "nv_inference_request_failure") == before + 1, "it is taken out")
    finally:
        held.unlink()
    first.join()


def test_metrics_and_statistics_are_those_of_one_server(two: RunningServer) -> None:
    before, took = count_of(two, "nv_inference_count"), count_of(two, "pilotlight_request_duration_seconds_count")
    (row,) = two.get("/v2/models/pid/stats").json()["model_stats"]
    pids_of(two, 20)
    assert count_of(two, "nv_inference_count") == before + 20
    assert count_of(two, "pilotlight_request_duration_seconds_count") == took + 20
    (after,) = two.get("/v2/models/pid/stats").json()["model_stats"]
    assert after["inference_count"] == row["inference_count"] + 20


def test_a_model_that_is_unloaded_or_loaded_is_so_in_every_front_at_once(two: RunningServer) -> None:
    for _ in range(3):
        assert two.post("/v2/repository/models/identity/unload", {}).status == 200
        assert {two.get("/v2/models/identity/ready").status for _ in range(8)} == {503}
        assert two.post("/v2/repository/models/identity/load", {}).status == 200
        assert {two.get("/v2/models/identity/ready").status for _ in range(8)} == {200}
    states = {row["name"]: row["state"] for row in two.post("/v2/repository/index").json()}
    assert states["identity"] == "READY"
    assert two.post("/v2/repository/models/absent/load", {}).status >= 400


def test_what_needs_one_process_is_refused_with_the_option_s_name(two: RunningServer) -> None:
    for method, path in (("GET", "/v2/systemsharedmemory/status"), ("GET", "/v2/trace/setting")):
        answer = two.request(method, path)
        assert answer.status == 501
        assert "--fronts" in answer.error


def test_a_rate_limit_holds_over_all_fronts(serve: Serve, tmp_path: Path) -> None:
    server = serve(write_pid(tmp_path), "--fronts", "2", "--rate-limit-per-minute", "4")
    wait_for_all(server, 3)
    assert [server.infer("pid", seconds(0)).status for _ in range(12)] == [200] * 4 + [429] * 8
