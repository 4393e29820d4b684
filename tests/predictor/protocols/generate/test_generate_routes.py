"""POST …/generate and …/generate_stream against a real server, over plain sockets and by httpx."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.predictor.models.bls.triton_models import DECOUPLED, config, tensor, write_model, write_models
from tests.serving import RunningServer

WORDS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.respond, args=(request,)).start()

    def respond(self, request):
        sender, told = request.get_response_sender(), json.loads(request.parameters())
        words = tensor_of(request, "text_input").ravel()[0].decode().split()
        for word in words:
            if word == "fail":
                error = pb_utils.TritonError("it said fail", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                return
            word = word.upper() if told.get("shout") else word
            sender.send(response_of(text_output=np.array([word], np.object_)))
        sender.send(flags=FINAL)
"""
UPPER = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            response_of(text_output=np.char.upper(tensor_of(request, "text_input").astype("U")).astype(np.object_))
            for request in requests
        ]
"""
TEXT_IN, TEXT_OUT = tensor("text_input", "STRING", "1"), tensor("text_output", "STRING", "1")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_models(tmp_path_factory.mktemp("generate"), "endless", "square")
    write_model(root, "words", WORDS, config([TEXT_IN], [TEXT_OUT], DECOUPLED))
    write_model(root, "upper", UPPER, config([TEXT_IN], [TEXT_OUT], "max_batch_size: 4"))
    return root


@pytest.fixture(scope="module")
def server(repository: Path, serve_module: Callable[..., RunningServer]) -> RunningServer:
    return serve_module(repository)


def events(body: bytes) -> list[Any]:
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.mark.parametrize("path", ["/v2/models/upper/generate", "/v2/models/upper/versions/1/generate"])
def test_generate_answers_in_flat_json(server: RunningServer, path: str) -> None:
    answer = server.post(path, {"text_input": "hello", "id": "r1", "temperature": 0.1})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"id": "r1", "model_name": "upper", "model_version": "1", "text_output": "HELLO"}


def test_generate_takes_rows_where_the_model_batches(server: RunningServer) -> None:
    for rows in (["a", "b"], [["a"], ["b"]]):
        answer = server.post("/v2/models/upper/generate", {"text_input": rows})
        assert answer.json()["text_output"] == ["A", "B"]


def test_generate_gives_the_one_answer_of_a_decoupled_model_and_refuses_several(server: RunningServer) -> None:
    assert server.post("/v2/models/words/generate", {"text_input": "one"}).json()["text_output"] == "one"
    for text in ("one two", ""):
        answer = server.post("/v2/models/words/generate", {"text_input": text})
        assert answer.status == 400
        assert "generate_stream" in answer.error


def test_generate_stream_sends_an_event_for_each_answer(server: RunningServer) -> None:
    body = {"text_input": "one two three", "parameters": {"shout": True}}
    answer = server.post("/v2/models/words/versions/1/generate_stream", body)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    told = events(answer.body)
    assert [event["text_output"] for event in told] == ["ONE", "TWO", "THREE"]
    assert {(event["model_name"], event["model_version"]) for event in told} == {("words", "1")}


def test_generate_stream_of_an_ordinary_model_is_one_event(server: RunningServer) -> None:
    (only,) = events(server.post("/v2/models/upper/generate_stream", {"text_input": "a"}).body)
    assert only["text_output"] == "A"


def test_a_stream_without_answers_is_empty(server: RunningServer) -> None:
    answer = server.post("/v2/models/words/generate_stream", {"text_input": ""})
    assert (answer.status, answer.body) == (200, b"")


def test_an_error_before_the_first_event_is_a_status_and_a_later_one_an_event(server: RunningServer) -> None:
    early = server.post("/v2/models/words/generate_stream", {"text_input": "fail"})
    assert (early.status, early.error) == (400, "it said fail")
    late = server.post("/v2/models/words/generate_stream", {"text_input": "one fail"})
    assert late.status == 200
    assert [event.get("text_output", event.get("error")) for event in events(late.body)] == ["one", "it said fail"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v2/models/nobody/generate", {}, 404, "nobody"),
        ("/v2/models/nobody/generate_stream", {}, 404, "nobody"),
        ("/v2/models/upper/generate", {}, 400, "missing 'text_input'"),
        ("/v2/models/upper/generate_stream", {}, 400, "missing 'text_input'"),
        ("/v2/models/upper/generate", b"{", 400, "not valid JSON"),
        ("/v2/models/upper/generate", {"text_input": [["a", "b"]]}, 400, "unexpected shape"),
    ],
)
def test_what_is_refused_is_one_sentence(server: RunningServer, path: str, body: Any, status: int, words: str) -> None:
    answer = server.post(path, body)
    assert answer.status == status
    assert words in answer.error


def lines_of(server: RunningServer, model: str, body: bytes) -> tuple[socket.socket, Iterator[bytes]]:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection, iter(connection.makefile("rb"))


def test_a_client_that_leaves_amid_a_stream_stops_the_model(server: RunningServer, repository: Path) -> None:
    noted = repository / "endless/1/cancelled"
    connection, lines = lines_of(server, "endless", b'{"IN": 1}')
    while not next(lines).startswith(b"data: "):
        pass
    noted.unlink(missing_ok=True)
    connection.close()
    lines.close()  # type: ignore[attr-defined] # a file of the socket
    server.wait_until(noted.exists, "the model stops")


def test_a_client_that_does_not_read_holds_the_model_back(server: RunningServer, repository: Path) -> None:
    noted = repository / "endless/1/cancelled"
    connection, lines = lines_of(server, "endless", b'{"IN": 1}')
    next(lines)
    noted.unlink(missing_ok=True)
    before = cpu_seconds(server)
    server.wait_until(lambda: idle(server), "the model waits")
    assert cpu_seconds(server) - before < 60
    connection.close()
    lines.close()  # type: ignore[attr-defined]
    server.wait_until(noted.exists, "the model stops")


def cpu_seconds(server: RunningServer) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def idle(server: RunningServer) -> bool:
    """Whether it used next to nothing for a while: a model that runs away would not."""
    before = cpu_seconds(server)
    try:
        server.process.wait(0.2)
    except Exception:
        return cpu_seconds(server) - before < 0.05
    raise AssertionError("the server has ended")


def test_streams_are_counted_once_and_none_is_left_in_flight(server: RunningServer) -> None:
    for text in ("one two", "fail", "one fail"):
        server.post("/v2/models/words/generate_stream", {"text_input": text})

    server.wait_until(lambda: server.get("/status").json()["in_flight"] == 0, "done")
    counted = 'protocol="generate"'
    body = server.get("/metrics").body.decode()
    lines = [line for line in body.splitlines() if counted in line and 'model="words"' in line and "_count" in line]
    assert lines, body
