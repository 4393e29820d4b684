"""Answers of a microservice, read by status and error type; and asking again until the model is there."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.microservices.inference import client
from pilotlight.microservices.inference.client import ChatResponse, Verdict
from pilotlight.microservices.registry.records import PlatformStatus

ANSWER = {"choices": [{"message": {"content": "hi"}}]}
RUNNING = PlatformStatus("running")
BODY = {"messages": [{"role": "user", "content": "hello"}]}


def error(kind: str, message: str = "why") -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (200, ANSWER, "answer"),
        (202, error("initializing"), "again"),
        (202, {}, "again"),
        (429, error("rate_limit_error"), "again"),
        (503, error("model_not_ready"), "again"),
        (503, "upstream connect error", "again"),
        (503, error("initialization_error"), "failed"),
        (503, error("model_load_error"), "failed"),
        (400, error("invalid_request_error"), "failed"),
        (500, error("server_error"), "failed"),
    ],
)
def test_status_and_type_say_what_an_answer_means(status: int, document: object, kind: str) -> None:
    assert client.classify(ChatResponse(status, {}, document)).kind == kind


@pytest.mark.parametrize(
    ("status", "kind", "raised", "told"),
    [
        (503, "model_load_error", PlatformError, "will not become ready: model_load_error: why"),
        (400, "invalid_request_error", UsageError, "refused with 400: invalid_request_error: why"),
        (500, "", PlatformError, "inference failed with 500: why"),
    ],
)
def test_each_failure_is_told_with_what_to_do(status: int, kind: str, raised: type[PlatformError], told: str) -> None:
    failed = client.to_error(status, Verdict("failed", "why", kind))
    assert type(failed) is raised
    assert told in str(failed)
    assert failed.hint


def test_a_model_that_cannot_chat_is_known_by_the_code_of_its_error() -> None:
    verdict = client.classify(ChatResponse(400, {}, {"error": {"message": "why", "code": "task_not_supported"}}))
    assert type(client.to_error(400, verdict)) is client.TaskNotSupported


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def asked(
    replies: list[ChatResponse | Exception], seen: PlatformStatus = RUNNING, max_wait_s: float = 600.0, **more: Any
) -> tuple[ChatResponse, Clock, list[str]]:
    clock, said, left = Clock(), list[str](), iter(replies)

    def send(*_: object) -> ChatResponse:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    wait = client.Wait(max_wait_s, said.append, lambda: clock.now, clock.sleep)
    return client.send_chat("http://x", BODY, lambda: seen, wait, send=send, **more), clock, said


def test_it_is_asked_again_while_it_loads_as_soon_as_it_says() -> None:
    loading = ChatResponse(202, {"retry-after": "5"}, error("model_loading", "loading"))
    starting = ChatResponse(202, {}, error("initializing", "starting"))
    reply, clock, said = asked([ConnectionError(), starting, loading, ChatResponse(200, {}, ANSWER)])
    assert reply.document == ANSWER
    assert clock.pauses == [client.PAUSE_S, client.PAUSE_S, 5.0]
    assert said == ["it is not listening yet", "starting", "loading"]


def test_patience_ends() -> None:
    with pytest.raises(TimedOut, match="not ready within 10 s: loading"):
        asked([ChatResponse(202, {"retry-after": "3"}, error("model_loading", "loading"))] * 9, max_wait_s=10)


def test_one_that_has_ended_on_its_platform_is_not_waited_for() -> None:
    with pytest.raises(PlatformError, match="it is failed: out of memory"):
        asked([ConnectionError()], PlatformStatus("failed", reason="out of memory"))


def test_a_model_that_failed_to_load_is_given_up_at_once() -> None:
    with pytest.raises(PlatformError, match="CUDA out of memory"):
        asked([ChatResponse(503, {}, error("model_load_error", "CUDA out of memory"))])


def test_less_than_five_minutes_for_an_answer_are_refused() -> None:
    with pytest.raises(UsageError, match="timeout = 299, must be at least 300"):
        asked([], timeout=299)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_model_is_there_once_its_server_judges_a_request(status: int) -> None:
    replies = iter([ChatResponse(202, {}, {}), ChatResponse(status, {}, {})])
    client.wait_for_model("http://x", lambda: RUNNING, client.Wait(sleep=lambda _: None), lambda *_: next(replies))
    assert next(replies, None) is None


NO_POD = NotFound("the Service iris has no reachable address and no ready pod")


class Routes:
    """Routes of a platform: each attempt takes the next of `results`; notes those that are closed."""

    def __init__(self, *results: str | PlatformError) -> None:
        self.left, self.closed = list(results), list[str]()

    @contextmanager
    def open(self) -> Iterator[str]:
        result = self.left.pop(0)
        if isinstance(result, PlatformError):
            raise result
        yield result
        self.closed.append(result)


def test_a_route_is_opened_again_until_a_pod_is_ready_within_the_time_of_its_model() -> None:
    clock, said, routes = Clock(), list[str](), Routes(NO_POD, NO_POD, "http://x")
    statuses = iter([PlatformStatus("pending", reason="pulling its image"), RUNNING])
    wait = client.Wait(10, said.append, lambda: clock.now, clock.sleep)
    with client.open_route(routes.open, lambda: next(statuses), wait) as url:
        assert (url, routes.closed) == ("http://x", [])
        assert clock.pauses == [client.PAUSE_S, client.PAUSE_S]
        assert said == ["pulling its image", str(NO_POD)]
        loading = ChatResponse(202, {"retry-after": "7"}, error("model_loading", "loading"))
        with pytest.raises(TimedOut, match="not ready within 10 s: loading"):
            client.wait_for_model(url, lambda: RUNNING, wait, lambda *_: loading)
    assert routes.closed == ["http://x"]


def opened(*results: str | PlatformError, status: PlatformStatus = RUNNING) -> str:
    clock = Clock()
    wait = client.Wait(10, clock=lambda: clock.now, sleep=clock.sleep)
    with client.open_route(Routes(*results).open, lambda: status, wait) as url:
        return url


def test_a_route_that_never_opens_is_waited_for_no_longer_than_its_model() -> None:
    with pytest.raises(TimedOut, match=r"not ready within 10 s: .* no ready pod"):
        opened(*[NO_POD] * 9)


def test_no_route_is_waited_for_once_the_job_has_ended() -> None:
    with pytest.raises(PlatformError, match="it is failed: out of memory"):
        opened(NO_POD, "http://x", status=PlatformStatus("failed", reason="out of memory"))


def test_a_route_that_is_not_permitted_is_not_tried_again() -> None:
    with pytest.raises(PlatformError, match="not permitted"):
        opened(PlatformError("not permitted"), "http://x")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told = json.dumps({"path": self.path, "type": self.headers["content-type"], "body": body}).encode()
        self.send_response(202)
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def listening() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_request_goes_as_json_to_chat_completions(listening: str) -> None:
    reply = client.post_chat(listening, BODY, 300.0)
    assert (reply.status, reply.headers["retry-after"]) == (202, "7")
    assert reply.document == {"path": "/v1/chat/completions", "type": "application/json", "body": BODY}


def test_where_nobody_listens_it_may_be_sent_again() -> None:
    with pytest.raises(ConnectionError):
        client.post_chat("http://127.0.0.1:1", BODY, 300.0)
