"""Traces in files: CSV of requests and of counts, Azure's shapes, our logs; what is wrong is named with its line."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pilotlight.errors import UsageError
from pilotlight.simulation.trace import CountTrace, Trace, TraceError
from pilotlight.simulation.traces.table import read_trace
from pilotlight.wire.request_log.audit_log import AuditLog
from pilotlight.wire.request_log.events import EventBuilder, LogEvent
from pilotlight.wire.request_log.settings import LogSettings


def single(path: Path, options: str = "") -> Trace:
    trace = read_trace(f"{path}{options}")
    assert isinstance(trace, Trace)
    return trace


def counted(path: Path, options: str = "") -> CountTrace:
    trace = read_trace(f"{path}{options}")
    assert isinstance(trace, CountTrace)
    return trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


@pytest.mark.parametrize(
    ("first", "second"),
    [("100", "101.5"), ("1700000000", "1700000001.5"), ("1700000000000", "1700000001500"), ("1.7e18", "17000000015e8"),
     ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01.5Z"),
     ("2023-11-16 18:15:46.6800000", "2023-11-16 18:15:48.1800000")],
)  # fmt: skip
def test_times_are_read_in_every_notation(file: Path, first: str, second: str) -> None:
    file.write_text(f"Timestamp,path\n{first},/a\n{second},/b\n")
    trace = single(file)
    assert np.diff(trace.arrivals).tolist() == pytest.approx([1.5])
    assert (trace.start is None) == (first == "100")


def test_columns_are_found_by_their_usual_names(file: Path) -> None:
    file.write_text("prompt_tokens;Completion Tokens;arrival time (ms);serviceTimeMs\n7;9;250;12\n8;3;500;40\n")
    trace = single(file)
    assert trace.arrivals.tolist() == [0.25, 0.5]
    assert trace.service_times is not None
    assert trace.service_times.tolist() == pytest.approx([0.012, 0.04])
    assert trace.input_tokens is not None
    assert trace.output_tokens is not None
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 8], [9, 3])


def test_a_file_without_a_header_is_a_list_of_times(file: Path) -> None:
    file.write_text("0\n0.5\n3\n")
    assert single(file).arrivals.tolist() == [0.0, 0.5, 3.0]
    assert (single(file).seconds, single(file, "?duration=1m").seconds) == (3.0, 60.0)


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"timestamp\n1\n2\n"))
    assert single(path).requests == 2


def test_requests_of_azure_functions_2021_arrive_a_duration_before_their_end(file: Path) -> None:
    file.write_text("app,func,end_timestamp,duration\na,f,5,4\na,g,6,1\na,f,3,0.5\nb,f,9,1\n")
    assert single(file, "?app=a").arrivals.tolist() == [1.0, 2.5, 5.0]
    trace = single(file, "?app=a&func=f")
    assert trace.service_times is not None
    assert trace.service_times.tolist() == [4.0, 0.5]


def test_tokens_of_azure_llm_inference_are_read(file: Path) -> None:
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    trace = single(file)
    assert trace.input_tokens is not None
    assert trace.input_tokens.tolist() == [374]
    assert trace.start == datetime(2023, 11, 16, 18, 15, 46, 680590, tzinfo=UTC)


def test_minutes_of_azure_functions_2019_are_added_up(file: Path) -> None:
    header = "HashOwner,HashApp,HashFunction,Trigger," + ",".join(map(str, range(1, 1441)))
    rows = [",".join(["o", "a", name, trigger, *["2"] * 1440]) for name, trigger in (("f", "http"), ("g", "timer"))]
    file.write_text("\n".join([header, *rows, ""]))
    assert counted(file).counts.tolist() == [4] * 1440
    assert counted(file, "?Trigger=http").requests == 2880
    with pytest.raises(TraceError, match="no function has queue"):
        read_trace(f"{file}?Trigger=queue")
    file.write_text("\n".join([header, "o,a,f,http,1,2"]))
    with pytest.raises(TraceError, match=r"trace\.csv:2: the row has 2 minutes, must have 1440"):
        read_trace(str(file))


def test_counts_are_read_with_their_times_or_with_the_length_of_a_bucket(file: Path) -> None:
    file.write_text("minute,requests,duration\n2026-01-01T00:00,3,0.5\n2026-01-01T00:01,0,0\n2026-01-01T00:03,2,1\n")
    trace = counted(file, "?gaps=zero")
    assert (trace.bucket_seconds, trace.counts.tolist()) == (60.0, [3, 0, 0, 2])
    assert trace.service_times is not None
    assert trace.service_times.tolist() == [0.5, 0, 0, 1]
    file.write_text("requests\n3\n4\n")
    assert counted(file, "?bucket=30s").bucket_seconds == 30.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestamp\n1\n3\n2\n", r"trace\.csv:4: the request is earlier than the request before it; sort"),
        ("timestamp,duration\n1,0.1\n\n2,-1\n", r"trace\.csv:4: duration is -1, must not be negative"),
        (
            "timestamp\n1700000000\n1700000001000\n",
            r":3: time 1700000001000 is in milliseconds since 1970, and the rows",
        ),
        (
            "timestamp\n1700000000\n2026-01-01T00:00Z\n",
            r":3: time 2026-01-01T00:00Z is in ISO 8601, and the rows above",
        ),
        ("timestamp,duration\n1,0.1\n2,120ms\n", r":3: duration 120ms is with a unit, and the rows above are without"),
        ("timestamp,duration\n1,soon\n", r":2: duration is 'soon', must be a number or a time as 120ms"),
        ("timestamp\n1\nnan\n", r":3: time is nan, must not be negative"),
        ("timestamp\nyesterday\n", r":2: 'yesterday' is not a time; write seconds, a Unix time or ISO 8601"),
        ("timestamp,input_tokens\n1\n", r":2: the row has 1 cells and no input tokens"),
        ("timestamp,input_tokens\n1,2.5\n", r":2: input tokens is 2.5, must be a whole number, not negative"),
        ("timestamp,count\n0,1\n60,1\n180,1\n", r":4: 1 bucket is missing before this one"),
        ("timestamp,count\n0,1\n60,1\n150,1\n", r":4: the bucket begins 90 s after the one before it, the first 60 s"),
        ("timestamp,count\n60,1\n0,1\n", r":3: the bucket is not later than the one before it; sort the trace by time"),
        ("timestamp,count\n0,-1\n60,1\n", r":2: count is -1, must be a whole number, not negative"),
        ("count\n1\n2\n", r"it has counts without times"),
        ("a,b\n1,2\n", r":1: no column is a time or a count: a, b"),
        ("timestamp\n", r"trace\.csv: it has no rows"),
        ("", r"no column is a time or a count"),
    ],
)
def test_what_is_wrong_has_one_sentence_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(TraceError, match=message) as raised:
        read_trace(str(file))
    assert "\n" not in str(raised.value)


def test_the_lines_of_a_predictors_access_log_are_requests(tmp_path: Path) -> None:
    path = tmp_path / "iris.log"
    line = {"logger": "pilotlight.access", "event": "request", "method": "POST", "path": "/v2/models/iris/infer"}
    lines = [
        {**line, "ts": "2026-01-01T00:00:02.000Z", "duration_ms": 1500.0},
        {**line, "ts": "2026-01-01T00:00:02.500Z", "duration_ms": 2100.0},
        {**line, "ts": "2026-01-01T00:00:03.000Z", "duration_ms": 1.0, "method": "GET"},
        {"event": "model.loaded", "ts": "2026-01-01T00:00:00.000Z"},
    ]
    path.write_text("\n".join(["==> iris-1 <==", *map(json.dumps, lines), "from a library", ""]))
    trace = single(path)
    assert trace.arrivals.tolist() == pytest.approx([0.0, 0.1])
    assert trace.service_times is not None
    assert trace.service_times.tolist() == [2.1, 1.5]
    assert single(path, "?durations=no").service_times is None
    path.write_text(json.dumps({**line, "ts": "2026-01-01T00:00:02Z", "duration_ms": -1}))
    with pytest.raises(TraceError, match=r"iris\.log:1: duration_ms is -1, must not be negative"):
        read_trace(str(path))


def test_the_events_of_a_request_log_are_requests_with_tokens(tmp_path: Path) -> None:
    path, builder = tmp_path / "requests.jsonl", EventBuilder(LogSettings("file:///x.jsonl", "default", "llm"))
    lines = []
    for name, at in (("a", 100.0), ("b", 101.5)):
        request = LogEvent(name, at, "POST", "/v1/chat/completions", {}, "application/json", b"{}", 2)
        usage = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 7}}).encode()
        lines += [
            builder.line(request, at),
            builder.line(request._replace(body=usage, size=len(usage), status=200), at),
        ]
    path.write_bytes(b"".join(reversed(lines)))
    trace = single(path, "?service=llm")
    assert trace.arrivals.tolist() == [0.0, 1.5]
    assert trace.output_tokens is not None
    assert trace.output_tokens.tolist() == [7, 7]
    with pytest.raises(TraceError, match="it has no requests of service iris"):
        read_trace(f"{path}?service=iris")


def test_the_records_of_an_audit_log_are_requests_of_one_service(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for at, service in enumerate(("iris", "llm", "iris")):
        log.append({"event": "request", "namespace": "default", "service": service, "call": "POST /x"}, now=float(at))
    path = tmp_path / "audit.jsonl"
    assert single(path, "?service=default/iris").arrivals.tolist() == [0.0, 2.0]
    with pytest.raises(TraceError, match="several services: default/iris, default/llm"):
        read_trace(str(path))


def test_a_wrong_name_is_named(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_trace(str(tmp_path / "missing.csv"))
    file.write_text("timestamp\n1\n")
    with pytest.raises(
        UsageError, match="it has no option bukket; there are bucket, duration, gaps; did you mean bucket"
    ):
        read_trace(f"{file}?bukket=60s")
