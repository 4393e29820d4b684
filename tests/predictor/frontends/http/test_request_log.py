"""A predictor without a gateway logs inference requests itself, over the fast protocol and the full server."""

import json
from pathlib import Path

import pytest
from tests.eventually import eventually
from tests.predictor.in_process_server import write_times
from tests.serving import RunningServer

from pilotlight.wire.request_log.settings import LogSettings, encode

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "requests.jsonl"


def test_inference_is_logged_redacted_and_flushed_at_exit(tmp_path: Path, log: Path) -> None:
    repository = tmp_path / "models"
    write_times(repository, "double", 2.0)
    settings = LogSettings(f"file://{log}", "demo", "double", redact_fields=("data",), batch_s=30.0)
    env = {"INFERENCE_REQUEST_LOG": encode(settings), "PILOTLIGHT_REVISION": "double-1"}
    server = RunningServer(tmp_path, "--model-repository", str(repository), env=env)
    try:
        path = "/v2/models/double/infer"
        for headers in ({"X-Request-Id": "fast"}, {"X-Request-Id": "full", "Expect": "100-continue"}):
            assert server.post(path, BODY, headers).status == 200
        assert server.post("/v2/models/none/infer", BODY).status == 404
        assert server.get("/v2/models/double").status == 200  # no inference
        eventually(lambda: b"pilotlight_request_log_events_total{" in server.get("/metrics").body, "the metric")
    finally:
        server.stop()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(event["type"].rpartition(".")[2], event.get("httpstatus")) for event in events] == [
        ("request", None), ("response", "200"), ("request", None), ("response", "200"), ("request", None),
        ("response", "404"),
    ]  # fmt: skip
    assert [event["id"] for event in events[:4]] == ["fast", "fast", "full", "full"]
    assert events[0]["data"]["inputs"][0] == {**BODY["inputs"][0], "data": "[redacted]"}
    assert events[1]["data"]["outputs"][0]["data"] == "[redacted]"
    assert {(event["revision"], event["component"]) for event in events} == {("double-1", "predictor")}


def test_invalid_settings_end_the_start_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        RunningServer(tmp_path, "--model-repository", str(tmp_path), "--request-log", '{"url": "gs://x"}')
    assert "request-log" in (tmp_path / "predictor.log").read_text()
