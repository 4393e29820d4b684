"""Sequences over HTTP and gRPC, asked by Triton's own clients."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.predictor.scheduling.sequence_scheduler.sequence_models import PATIENT, write_stateful, write_sums
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException

OLDEST = f"oldest {{ max_candidate_sequences: 8 }} {PATIENT}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    repository = tmp_path_factory.mktemp("sequences")
    write_sums(repository, "direct", f"direct {{ }} {PATIENT}")
    write_sums(repository, "oldest", OLDEST)
    write_sums(repository, "named", OLDEST, kind="STRING")
    write_sums(repository, "small", OLDEST, kind="INT32")
    write_sums(repository, "unbatched", f"direct {{ }} {PATIENT}", "max_batch_size: 0")
    write_sums(repository, "hasty", "direct { } max_sequence_idle_microseconds: 100000", "max_batch_size: 1")
    write_stateful(repository, "stateful", f"direct {{ }} {PATIENT}")
    write_stateful(repository, "stateful_oldest", OLDEST)
    write_stateful(repository, "stateful_unbatched", f"direct {{ }} {PATIENT}", size=0)
    folder = write_stateful(repository, "stateful_from_file", f"direct {{ }} {PATIENT}", 'data_file: "hundred"')
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "hundred").write_bytes(np.array([100], np.int32).tobytes())
    return serve_module(repository, "--grpc-port", "0")


class Asking:
    """One of Triton's clients, http or grpc."""

    def __init__(self, library: Any, address: str) -> None:
        self._library = library
        self._client = library.InferenceServerClient(address)

    def __call__(self, model: str, number: int, sequence: int | str, **how: Any) -> Any:
        shape = [1] if "unbatched" in model else [1, 1]
        tensor = self._library.InferInput("INPUT", shape, "INT32")
        tensor.set_data_from_numpy(np.full(shape, number, np.int32))
        return self._client.infer(model, [tensor], sequence_id=sequence, **how)

    def sums(self, model: str, numbers: list[int], sequence: int | str) -> list[int]:
        last = len(numbers) - 1
        return [
            self(model, number, sequence, sequence_start=index == 0, sequence_end=index == last)
            .as_numpy("OUTPUT")
            .item()
            for index, number in enumerate(numbers)
        ]

    def close(self) -> None:
        self._client.close()


@pytest.fixture(params=["http", "grpc"])
def ask(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Asking]:
    address = server.address if request.param == "http" else grpc_address(server)
    made = Asking(triton_http if request.param == "http" else triton_grpc, address)
    yield made
    made.close()


MODELS = ["direct", "oldest", "unbatched", "stateful", "stateful_oldest", "stateful_unbatched"]


@pytest.mark.parametrize("model", MODELS)
def test_each_sequence_has_a_sum_of_its_own(ask: Asking, model: str) -> None:
    assert ask(model, 5, 1, sequence_start=True).as_numpy("OUTPUT").item() == 5
    assert model == "unbatched" or model == "stateful_unbatched" or ask.sums(model, [10, 20, 30], 2) == [10, 30, 60]
    assert ask(model, 6, 1, sequence_end=True).as_numpy("OUTPUT").item() == 11
    assert ask.sums(model, [1], 1) == [1]


def test_a_state_may_begin_with_what_a_file_says(ask: Asking) -> None:
    assert ask.sums("stateful_from_file", [1, 2], 9) == [101, 103]


def test_no_client_sees_controls_or_states(server: RunningServer) -> None:
    told = server.get("/v2/models/stateful").json()
    assert [tensor["name"] for tensor in (*told["inputs"], *told["outputs"])] == ["INPUT", "OUTPUT"]
    answer = server.infer("stateful", _document(7, 70, start=True, end=True))
    assert [output["name"] for output in answer.json()["outputs"]] == ["OUTPUT"]


@pytest.mark.parametrize("model", ["direct", "oldest", "stateful", "stateful_oldest"])
def test_many_sequences_at_once_keep_their_order(server: RunningServer, model: str) -> None:
    def one(sequence: int) -> list[int]:
        asking = Asking(triton_http, server.address)
        try:
            return asking.sums(model, [sequence] * 8, 1000 + sequence)
        finally:
            asking.close()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(1, 17)))
    assert found == [[sequence * step for step in range(1, 9)] for sequence in range(1, 17)]


def test_requests_of_one_stream_keep_their_order(server: RunningServer) -> None:
    answers: Queue[Any] = Queue()
    with triton_grpc.InferenceServerClient(grpc_address(server)) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for index in range(20):
            tensor = triton_grpc.InferInput("INPUT", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
            marks = {"sequence_start": index == 0, "sequence_end": index == 19}
            client.async_stream_infer("direct", [tensor], sequence_id=77, **marks)
        found = [answers.get(timeout=60).as_numpy("OUTPUT").item() for _ in range(20)]
    assert found == list(range(1, 21))


def test_an_id_may_be_a_string(ask: Asking) -> None:
    assert ask.sums("named", [1, 2], "session-a") == [1, 3]
    assert ask("named", 1, "b", sequence_start=True, sequence_end=True).as_numpy("BATCH").ravel().tolist() == [b"b"]


@pytest.mark.parametrize(
    ("model", "how", "sentence"),
    [
        (
            "direct",
            {"sequence": 404},
            "inference request for sequence 404 to model 'direct' must specify the START flag",
        ),
        ("direct", {"sequence": 0}, "must specify a non-zero or non-empty correlation ID"),
        (
            "direct",
            {"sequence": "word", "sequence_start": True},
            "'word', must be a number: 'direct' takes it as UINT64",
        ),
        ("small", {"sequence": 1 << 40, "sequence_start": True}, "takes it as INT32"),
    ],
)
def test_what_is_no_part_of_a_sequence_is_refused(ask: Asking, model: str, how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InferenceServerException, match="(?i)" + sentence.replace("(", r"\(")):
        ask(model, 1, **how)


def test_a_sequence_that_ended_must_be_started_again(ask: Asking) -> None:
    assert ask.sums("oldest", [1, 2], 31) == [1, 3]
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        ask("oldest", 3, 31)


def test_a_sequence_that_is_started_again_begins_anew(ask: Asking) -> None:
    ask("direct", 5, 32, sequence_start=True)
    assert ask.sums("direct", [1, 2], 32) == [1, 3]


def test_a_request_that_fails_does_not_end_its_sequence(ask: Asking) -> None:
    ask("oldest", 5, 33, sequence_start=True)
    with pytest.raises(InferenceServerException, match="failed"):
        ask("oldest", -1, 33)
    assert ask("oldest", 1, 33, sequence_end=True).as_numpy("OUTPUT").item() == 6


def test_an_idle_sequence_gives_its_slot_to_one_that_waits(ask: Asking) -> None:
    ask("hasty", 1, 1, sequence_start=True)
    assert ask.sums("hasty", [2], 2) == [2]  # one request: a sequence of two could be idle in between, too
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        ask("hasty", 4, 1)


def test_more_than_one_row_is_refused(server: RunningServer) -> None:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [2, 1], "data": [1, 2]}
    answer = server.infer("direct", {"inputs": [tensor], "parameters": {"sequence_id": 1, "sequence_start": True}})
    assert (answer.status, "must specify batch-size 1" in answer.error) == (400, True)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"sequence_id": 1.5}, "sequence_id"),
        ({"sequence_id": -1}, "sequence_id"),
        ({"sequence_id": "x" * 129}, "sequence_id"),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "sequence_end"),
    ],
)
def test_malformed_parameters_are_named(server: RunningServer, parameters: dict[str, Any], field: str) -> None:
    answer = server.infer("direct", {"inputs": _document(1, 1)["inputs"], "parameters": parameters})
    assert (answer.status, f"parameters.{field}" in answer.error) == (400, True)


def test_a_full_backlog_is_told_at_once(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    write_sums(tmp_path, "one", f"direct {{ }} {PATIENT}", "max_batch_size: 1")
    server = serve(tmp_path, "--max-queue-size", "1")
    assert server.infer("one", _document(1, 1, start=True)).status == 200
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.infer, "one", _document(1, 2, start=True, end=True))
        server.wait_until(lambda: _queued(server) == 1, "queueing")
        refused = server.infer("one", _document(1, 3, start=True))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert server.infer("one", _document(1, 1, end=True)).status == 200
        assert waiting.result().status == 200


def _queued(server: RunningServer) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("pilotlight_queue_depth{"))


def _document(number: int, sequence: int, *, start: bool = False, end: bool = False) -> dict[str, Any]:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [number]}
    return {
        "inputs": [tensor],
        "parameters": {"sequence_id": sequence, "sequence_start": start, "sequence_end": end},
    }
