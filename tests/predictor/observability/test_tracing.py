"""Trace context by the W3C specification, and spans that a real OTLP receiver on loopback takes."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from pilotlight_predictor.frontends.http.access_log import RequestObserver
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.observability.tracing import (
    Tracer,
    accept,
    is_traceparent,
    open_tracer,
    parse_tracestate,
    traceparent_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "header",
    [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-is-this"],
)
def test_valid_parents_are_taken(header: str) -> None:
    assert is_traceparent(header)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",  # a version that is reserved
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",  # version 00 has four fields
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f" {PARENT}",
        f"{PARENT}\n",
    ],
)
def test_invalid_parents_are_ignored(header: str) -> None:
    assert not is_traceparent(header)


@pytest.mark.parametrize(
    ("header", "members"),
    [
        ("", ()),
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", (("rojo", "00f067aa0ba902b7"), ("congo", "t61rcWkgMzE"))),
        (" a=1 ,\t, b@v=2 ", (("a", "1"), ("b@v", "2"))),
        ("a= 1", (("a", " 1"),)),
        (",".join(f"k{n}=v" for n in range(32)), tuple((f"k{n}", "v") for n in range(32))),
        ("a=1,a=2", None),
        ("A=1", None),
        ("a", None),
        ("a=", None),
        ("a=b=c", None),
        ("a=\u00e9", None),
        (",".join(f"k{n}=v" for n in range(33)), None),
    ],
)
def test_trace_state_is_taken_whole_or_not_at_all(header: str, members: tuple[tuple[str, str], ...] | None) -> None:
    assert parse_tracestate(header) == members


@pytest.mark.parametrize(
    ("parent", "state", "passed_on"),
    [
        (PARENT, " a=1 , b=2", (PARENT, "a=1,b=2")),
        (PARENT, "a=1,a=1", (PARENT, "")),
        ("junk", "a=1", ("", "")),
        ("", "a=1", ("", "")),
    ],
)
def test_only_valid_context_is_passed_on(parent: str, state: str, passed_on: tuple[str, str]) -> None:
    assert accept(parent, state) == passed_on


class Collector(HTTPServer):
    """Takes OTLP/HTTP as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.paths: list[str] = []
        self.exports: list[ExportTraceServiceRequest] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[WireSpan]:
        scopes = (
            scope for export in self.exports for resource in export.resource_spans for scope in resource.scope_spans
        )
        return [span for scope in scopes for span in scope.spans]


class _Receive(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.exports.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_span_reaches_the_collector_below_its_parent(collector: Collector) -> None:
    tracer = open_tracer({}, "iris", endpoint=collector.endpoint + "/")
    span = tracer.start("infer", PARENT, {"model": "iris", "rows": 4})
    assert span is not None
    span.set_attribute("code", 200)
    span.end()
    tracer.close()
    (sent,) = collector.spans()
    assert collector.paths == ["/v1/traces"]
    assert (sent.name, sent.trace_id.hex(), sent.parent_span_id.hex()) == ("infer", TRACE, SPAN)
    assert sent.kind == WireSpan.SPAN_KIND_SERVER
    assert {a.key: a.value.string_value or a.value.int_value for a in sent.attributes} == {
        "model": "iris",
        "rows": 4,
        "code": 200,
    }
    resource = collector.exports[0].resource_spans[0].resource
    assert {a.key: a.value.string_value for a in resource.attributes}["service.name"] == "iris"


def test_the_environment_names_the_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    tracer = open_tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}, "iris")
    span = tracer.start("infer")
    assert span is not None
    traceparent = traceparent_of(span)
    span.end()
    tracer.close()
    (sent,) = collector.spans()
    assert traceparent.startswith(f"00-{sent.trace_id.hex()}-{sent.span_id.hex()}-")
    assert int(traceparent[-2:], 16) & 1, "sampled"
    assert sent.parent_span_id == b""


@pytest.mark.parametrize(("status", "code"), [(200, 0), (404, 0), (503, 2)])
def test_a_failed_request_is_a_failed_span(collector: Collector, status: int, code: int) -> None:
    tracer = open_tracer({}, "iris", endpoint=collector.endpoint)
    request = HttpRequest("GET", "/v2", "", {}, b"", "", lambda _: None, 0.0)
    RequestObserver(False, tracer).attach(request, "/v2")
    request.finish(HttpResponse(status))
    tracer.close()
    (sent,) = collector.spans()
    assert (sent.status.code, sent.status.message) == (code, f"status {status}" if code else "")
    assert [event.name for event in sent.events] == ["exception"] * (code == 2)


def test_a_parent_that_is_not_sampled_exports_nothing(collector: Collector) -> None:
    tracer = open_tracer({}, "iris", endpoint=collector.endpoint)
    span = tracer.start("infer", f"00-{TRACE}-{SPAN}-00")
    assert span is not None
    assert traceparent_of(span).startswith(f"00-{TRACE}-")
    span.end()
    tracer.close()
    assert collector.spans() == []


def test_without_a_collector_nothing_starts() -> None:
    tracer = open_tracer({}, "iris")
    assert not tracer.enabled
    assert tracer.start("infer", PARENT) is None
    tracer.close()
    assert Tracer().start("infer") is None
