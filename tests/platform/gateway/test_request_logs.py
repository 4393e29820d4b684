"""The gateway logs requests and responses of a route to its sink, and records who called which model."""

import asyncio
import hashlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.bed import Bed, Reader, Seen, Writer, answer, backend, play, route
from tests.platform.gateway.linked import ask, in_loop, linked, replica
from tests.platform.gateway.linked import route as gateway_route

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.request_logs import RequestLogs
from pilotlight.gateway.routing_table import Table
from pilotlight.wire.prometheus_text import render_families
from pilotlight.wire.request_log import sender
from pilotlight.wire.request_log.audit_log import files_of, verify
from pilotlight.wire.request_log.settings import LogSettings
from pilotlight.wire.service_access import Access

TOKEN = "t0p"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def settings(url: str, **more: Any) -> LogSettings:
    return LogSettings(url, "default", "llm", "predictor", batch_s=0.0, headers=("x-team",), **more)


def logs_of(bed: Bed, folder: Path, problems: list[str] | None = None) -> RequestLogs:
    logs = RequestLogs(folder, (problems if problems is not None else []).append)
    bed.plane.observers.append(logs.observe)
    return logs


def publish(bed: Bed, logs: RequestLogs, *routes: Any) -> None:
    bed.publish(*routes)
    logs.update(Table(1, routes))


def test_an_http_sink_gets_the_events_of_kserve_with_bounded_bodies(tmp_path: Path) -> None:
    async def case(bed: Bed) -> None:
        async def stream(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(STREAM + b"5\r\ndata:\r\n7\r\n  more\n\r\n0\r\n\r\n")

        async def accept(seen: Seen, reader: Reader, writer: Writer) -> None:
            await answer(writer, b"", status="202 Accepted")

        sink, origin, logs = await bed.origin(accept), await bed.origin(stream), logs_of(bed, tmp_path)
        chosen = settings(f"http://127.0.0.1:{sink.port}/events?a=b", max_bytes=8)
        publish(bed, logs, route("llm", backend("llm-1", origin), request_log=chosen))
        headers = {"X-Request-Id": "r1", "X-Team": "vision", "Content-Type": "application/json"}
        await bed.ask("POST", "/llm/v1/completions?key=secret", b'{"prompt": "hello"}', headers)
        await eventually_async(lambda: len(sink.seen) == 2, "both events")
        request, response = sink.seen
        assert (request.line, request.body) == ("POST /events?a=b HTTP/1.1", b'{"prompt')
        assert request.headers["ce-type"] == "org.kubeflow.serving.inference.request"
        assert response.headers["ce-type"] == "org.kubeflow.serving.inference.response"
        assert {seen.headers["ce-id"] for seen in sink.seen} == {"r1"}
        kept = {name: request.headers[f"ce-{name}"] for name in ("specversion", "inferenceservicename", "namespace")}
        assert kept == {"specversion": "1.0", "inferenceservicename": "llm", "namespace": "default"}
        assert request.headers["ce-httppath"] == "/llm/v1/completions"
        assert json.loads(unquote(request.headers["ce-metadata"])) == {"x-team": ["vision"]}
        assert (response.body, response.headers["content-type"]) == (b"data:  m", "text/event-stream")
        assert (response.headers["ce-httpstatus"], response.headers["ce-bodybytes"]) == ("200", "12")
        assert (response.headers["ce-revision"], response.headers["ce-bodyomitted"]) == ("llm-1", "truncated")
        # Counted once the sink's response has arrived.
        await eventually_async(lambda: 'result="sent"} 2' in render_families(logs.families()), "both counted")
        logs.close()

    play(case)


def test_a_sink_that_does_not_respond_delays_no_request(tmp_path: Path) -> None:
    async def case(bed: Bed) -> None:
        async def never(seen: Seen, reader: Reader, writer: Writer) -> None:
            await asyncio.sleep(3600)

        sink, origin, logs = await bed.origin(never), await bed.origin(), logs_of(bed, tmp_path)
        logged = route("llm", backend("llm-1", origin), request_log=settings(f"http://127.0.0.1:{sink.port}/"))
        publish(bed, logs, logged, route("plain", backend("plain-1", origin)))
        clock = asyncio.get_running_loop().time
        seconds = {}
        for name in ("llm", "plain"):
            begin = clock()
            for _ in range(100):
                assert (await bed.ask("POST", f"/{name}/v2", b"{}")).status == 200
            seconds[name] = clock() - begin
        assert len(sink.seen) == 1  # the sender waits for it
        assert seconds["llm"] < 5 * seconds["plain"] + 1

    play(case)


def test_the_audit_log_names_caller_digest_and_result_before_the_client_sees_it(tmp_path: Path) -> None:
    seen_by_client: list[int] = []

    async def case(bed: Bed) -> None:
        origin, logs = await bed.origin(), logs_of(bed, tmp_path)
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        model = backend("llm-1", origin, digest="sha256:abc")
        publish(bed, logs, route("llm", model, audit=True, access=Access((digest,))))
        for headers in ({"Authorization": f"Bearer {TOKEN}", "X-Request-Id": "r1"}, {"X-Request-Id": "r2"}):
            await bed.ask("POST", "/llm/v2/models/llm/infer?key=secret", b"{}", headers)
            seen_by_client.append(len(files_of(tmp_path)[0].read_bytes().splitlines()))
        records = [json.loads(line) for line in files_of(tmp_path)[0].read_bytes().splitlines()]
        kept = ("caller", "service", "revision", "digest", "request_id", "call", "status")
        assert [tuple(record[name] for name in kept) for record in records] == [
            (f"token:{digest[:16]}", "llm", "llm-1", "sha256:abc", "r1", "POST /llm/v2/models/llm/infer", 200),
            ("", "llm", "", "", "r2", "POST /llm/v2/models/llm/infer", 401),
        ]

    play(case, gate=AccessAdmission())
    assert seen_by_client == [1, 2]
    assert verify(files_of(tmp_path)).records == 2


def test_a_record_that_cannot_be_written_is_counted_and_the_request_served(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("no folder")
    problems: list[str] = []

    async def case(bed: Bed) -> None:
        origin, logs = await bed.origin(), logs_of(bed, tmp_path / "audit", problems)
        publish(bed, logs, route("llm", backend("llm-1", origin), audit=True))
        assert (await bed.ask("GET", "/llm/v2")).status == 200
        assert 'pilotlight_audit_records_total{result="failed"} 1' in render_families(logs.families())

    play(case)
    assert problems[0].startswith("audit log: a record was not written:")


def test_a_full_disk_costs_records_and_no_request_and_both_logs_continue_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "BACKOFF_S", (0.0,))
    sink = tmp_path / "log.jsonl"
    audit = tmp_path / "audit" / "audit.jsonl"
    problems: list[str] = []

    async def case(bed: Bed) -> None:
        async def ask_for(number: int) -> None:
            answer = await bed.ask("POST", "/llm/v2", json.dumps({"text": "x" * number}).encode())
            assert answer.status == 200

        origin, logs = await bed.origin(), logs_of(bed, audit.parent, problems)
        publish(bed, logs, route("llm", backend("llm-1", origin), audit=True, request_log=settings(f"file://{sink}")))
        await ask_for(1)
        await eventually_async(lambda: sink.exists() and sink.read_bytes().count(b"\n") == 2, "both events")
        room = max(sink.stat().st_size, audit.stat().st_size)
        for extra in (100, 900, 1500):  # within a record, an event, or the second of a batch
            with file_size_limit(room + extra):
                for number in range(20):
                    await ask_for(number)
                await eventually_async(lambda: any(each.startswith("request log") for each in problems), "the report")
        await eventually_async(lambda: not logs._logs["default", "llm"]._queue.events, "the queue")
        before = sink.read_bytes().count(b"\n")
        await ask_for(77)
        await eventually_async(lambda: sink.read_bytes().count(b"\n") >= before + 2, "the next events")
        lines = sink.read_bytes().splitlines()
        assert all(json.loads(line)["source"] for line in lines), "no incomplete line is left"
        counts = render_families(logs.families())
        assert 'result="failed"} 0' not in counts
        logs.close()

    play(case)
    assert any(each.startswith("audit log: a record was not written") for each in problems)
    last = json.loads(files_of(audit.parent)[-1].read_bytes().splitlines()[-1])
    assert (last["event"], last["status"]) == ("request", 200)
    verify(files_of(audit.parent))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@in_loop
async def test_a_killed_gateway_has_recorded_every_request_that_it_answered(tmp_path: Path) -> None:
    answered: set[str] = set()

    async def ask_until_it_dies(port: int, client: int) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            for number in count():
                identity = f"{client}-{number}"
                reply = await ask(port, "/iris/v2", {"X-Request-Id": identity})
                assert reply.status == 200
                answered.add(identity)

    async with replica() as one, linked(tmp_path) as made:
        await made.publish(gateway_route(one.config, audit=True))
        clients = [asyncio.create_task(ask_until_it_dies(made.port, client)) for client in range(4)]
        await eventually_async(lambda: len(answered) > 100, "requests")
        os.kill(made.link.pid, signal.SIGKILL)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    folder = tmp_path / "audit"
    recorded = {json.loads(line).get("request_id") for line in files_of(folder)[0].read_bytes().splitlines()}
    assert len(answered) > 100
    assert answered <= recorded
    verify(files_of(folder))
