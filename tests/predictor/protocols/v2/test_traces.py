"""Spans reach a collector, whichever of OpenTelemetry's two variables or our flag names it."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.onnx_models import write_identity
from tests.serving import RunningServer, json_tensor


@pytest.mark.parametrize(
    ("variable", "path"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/v1/traces"),
        ("--otel-endpoint", ""),
    ],
)
def test_spans_are_exported(serve: Callable[..., RunningServer], tmp_path: Path, variable: str, path: str) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        write_identity(tmp_path, "echo", "FP32")
        url = f"http://127.0.0.1:{collector.server_port}{path}"
        flags, named = ((variable, url), {}) if variable.startswith("--") else ((), {variable: url})
        server = serve(tmp_path, *flags, env={**named, "NO_PROXY": "*", "OTEL_BSP_SCHEDULE_DELAY": "50"})
        tensor = json_tensor("x", "FP32", [1], [1.0])

        def told() -> bool:
            assert server.infer("echo", {"inputs": [tensor]}).status == 200
            return any(b"/infer" in body for body in received)

        server.wait_until(told, "a span to arrive")  # the SDK is imported beside the models: the first calls have none
        server.stop()
        collector.shutdown()
