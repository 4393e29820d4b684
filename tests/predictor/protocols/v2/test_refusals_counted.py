"""Refused inferences are in the metrics, so that an error rate sees a client whose requests are broken."""

from collections.abc import Callable
from pathlib import Path

from tests.onnx_models import write_identity
from tests.serving import RunningServer


def counted(server: RunningServer, model: str, code: int) -> bool:
    lines = server.get("/metrics").body.decode().splitlines()
    series = [line for line in lines if line.startswith("pilotlight_request_duration_seconds_count")]
    return any(f'model="{model}"' in line and f'code="{code}"' in line for line in series)


def test_refused_inferences_are_counted(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    write_identity(tmp_path, "echo", "FP32")
    server = serve(tmp_path)
    assert server.infer("echo", b"not json").status == 400
    assert counted(server, "echo", 400)
    assert server.infer("nobody", b"{}").status == 404
    assert counted(server, "", 404)
    assert server.request("POST", "/v2/models/echo/infer", b"not json either", full=True).status == 400
    assert server.get("/v2/nothing").status == 404
    metrics = server.get("/metrics").body.decode()
    assert "pilotlight_requests_in_flight" in metrics
    assert "nobody" not in metrics
