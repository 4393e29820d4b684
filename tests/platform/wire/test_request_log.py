"""The request log redacts, samples and bounds what it sends, and never blocks or grows while its sink is down."""

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests.eventually import eventually
from tests.object_stores import _s3_client, moto, s3_bucket

from pilotlight.wire.request_log import sender, sinks
from pilotlight.wire.request_log.events import EventBuilder, LogEvent
from pilotlight.wire.request_log.redaction import MAX_MATCHES, REDACTED, Redactor
from pilotlight.wire.request_log.sender import RequestLog
from pilotlight.wire.request_log.settings import LogSettings, check, decode, encode

JSON = "application/json"
SETTINGS = LogSettings("file:///log.jsonl", "default", "iris", batch_s=0.0)


def event(body: bytes = b"{}", content_type: str = JSON, status: int | None = None, **more: Any) -> LogEvent:
    values = {"headers": {}, "size": len(body), **more}
    return LogEvent(
        "id-1", 1_700_000_000.0, "POST", "/v2", body=body, content_type=content_type, status=status, **values
    )


class Sink:
    """Keeps what it gets; `send` waits while `open` is not set."""

    def __init__(self) -> None:
        self.events: list[LogEvent] = []
        self.open = threading.Event()

    def send(self, events: Sequence[LogEvent]) -> None:
        self.open.wait()
        self.events += events

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"User": {"password": "x", "age": 4}}', {"User": {"password": "[redacted]", "age": 4}}),
        (b'{"messages": [{"content": "a"}, {"content": "b"}]}',
            {"messages": [{"content": "[redacted]"}, {"content": "[redacted]"}]}),
        (b'{"text": "card 4111111111111111 ok", "n": 4111111111111111}',
            {"text": "card [redacted] ok", "n": "[redacted]"}),
        (b'{"messages": "no list"}', {"messages": "no list"}),
        (b"[1, null, true, 2.5]", [1, None, True, 2.5]),
    ],
)  # fmt: skip
def test_fields_paths_and_patterns_are_redacted(body: bytes, expected: Any) -> None:
    rules = ("PASSWORD", "$.messages[*].content")
    builder = EventBuilder(replace(SETTINGS, redact_fields=rules, redact_patterns=(r"\d{16}",)))
    assert json.loads(builder.line(event(body), 0.0))["data"] == expected


def test_no_pattern_takes_more_than_linear_time_nor_stops_other_threads() -> None:
    longest, done = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        while not done.is_set():
            began = time.monotonic()
            time.sleep(0.001)
            longest = max(longest, time.monotonic() - began)

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.monotonic()
    try:
        for pattern in (r"(a+)+$", r"(a|aa)+$", r"(.*)*b.*c", r"((a{0,30}){0,30})b"):
            assert Redactor((), (pattern,)).text("a" * (1 << 20)) in ("a" * (1 << 20), REDACTED)
    finally:
        done.set()
        ticking.join()
    assert time.monotonic() - began < 10
    assert longest < 1


def test_a_text_with_too_many_matches_is_redacted_as_a_whole() -> None:
    redactor = Redactor((), (r"a|b[^c]*c",))  # each match searches the rest for a c
    assert redactor.text("a" * MAX_MATCHES) == REDACTED * MAX_MATCHES
    assert redactor.text("ab" * (1 << 18)) == REDACTED
    assert redactor.text("xay\ud800") == f"x{REDACTED}y?"


def test_what_rules_cannot_be_applied_to_is_left_out() -> None:
    builder = EventBuilder(replace(SETTINGS, redact_fields=("secret",)))
    stream = b'data: {"secret": 1, "a": 2}\n\ndata: [DONE]\n\ndata: {"sec'
    cut = json.loads(builder.line(event(stream, "text/event-stream", 200, size=999), 0.0))
    assert (cut["data"], cut["bodyomitted"]) == (
        'data: {"secret": "[redacted]", "a": 2}\n\ndata: [DONE]\n', "truncated"
    )  # fmt: skip
    for refused, reason in (
        (event(b'{"secret": "begin', size=999), "truncated"),
        (event(b"\xff\x00", "application/octet-stream"), "binary"),
        (event(b"\x1f\x8b", encoded=True), "encoded"),
    ):
        line = json.loads(builder.line(refused, 0.0))
        assert line["bodyomitted"] == reason
        assert not {"data", "data_base64"} & set(line)
    assert "data" not in json.loads(builder.line(event(b"", "", 401), 0.0))
    assert json.loads(EventBuilder(SETTINGS).line(event(b"\xff\x00"), 0.0))["data_base64"] == "/wA="


def test_a_client_hides_no_field_from_redaction_and_drops_no_event_of_others() -> None:
    builder = EventBuilder(replace(SETTINGS, redact_fields=("secret",)))
    for hostile in (
        event(b'{"secret": "key", "n": %b}' % (b"9" * 5000)),  # Python's json refuses it, engines take it
        event('\ufeff{"secret": "key"}'.encode()),
        event(b"secret=key", "application/x-www-form-urlencoded"),
        event(b'{\n"secret"\n:"key"}', "text/event-stream"),
        event(b'event: x\n{"secret": "key"}\n', "text/event-stream", 200),
        event('\ufeffdata: {"secret": "key"}\n\n'.encode(), "text/event-stream", 200),
        event(b'{"a": "\\ud800", "secret": "key"}', caller="\ud800"),
    ):
        headers, body = builder.binary(hostile, 0.0)
        assert b"key" not in builder.line(hostile, 0.0) + body
        assert headers["ce-id"] == "id-1"


def test_secret_headers_are_redacted_even_if_they_are_listed() -> None:
    chosen = replace(SETTINGS, headers=("authorization", "x-team", "x-none"), annotations={"team": "ä"}, payload=False)
    headers, body = EventBuilder(chosen).binary(event(headers={"authorization": "Bearer t", "x-team": "vision"}), 0.0)
    assert json.loads(unquote(headers["ce-metadata"])) == {
        "authorization": ["[redacted]"], "x-team": ["vision"]
    }  # fmt: skip
    assert body == b""
    assert headers["ce-bodyomitted"] == "metadata"
    assert all(value.isascii() for value in headers.values())


def test_a_blocked_sink_costs_events_and_neither_time_nor_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_EVENTS", 50)
    sink = Sink()
    log = RequestLog(replace(SETTINGS, batch_size=10), lambda _: None, sink=sink)
    begin = time.monotonic()
    for _ in range(5000):
        log.offer(event())
    assert time.monotonic() - begin < 5  # microseconds each
    assert len(log._queue.events) <= 50
    assert log.counts.dropped >= 5000 - 60
    sink.open.set()
    log.close(30)
    assert log.counts.sent == len(sink.events) == 5000 - log.counts.dropped


def test_large_bodies_fill_the_queue_by_their_bytes() -> None:
    log = RequestLog(SETTINGS, lambda _: None, sink=Sink())
    for _ in range(100):
        log.offer(event(b"x" * (1 << 20)))
    assert log._queue.size <= sender.MAX_QUEUED_BYTES
    assert log.counts.dropped >= 100 - 33


def test_a_sink_that_fails_is_retried_then_counted_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "BACKOFF_S", (0.0, 0.0))
    problems: list[str] = []
    answers = [sinks.Undelivered("down", 1), sinks.Undelivered("bad", 0, 1), *[sinks.Undelivered("gone")] * 9]
    calls: list[int] = []

    class Failing(Sink):
        def send(self, events: Sequence[LogEvent]) -> None:
            calls.append(len(events))
            raise answers[len(calls) - 1]

    log = RequestLog(replace(SETTINGS, batch_size=4, batch_s=30), problems.append, sink=Failing())
    for _ in range(4):
        log.offer(event())
    eventually(lambda: log.counts.failed == 3, "the batch fails")
    assert (log.counts.sent, calls) == (1, [4, 3, 2, 2, 2])
    assert len(problems) == 1
    assert "request log of iris: bad" in problems[0]
    log.close(5)


def test_sampling_takes_its_ratio_of_a_seeded_source() -> None:
    log = RequestLog(replace(SETTINGS, sample=0.25), lambda _: None, random.Random(7).random, Sink())
    assert 200 < sum(log.samples() for _ in range(1000)) < 300
    assert all(RequestLog(SETTINGS, lambda _: None, lambda: 1.0, Sink()).samples() for _ in range(9))


def test_a_file_is_private_and_rotated(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "iris.jsonl"
    sink = sinks.FileSink(str(path), EventBuilder(SETTINGS), limit=2000)
    for _ in range(12):
        sink.send([event(b'{"a": 1}', status=200), event()])
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "iris.jsonl", "iris.jsonl.1", "iris.jsonl.2", "iris.jsonl.3"
    ]  # fmt: skip
    first = json.loads(path.read_text().splitlines()[0])
    assert first["type"] == "org.kubeflow.serving.inference.response"
    assert (first["data"], first["httpstatus"], first["inferenceservicename"]) == ({"a": 1}, "200", "iris")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(sinks.Undelivered):
        sinks.FileSink(str(tmp_path / "link.jsonl"), EventBuilder(SETTINGS)).send([event()])


def test_a_batch_is_an_object_of_s3_below_the_prefix_of_kserve(monkeypatch: pytest.MonkeyPatch) -> None:
    with moto() as endpoint:
        bucket = s3_bucket(endpoint, "logs")
        for name, value in {**bucket.env, "AWS_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        log = RequestLog(replace(SETTINGS, url="s3://logs/all", folder="day", batch_size=2, batch_s=30), print)
        for _ in range(2):
            log.offer(event(b'{"a": 1}'))
        log.close(30)
        assert vars_of(log) == (2, 0, 0)
        client = _s3_client(endpoint)
        (found,) = client.list_objects_v2(Bucket="logs")["Contents"]
        assert found["Key"].startswith("all/default/iris/predictor/day/1700000000-000000-id-1-request")
        lines = client.get_object(Bucket="logs", Key=found["Key"])["Body"].read().splitlines()
        assert [json.loads(line)["data"] for line in lines] == [{"a": 1}] * 2


def vars_of(log: RequestLog) -> tuple[int, int, int]:
    return log.counts.sent, log.counts.dropped, log.counts.failed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "gs://bucket"}, "gs is not supported; use s3"),
        ({"url": "kafka://x"}, "must start with http://"),
        ({"url": "file:///srv/ada/.pilotlight/audit/Audit.jsonl"}, "must not name a file of audit logs"),
        ({"url": "file:///etc/passwd"}, "must be an absolute path such as file:///var/log/iris.jsonl"),
        ({"url": "http://user:secret@sink/"}, "must not contain credentials"),
        ({"sample": 0.0}, "sample = 0, must be above 0"),
        ({"max_bytes": 1 << 30}, "maxBytes = 1073741824, must be 0 to"),
        *(
            (
                {"redact_fields": ("a", written)},
                f"redactFields: {written!r} matches nothing; write a key such as content",
            )
            for written in (
                "$..a",
                "",
                " a",
                "a.b",
                "choices[*].message.content",
                "messages.*.content",
                "messages[0]",
                "$.messages.*.content",
                "$.messages[01]",
                "/messages/0/content",
                "*",
                "$",
            )
        ),
        ({"redact_patterns": ("(",)}, "redactPatterns: ( cannot be read: missing ): (; write it in RE2's syntax"),
        ({"redact_patterns": (r"(?=a)b",)}, "invalid perl operator: (?=; write it in RE2's syntax, which has no look"),
        ({"redact_patterns": (r"(a)\1",)}, "no backreferences"),
        ({"mode": "none"}, "mode = none, must be all, request, response"),
    ],
)
def test_invalid_settings_are_refused_with_the_fix(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check(replace(SETTINGS, **change))
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_survive_their_encoding() -> None:
    chosen = replace(SETTINGS, headers=("x-team",), annotations={"a": "b"}, redact_fields=("$.a[0]",), sample=0.5)
    assert decode(encode(chosen)) == chosen
    for text in ("", "[]", '{"url": 1}', '{"url": "http://a", "other": 1}'):
        with pytest.raises(ValueError, match="is not the setting of a request log"):
            decode(text)
