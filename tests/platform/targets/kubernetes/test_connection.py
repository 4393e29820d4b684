"""The wire to a cluster, on real HTTP: what is waited for, and what is told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.targets.kubernetes.client import RETRY_S, KubeApiError, KubeConnection


class Server(ThreadingHTTPServer):
    """Answers as it was told, one answer after the other; the last one stays."""

    answers: list[tuple[int, dict[str, Any], dict[str, str]]]
    asked: list[tuple[str, str, str]]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        self.server.asked.append((self.command, self.path, body))
        answers = self.server.answers
        status, document, headers = answers.pop(0) if len(answers) > 1 else answers[0]
        sent = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(sent))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

    do_GET = do_POST = do_PATCH = _answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        return


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.answers, made.asked = [(200, {}, {})], []
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def connection(server: Server) -> Iterator[KubeConnection]:
    from kubernetes import client

    clock = Clock()
    api = client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}"))
    yield KubeConnection(api, clock, clock.sleep)
    api.rest_client.pool_manager.clear()


def test_a_server_that_is_starting_is_waited_for(server: Server, connection: KubeConnection) -> None:
    server.answers = [(503, {}, {}), (429, {}, {}), (200, {"kind": "Pod"}, {})]
    assert connection.request("GET", "/api/v1/pods").document == {"kind": "Pod"}
    assert len(server.asked) == 3


def test_one_that_does_not_come_back_is_given_up_in_the_end(server: Server, connection: KubeConnection) -> None:
    server.answers = [(503, {"message": "etcd is away"}, {})]
    with pytest.raises(KubeApiError, match="etcd is away"):
        connection.request("GET", "/api/v1/pods")
    assert len(server.asked) > RETRY_S


def test_a_machine_that_is_not_there_is_told_with_what_to_look_at() -> None:
    from kubernetes import client

    clock = Clock()
    away = KubeConnection(client.ApiClient(client.Configuration(host="http://127.0.0.1:9")), clock, clock.sleep)
    with pytest.raises(PlatformError, match=r"the cluster at http://127\.0\.0\.1:9 does not answer") as caught:
        away.request("GET", "/version")
    assert "KUBECONFIG" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (404, {"message": "no such pod"}, NotFound),
        (409, {"message": "it is there", "reason": "AlreadyExists"}, Conflict),
        (409, {"message": "fields are managed by other tools", "reason": "Conflict"}, KubeApiError),
        (403, {"message": "pods is forbidden"}, KubeApiError),
    ],
)
def test_a_refusal_is_what_it_means(
    server: Server, connection: KubeConnection, status: int, document: dict[str, Any], kind: type[PlatformError]
) -> None:
    server.answers = [(status, document, {})]
    with pytest.raises(kind, match=document["message"]):
        connection.request("GET", "/api/v1/pods")


def test_remarks_of_the_server_come_with_its_answer(server: Server, connection: KubeConnection) -> None:
    server.answers = [(200, {}, {"warning": '299 - "would violate PodSecurity \\"restricted\\""'})]
    assert connection.request("PATCH", "/x", {}, {"a": 1}).warnings == ('would violate PodSecurity "restricted"',)
    assert server.asked[0][2] == '{"a":1}'


def test_bodies_are_written_as_the_api_server_writes_them(server: Server, connection: KubeConnection) -> None:
    """Else a patch of a release's annotations is refused: its data would differ from what is stored."""
    sent = {"expr": "a > 1 < 2 & b \u2028 é"}
    connection.request("POST", "/apis", None, sent)
    (_, _, body) = server.asked[-1]
    assert body == '{"expr":"a \\u003e 1 \\u003c 2 \\u0026 b \\u2028 é"}'
    assert json.loads(body) == sent
