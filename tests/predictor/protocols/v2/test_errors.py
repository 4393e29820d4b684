"""Every class of the error tree becomes the reply that its docstring draws, and reaches a client or cannot."""

import inspect
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_add_sub, write_identity, write_python
from tests.predictor.zoo import GATE, MOODY
from tests.serving import Answer, RunningServer, json_tensor, rendered

from pilotlight_predictor import errors
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.http.messages import HttpRequest
from pilotlight_predictor.frontends.http.router import error_response
from pilotlight_predictor.protocols.v2.infer_response import error_body

SLOW_LOAD = """
import pathlib
import time


class Model:
    def initialize(self, args):
        while not (pathlib.Path(__file__).parent / "go").exists():
            time.sleep(0.01)

    def execute(self, inputs):
        return inputs


INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"x": ("FP32", [-1])}
"""
GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PredictorError)]


def nap(seconds: float) -> dict[str, Any]:
    return {"inputs": [json_tensor("seconds", "FP32", [1], [seconds])]}


def wait_at(gate: Path, **parameters: Any) -> dict[str, Any]:
    return {"inputs": [json_tensor("path", "BYTES", [1], [str(gate)])], "parameters": parameters}


def made(kind: type[PredictorError]) -> PredictorError:
    further = {"RateLimited": (7,), "MethodNotAllowed": ("GET",)}.get(kind.__name__, ())
    return kind("one sentence", *further)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_a_class_is_drawn_and_becomes_its_reply(kind: type[PredictorError]) -> None:
    drawn = re.search(rf"\b{kind.__name__}\b +(\d+)? ", errors.__doc__ or "")
    assert drawn, f"{kind.__name__} is missing in the tree of errors.py"
    parent = kind.__mro__[1]
    assert int(drawn[1] or parent.status) == kind.status  # type: ignore[attr-defined]
    call = HttpRequest("GET", "/v2", "", {}, b"", "", lambda _: None, 0.0)
    reply = error_response(error_body, made(kind), call)
    assert isinstance(reply.body, list)
    assert (reply.status, json.loads(bytes(reply.body[0]))) == (kind.status, {"error": "one sentence"})
    headers = reply.headers or {}
    assert ("Retry-After" in headers) == (kind.status in {429, 503})
    assert ("WWW-Authenticate" in headers) == (kind.status == 401)
    assert ("Accept-Encoding" in headers) == (kind.status == 501)
    assert ("Allow" in headers) == (kind.status == 405)


def test_an_error_that_is_none_of_ours_is_opaque() -> None:
    call = HttpRequest("GET", "/v2", "", {}, b"", "", lambda _: None, 0.0)
    reply = error_response(error_body, KeyError("a secret of ours"), call)
    assert reply.status == 500
    assert isinstance(reply.body, list)
    assert b"secret" not in bytes(reply.body[0])


# Where a client meets each of them. Those with no test here: nobody is left to read a Cancelled, and the roots of the
# tree are raised only through error_reply (PredictorError) or through their children (Unavailable).
REACHED: dict[str, str] = {
    "BadRequest": "test_a_bad_request_is_400",
    "Unreadable": "test_what_is_no_message_is_refused_by_a_status (../../frontends/grpc/server/test_raw_sockets.py)",
    "Unauthenticated": "test_every_route_asks_for_its_token (test_access.py)",
    "Forbidden": "test_every_route_asks_for_its_token (test_access.py)",
    "Restricted": "test_a_restricted_call_needs_the_key_of_its_group (../../frontends/test_restricted_apis.py)",
    "ShapeMismatch": "test_a_request_of_another_shape_that_fails_is_the_clients_fault"
    " (../../backends/test_torch_derived_signature.py)",
    "NotFound": "test_an_unknown_model_or_version_is_not_found (test_routes.py)",
    "NoRoute": "test_what_is_no_route_is_404 (test_routes.py)",
    "MethodNotAllowed": "test_another_method_is_405_with_what_is_allowed (test_routes.py)",
    "RequestTimeout": "test_a_body_that_aiohttp_reads_too_slowly_is_408 (../../frontends/http/test_slow_senders.py)",
    "RequestTooLarge": "test_the_size_limit_is_exact_in_both_frontends (test_frontends.py)",
    "RateLimited": "test_a_client_beyond_its_rate_is_429_with_the_time_to_wait (test_access.py)",
    "Unsupported": "test_another_encoding_is_501_with_what_is_known (test_compression.py)",
    "NotReady": "test_a_model_that_loads_is_503_with_retry_after",
    "QueueFull": "test_a_full_queue_is_503_at_once",
    "QueueTimeout": "test_a_clients_timeout_in_the_queue_is_503_though_the_model_sets_none",
    "DeadlineExceeded": "test_an_inference_beyond_its_time_is_504",
    "BackendFailed": "test_a_model_that_raises_is_500_and_tells_only_the_log",
    "LoadFailed": "test_a_load_that_fails_says_so_and_why (test_repository_calls.py)",
    "ModelChanged": "test_a_model_that_changed_since_its_revision_was_deployed_fails_to_load"
    " (../../models/test_model_fetcher.py)",
}
UNREACHABLE = {"PredictorError", "Unavailable", "Cancelled"}


def test_every_class_is_met_by_a_client_or_cannot_be() -> None:
    assert {kind.__name__ for kind in TREE} == REACHED.keys() | UNREACHABLE
    for where in REACHED.values():
        test, _, file = where.partition(" (")
        source = (Path(__file__).parent / (file.rstrip(")") or Path(__file__).name)).read_text()
        assert f"def {test}(" in source


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    """Queues of one place; one model takes as long as a client wants it to."""
    repository = tmp_path_factory.mktemp("busy")
    write_python(repository, "moody", MOODY)
    write_python(repository, "gate", GATE)
    write_identity(repository, "identity", "FP32")
    return serve_module(repository, "--max-queue-size", "1")


class Asking(threading.Thread):
    """A request on its way."""

    def __init__(self, server: RunningServer, document: Any) -> None:
        super().__init__(daemon=True)
        self._server, self._document = server, document
        self.answer: Answer | None = None
        self.start()

    def run(self) -> None:
        raw = rendered("POST", "/v2/models/gate/infer", self._document, None, self._server.address)
        (self.answer,) = self._server.exchange(raw, timeout_s=100)

    def wait(self) -> Answer:
        self.join(60)
        assert self.answer is not None
        return self.answer


def queue_depth(text: str) -> float:
    found = re.search(r'^pilotlight_queue_depth\{[^}]*model="gate"[^}]*\} (\S+)', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def in_flight(server: RunningServer) -> int:
    return int(server.get("/status").json()["in_flight"])


def test_a_bad_request_is_400(busy: RunningServer) -> None:
    assert busy.infer("identity", {}).status == 400


def test_a_full_queue_is_503_at_once(busy: RunningServer, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    running = Asking(busy, wait_at(gate))
    busy.wait_until(lambda: in_flight(busy) == 1 and not waiting(busy), "busy with one")
    queued = Asking(busy, wait_at(gate))
    busy.wait_until(lambda: waiting(busy) == 1, "full")
    refused = busy.infer("gate", wait_at(gate))
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "Exceeds maximum queue size" in refused.error
    assert busy.infer("identity", GOOD).status == 200
    gate.touch()
    assert [running.wait().status, queued.wait().status] == [200, 200]


def waiting(server: RunningServer) -> int:
    return int(queue_depth(server.get("/metrics").body.decode()))


def test_a_clients_timeout_in_the_queue_is_503_though_the_model_sets_none(busy: RunningServer, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    running = Asking(busy, wait_at(gate))
    busy.wait_until(lambda: in_flight(busy) == 1 and not waiting(busy), "busy with one")
    late = busy.infer("gate", wait_at(gate, timeout=50_000))
    assert (late.status, "Request timeout expired" in late.error) == (503, True)
    gate.touch()
    assert running.wait().status == 200


def test_an_inference_beyond_its_time_is_504(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    write_python(tmp_path, "gate", GATE)
    server = serve(tmp_path, "--inference-timeout-s", "0.2")
    late = server.infer("gate", wait_at(tmp_path / "open"))
    assert (late.status, "--inference-timeout-s" in late.error) == (504, True)
    (tmp_path / "open").touch()
    server.wait_until(lambda: server.infer("gate", wait_at(tmp_path / "open")).status == 200, "done with it")


def test_a_model_that_raises_is_500_and_tells_only_the_log(busy: RunningServer) -> None:
    failed = busy.infer("moody", nap(-1.0))
    assert failed.status == 500
    assert "secret" not in failed.error
    assert "moody" in failed.error
    assert any("secret: the model's own words" in json.dumps(line) for line in busy.log())


def test_a_model_that_loads_is_503_with_retry_after(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    folder = write_python(tmp_path, "slow", SLOW_LOAD)
    write_add_sub(tmp_path, "add_sub")
    server = serve(tmp_path, ready=False)
    server.wait_until(lambda: server.get("/v2/models/add_sub/ready").status == 200, "serving the other model")
    for path in ("/v2/models/slow/infer", "/v2/models/slow/versions/1/infer"):
        refused = server.post(path, GOOD)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    health = server.get("/v2/health/ready")
    assert (health.status, health.json()["ready"], health.headers["retry-after"]) == (503, False, "1")
    assert server.get("/v2/models/slow/ready").status == 503
    (folder / "1" / "go").touch()
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready")
    assert server.infer("slow", GOOD).status == 200


def test_triton_says_400_while_not_ready(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    write_python(tmp_path, "slow", SLOW_LOAD)
    server = serve(tmp_path, "--compat", "triton", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").json()["state"] == "loading", "loading")
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/models/slow/ready").status == 400
