"""Log lines as they are written, parsed again."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotlight_predictor
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """stderr's stand-in; the root logger is put back afterwards, for pytest's own handlers hang there."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def only_line(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    parsed = json.loads(line)
    assert isinstance(parsed, dict)
    return parsed


def test_a_line_has_the_schema_in_order(stream: io.StringIO) -> None:
    logs.configure("INFO", "json", stream)
    logs.log("model.loaded", "iris 1 is ready", request_id="r-1", traceparent="00-…", model="iris", seconds=0.5)
    line = only_line(stream)
    assert list(line) == [
        "ts", "level", "event", "message", "logger", "request_id", "traceparent", "model", "seconds",
    ]  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
    assert (line["level"], line["event"], line["message"]) == ("INFO", "model.loaded", "iris 1 is ready")


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0, "1970-01-01T00:00:00.000Z"), (1769860800.0625, "2026-01-31T12:00:00.062Z")]
)
def test_time_is_rfc_3339_in_utc(seconds: float, written: str) -> None:
    assert logs.timestamp(seconds) == written


def test_what_libraries_log_has_the_same_schema(stream: io.StringIO) -> None:
    logs.configure("INFO", "json", stream)
    logging.getLogger("aiohttp.server").warning("odd request from %s", "::1")
    line = only_line(stream)
    assert (line["event"], line["logger"], line["message"]) == ("log", "aiohttp.server", "odd request from ::1")


def test_the_servers_own_code_names_its_events() -> None:
    """But for the logger that Triton's users call from their models, and the number that a worker gives every line."""
    package = Path(pilotlight_predictor.__file__).parent
    plain = {str(path.relative_to(package)) for path in package.rglob("*.py") if "getLogger" in path.read_text()}
    assert plain == {
        "observability/logs.py",
        "backends/python/triton/pb_utils.py",
        "workers/worker.py",
    }


def test_a_traceback_is_a_field_of_the_same_line(stream: io.StringIO) -> None:
    logs.configure("INFO", "json", stream)
    try:
        {}["absent"]
    except KeyError as error:
        logs.log("backend.failed", "no such key", level="ERROR", error=error)
    line = only_line(stream)
    assert line["traceback"].startswith("Traceback (most recent call last)")
    assert "KeyError: 'absent'" in line["traceback"]


def test_levels_below_the_configured_one_are_silent(stream: io.StringIO) -> None:
    logs.configure("WARNING", "json", stream)
    logs.log("quiet", "nothing")
    logs.log("loud", "something", level="WARNING")
    assert only_line(stream)["event"] == "loud"


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("authorization", "Bearer abc.def.ghi", "[redacted]"),
        ("Proxy-Authorization", "Basic Zm9v", "[redacted]"),
        ("admin_token", "s3cret", "[redacted]"),
        ("AWS_SECRET_ACCESS_KEY", "x", "[redacted]"),
        ("x-api-key", "x", "[redacted]"),
        ("headers", {"Cookie": "a=b", "accept": "*/*"}, {"Cookie": "[redacted]", "accept": "*/*"}),
        ("detail", "sent Authorization: Bearer abcdef123456 twice", "sent Authorization: Bearer [redacted] twice"),
        ("uri", "https://me:pass@host/x", "https://[redacted]@host/x"),
        ("uri", "https://b/o?X-Amz-Signature=abc&part=1", "https://b/o?X-Amz-Signature=[redacted]&part=1"),
        ("uri", "https://acct/o?sv=1&sig=a%2Fb", "https://acct/o?sv=1&sig=[redacted]"),
        ("max_tokens", 16, 16),
        ("prompt_tokens", "12", "12"),
        ("token_file", "/run/token", "/run/token"),
    ],
)
def test_credentials_are_masked_and_counts_are_not(
    stream: io.StringIO, name: str, value: object, written: object
) -> None:
    logs.configure("INFO", "json", stream)
    logs.log("event", "a value", **{name: value})  # type: ignore[arg-type]
    assert only_line(stream)[name] == written


def test_messages_and_tracebacks_are_masked_too(stream: io.StringIO) -> None:
    logs.configure("INFO", "json", stream)
    logs.log("fetch", "GET https://user:hunter2@host", error=ValueError("Bearer hunter2hunter2"))
    assert "hunter2" not in stream.getvalue()


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [2**70, "\ud800", {1: {2.5: b"x"}}, {"a", "b"}, float("nan"), object()])
def test_any_value_makes_a_valid_line(stream: io.StringIO, value: object) -> None:
    logs.configure("INFO", "json", stream)
    logs.log("event", "a value", value=value)
    assert only_line(stream)["event"].strip("'") == "event"


class BrokenStream(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("broken", [BrokenStream(), None])
def test_logging_never_raises(stream: io.StringIO, broken: io.StringIO | None) -> None:
    logs.configure("INFO", "json", broken or stream)
    logs.log("event", "a value", value=Unprintable())


def test_text_is_one_readable_line(stream: io.StringIO) -> None:
    logs.configure("INFO", "text", stream)
    logs.log("model.loaded", "in 0.070 s", model="iris")
    logs.log("listening", "listening on http://127.0.0.1:8080", host="127.0.0.1", http_port=8080)
    logs.log("ready", "model iris in 0.070 s", phases={"import": 0.05}, models=["iris"])
    assert [line.partition("Z INFO     ")[2] for line in stream.getvalue().splitlines()] == [
        "model.loaded: in 0.070 s model=iris",
        "listening on http://127.0.0.1:8080",
        "ready: model iris in 0.070 s",
    ]


def test_auto_is_json_when_nobody_watches(stream: io.StringIO) -> None:
    logs.configure("INFO", "auto", stream)
    logs.log("event", "happened")
    assert only_line(stream)["event"] == "event"


def test_the_access_log_leaves_the_query_out(stream: io.StringIO) -> None:
    logs.configure("INFO", "json", stream)
    logs.access("POST", "/v2/models/iris/infer?key=1", 200, 0.0123, request_id="r", model="iris")
    line = only_line(stream)
    assert (line["logger"], line["event"]) == ("pilotlight.access", "request")
    assert (line["path"], line["status"], line["duration_ms"]) == ("/v2/models/iris/infer", 200, 12.3)
    assert line["message"] == "POST /v2/models/iris/infer 200 12.3ms"


def test_a_log_file_is_appended_to_and_a_missing_folder_is_an_error(stream: io.StringIO, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("before\n")
    logs.configure("INFO", "json", stream, str(file))
    logs.log("ready", "hello")
    assert [line[:6] for line in file.read_text().splitlines()] == ["before", '{"ts":']
    assert not stream.getvalue()
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logs.LineHandler)
    handler.redirect(None)
    with pytest.raises(LoadFailed, match="cannot be opened"):
        logs.configure("INFO", "json", stream, str(tmp_path / "none" / "log.txt"))
