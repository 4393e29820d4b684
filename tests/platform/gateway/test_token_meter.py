"""Tokens by service, model and caller, from `usage`; the gateway requests that of streams if the client does not."""

import asyncio
import gzip
import hashlib
import json
import os
import signal
import time
import tracemalloc
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.eventually import eventually_async
from tests.platform.gateway.bed import Bed, Clock, Reader, Seen, Writer, answer, backend, play, read_answer, route
from tests.platform.gateway.linked import ask, in_loop, linked, replica
from tests.platform.gateway.linked import route as plain_route
from tests.predictor.backends.text.tiny import text_model
from tests.serving import Answer, RunningServer

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.control_link import Hello, Report, Spent
from pilotlight.gateway.metrics_and_reports import Metrics
from pilotlight.gateway.proxy import body_routing
from pilotlight.gateway.proxy.responses import INTERIM_RESPONSE
from pilotlight.gateway.routing_table import Backend, Replica, RouteAdapter
from pilotlight.gateway.token_quotas import DAY
from pilotlight.wire.service_access import Access, TokenQuota

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 8}}
TOKENS = Access(tokens=tuple(hashlib.sha256(word).hexdigest() for word in (b"ada", b"bob", b"cy")))
ADA = f"token:{TOKENS.tokens[0][:16]}"


def engine(reports: bool = True) -> Any:
    """An engine that sends the usage of a stream on request, as vLLM does; or none at all."""

    async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
        body = json.loads(seen.body)
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
            whole = {**chunk, "object": "chat.completion", "choices": [choice], **({"usage": USAGE} if reports else {})}
            await answer(writer, json.dumps(whole).encode(), "Content-Type: application/json")
            return
        deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {"content": "c"}]
        documents = [{**chunk, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        if reports and (body.get("stream_options") or {}).get("include_usage"):
            documents.append({**chunk, "choices": [], "usage": USAGE})
        events = [f"data: {json.dumps(each)}\n\n" for each in documents] + ["data: [DONE]\n\n"]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return reply


async def metered(bed: Bed, reports: bool = True) -> Metrics:
    metrics = Metrics()
    metrics.tokens.reports = True
    bed.plane.observers.append(metrics.tokens.observe)
    origin = await bed.origin(engine(reports))
    bed.publish(route("llm", backend("llm-1", origin), models=("llm", "alias"), access=TOKENS))
    return metrics


def samples(metrics: Metrics, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(metrics.page()[2].decode())
    return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]


def test_openai_s_client_gets_what_it_requested_and_its_tokens_are_counted() -> None:
    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{bed.port}/v1", api_key="ada")
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="llm", messages=messages)
        assert whole.usage is not None
        plain = [
            each async for each in await client.chat.completions.create(model="llm", messages=messages, stream=True)
        ]
        assert "".join(each.choices[0].delta.content or "" for each in plain) == "abc"
        assert all(each.usage is None for each in plain)
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="alias", messages=messages, stream=True, stream_options=options
        )
        assert [each.usage.prompt_tokens for each in [item async for item in stream] if each.usage] == [12]
        await client.close()
        counted = {
            (labels["caller"], labels["type"]): value
            for labels, value in samples(metrics, "pilotlight_gateway_tokens_total")
            if labels["model"] == "llm"
        }
        assert counted == {(ADA, "prompt"): 36, (ADA, "cached"): 24, (ADA, "completion"): 9}
        (report,) = metrics.tokens.take_report()
        assert (report.name, report.model, report.caller, report.requests) == ("llm", "llm", ADA, 3)
        assert (report.prompt, report.cached, report.completion, sum(report.first_token)) == (36, 24, 9, 2)
        assert metrics.tokens.take_report() == ()

    play(case, AccessAdmission())


def test_tokens_of_an_adapter_are_counted_under_its_name() -> None:
    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        adapters = (RouteAdapter("law", "law-1f3a"),)
        bed.publish(route("llm", backend("llm-1", await bed.origin(engine())), models=("llm",), adapters=adapters))
        # The engine lists its own name of a version at the service's address.
        for path, model in ((CHAT, "law"), (f"/llm{CHAT}", "law"), (f"/llm{CHAT}", "law-1f3a")):
            asked = await bed.ask("POST", path, json.dumps({"model": model, "messages": []}).encode())
            assert (asked.status, asked.headers["x-pilotlight-revision"]) == (200, "law-1f3a")
        (report,) = metrics.tokens.take_report()
        assert (report.model, report.requests, report.prompt) == ("law", 3, 36)

    play(case, AccessAdmission())


def test_histograms_have_our_names_and_opentelemetry_s() -> None:
    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        body = {"model": "llm", "messages": [], "stream": True}
        asked = await bed.ask("POST", f"/llm{CHAT}", json.dumps(body).encode(), {"Authorization": "Bearer ada"})
        assert asked.status == 200
        assert b'"usage"' not in asked.body
        for name in ("pilotlight_gateway_time_to_first_token_seconds", "gen_ai_server_time_to_first_token_seconds",
                     "pilotlight_gateway_time_per_output_token_seconds",
                     "gen_ai_server_time_per_output_token_seconds"):  # fmt: skip
            ((labels, value),) = samples(metrics, f"{name}_count")
            assert (labels["inference_service"], value) == ("llm", 1.0)
        sizes = {
            labels["gen_ai_token_type"]: value for labels, value in samples(metrics, "gen_ai_client_token_usage_sum")
        }
        assert sizes == {"input": 12.0, "output": 3.0}

    play(case, AccessAdmission())


def test_an_engine_without_usage_is_estimated_and_prompts_wait_until_their_first_token() -> None:
    async def case(bed: Bed) -> None:
        metrics = await metered(bed, reports=False)
        body = json.dumps({"model": "llm", "messages": ["x" * 400], "stream": True}).encode()
        asked = await bed.ask("POST", f"/llm{CHAT}", body, {"Authorization": "Bearer bob"})
        assert asked.body.endswith(b"data: [DONE]\n\n")
        (report,) = metrics.tokens.take_report()
        assert (report.prompt, report.cached, report.completion) == (len(body) // 4, 0, 3)
        bed.publish(route("llm", backend("llm-1"), models=("llm",)))  # at zero: it waits
        waiting = asyncio.create_task(bed.ask("POST", f"/llm{CHAT}", body))
        while not metrics.tokens.queues():
            await asyncio.sleep(0)
        assert [each.tokens for each in metrics.tokens.queues()] == [len(body) // 4]
        origin = await bed.origin(engine())
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        assert (await waiting).status == 200
        assert metrics.tokens.queues() == ()

    play(case, AccessAdmission())


def test_a_caller_beyond_its_quota_gets_429_until_it_refills() -> None:
    clock, wall = Clock(), Clock()
    admission = AccessAdmission(clock=clock, wall=wall)

    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        metrics.tokens.on_spent = admission.spend
        origin = await bed.origin(engine())
        quota = TokenQuota(per_minute=20, per_day=60)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",), access=TOKENS, quota=quota))

        async def ask(token: str) -> Answer:
            body = json.dumps({"model": "llm", "messages": []}).encode()
            return await bed.ask("POST", CHAT, body, {"Authorization": f"Bearer {token}"})

        assert [(await ask("ada")).status for _ in range(3)] == [200, 200, 429]  # 15 tokens each
        refused = await ask("ada")
        assert (refused.headers["retry-after"], refused.headers["x-ratelimit-limit-tokens"]) == ("33", "20")
        assert json.loads(refused.body)["error"]["code"] == "rate_limit_exceeded"
        assert (await ask("bob")).status == 200
        clock.now += 33
        assert [(await ask("ada")).status for _ in range(2)] == [200, 429]  # with a debt of 14
        clock.now += 600
        assert [(await ask("ada")).status, (await ask("ada")).status] == [200, 429]
        assert "60 tokens a day" in json.loads((await ask("ada")).body)["error"]["message"]
        wall.now += 86_400
        assert (await ask("ada")).status == 200

    play(case, admission)


@pytest.mark.parametrize("models", [("llm",), ()])
def test_a_quota_holds_on_paths_of_the_engine_s_own_and_for_models_that_are_not_listed(models: tuple[str, ...]) -> None:
    admission = AccessAdmission()

    async def case(bed: Bed) -> None:
        metrics = await metered(bed, reports=False)
        metrics.tokens.on_spent = admission.spend
        origin = await bed.origin(engine(reports=False))
        quota = TokenQuota(per_day=20)
        bed.publish(route("llm", backend("llm-1", origin), models=models, access=TOKENS, quota=quota))
        upgrade = {"Authorization": "Bearer ada", "Connection": "upgrade", "Upgrade": "websocket"}
        assert (await bed.ask("GET", "/llm/v1/realtime", headers=upgrade)).status == 501
        assert not origin.seen
        body = json.dumps({"model": "llm", "prompt": "x" * 100}).encode()
        for path, token, kind in (
            ("/generate", "ada", "application/json"),
            ("/v1/chat/completions/", "bob", "application/json"),
            ("/completion", "cy", "multipart/form-data; boundary=x"),  # llama.cpp reads JSON of any type
        ):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            asked = [await bed.ask("POST", f"/llm{path}", body, headers) for _ in "ab"]
            assert [each.status for each in asked] == [200, 429], path

    play(case, admission)


def test_the_prompt_of_a_client_that_leaves_before_its_response_is_counted() -> None:
    async def case(bed: Bed) -> None:
        async def silent(seen: Seen, reader: Reader, writer: Writer) -> None:
            await reader.read()

        metrics, origin = await metered(bed), await bed.origin(silent)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        body = json.dumps({"model": "llm", "messages": ["x" * 400]}).encode()
        _, writer = await bed.connect()
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await eventually_async(lambda: origin.seen, "the request")
        writer.close()
        await eventually_async(lambda: not bed.plane.clients, "the client's end")
        (report,) = metrics.tokens.take_report()
        assert (report.requests, report.prompt, report.completion) == (1, len(body) // 4, 0)

    play(case)


STREAM = b'{"model": "llm", "messages": [], "stream": true'


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (STREAM + b', "stream_options": {"include_usage": false}}', CHAT),
        (STREAM + b', "stream_options": {}}', CHAT),
        (STREAM + b', "stream_options": null}', CHAT),
        (STREAM + b', "stream_options": {"continuous_usage_stats": true}}', CHAT),
        (STREAM + b', "stream\\u005foptions": {"include_usage": false}}', CHAT),
        (STREAM + b', "stream_options": {"include_usage": true}, "stream_options": null}', CHAT),
        (STREAM.replace(b"true", b"1") + b"}", CHAT),
        (STREAM.replace(b"true", b'"True"') + b"}", CHAT),
        (STREAM + b', "temperature": NaN}', CHAT),
        ((STREAM + b"}").decode().encode("utf-16"), CHAT),
        (STREAM + b"}", "/v1/chat/completion%73"),
        (STREAM + b"}", "/chat/completions"),
    ],
)
def test_no_form_of_a_request_hides_its_tokens(body: bytes, path: str) -> None:
    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        asked = await bed.ask("POST", f"/llm{path}", body, {"Authorization": "Bearer ada"})
        assert asked.body.endswith(b"data: [DONE]\n\n")
        assert b'"usage"' not in asked.body, "the client did not request it"
        (report,) = metrics.tokens.take_report()
        assert (report.prompt, report.cached, report.completion) == (12, 8, 3)

    play(case, AccessAdmission())


def test_a_body_that_comes_slowly_is_counted_too_and_takes_no_replica_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = (
        b"POST /llm/v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ada\r\nContent-Length: %d\r\n\r\n"
    )

    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        body = STREAM + b"}"
        reader, writer = await bed.connect()
        writer.write(head % len(body) + body[:-1])
        await asyncio.sleep(1.2)
        writer.write(b"}")
        assert b'"usage"' not in (await read_answer(reader)).body
        assert [each.completion for each in metrics.tokens.take_report()] == [3]
        monkeypatch.setattr(body_routing, "USAGE_WAIT_S", 1.0)
        crowd = [await bed.connect() for _ in range(200)]
        for _, slow in crowd:
            slow.write(head % len(body) + b"{")
        began = asyncio.get_running_loop().time()
        assert (await bed.ask("POST", f"/llm{CHAT}", body, {"Authorization": "Bearer ada"})).status == 200
        assert asyncio.get_running_loop().time() - began < 1
        assert bed.plane.loads() == {}
        assert {(await read_answer(each)).status for each, _ in crowd} == {408}
        assert bed.plane.buffer_budget.used == 0

    play(case, AccessAdmission())


@pytest.mark.parametrize("path", [f"/llm{CHAT}", CHAT])
def test_a_client_that_waits_for_the_interim_response_gets_one(path: str) -> None:
    async def case(bed: Bed) -> None:
        await metered(bed)
        reader, writer = await bed.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ada\r\n"
        writer.write(f"{head}Expect: 100-continue\r\nContent-Length: {len(STREAM) + 1}\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == INTERIM_RESPONSE
        writer.write(STREAM)
        await asyncio.sleep(0.1)
        writer.write(b"}")
        assert (await read_answer(reader)).status == 200

    play(case, AccessAdmission())


@pytest.mark.parametrize("cut", [False, True])
def test_a_long_body_and_a_stream_that_is_cut_are_estimated_by_their_bytes(cut: bool) -> None:
    """Engines with speculative decoding send several tokens in a chunk."""
    words = "word " * 200

    async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
        event = f"data: {json.dumps({'choices': [{'delta': {'content': words}}]})}\n\n".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(event), event) * 4)
        await writer.drain()
        if cut:
            writer.transport.abort()
        else:
            writer.write(b"0\r\n\r\n")

    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        bed.publish(route("llm", backend("llm-1", await bed.origin(reply)), models=("llm",)))
        body = STREAM + (b"}" if cut else b', "user": "%b"}' % (b"x" * body_routing.MAX_USAGE_BODY))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await bed.ask("POST", f"/llm{CHAT}", body)
        await eventually_async(lambda: samples(metrics, "pilotlight_gateway_tokens_total"), "the count")
        (report,) = metrics.tokens.take_report()
        assert (report.prompt, report.completion) == (len(body) // 4, 1000)

    play(case, AccessAdmission())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, f"/llm{CHAT}"])
def test_a_prompt_of_some_mib_is_counted_as_the_engine_reports_it(stream: bool, path: str) -> None:
    """As one with images, which are few tokens: by their bytes they would be a million, and use up a quota."""

    admission = AccessAdmission()

    async def case(bed: Bed) -> None:
        metrics = await metered(bed)
        metrics.tokens.on_spent = admission.spend
        quota = TokenQuota(per_minute=20)
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * (4 << 20)}"}}
        origin = await bed.origin(engine())
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",), access=TOKENS, quota=quota))
        body = {"messages": [{"role": "user", "content": [image]}], "model": "llm", "stream": stream}
        for _ in range(2):
            reply = await bed.ask("POST", path, json.dumps(body).encode(), {"Authorization": "Bearer ada"})
            assert reply.status == 200
            assert (b'"usage"' in reply.body) != stream  # the client of the stream did not request it
        (report,) = metrics.tokens.take_report()
        assert (report.requests, report.prompt, report.completion) == (2, 24, 6)
        assert bed.plane.buffer_budget.used == 0

    play(case, admission)


@pytest.mark.parametrize(
    "fields", ['"messages": []', '"stream_options": {}', '"stream_options": {"include_usage": NaN}', '"user": NaN']
)
def test_a_large_body_is_not_read_into_objects(fields: str) -> None:
    """They take thirty times its size, and all other requests would wait for it."""

    async def case(bed: Bed) -> None:
        await metered(bed)
        bed.publish(route("llm", backend("llm-1", await bed.origin()), models=("llm",)))
        brackets = "[]," * (1 << 20)
        for name in ("x", "stream_options"):
            body = f'{{"stream": true, {fields}, "model": "llm", "{name}": [{brackets}1]}}'.encode()
            tracemalloc.start()
            try:
                assert (await bed.ask("POST", f"/llm{CHAT}", body)).status == 200
                assert tracemalloc.get_traced_memory()[1] < 16 * len(body)
            finally:
                tracemalloc.stop()

    play(case)


def test_an_engine_is_told_that_the_client_of_a_large_body_has_left() -> None:
    async def case(bed: Bed) -> None:
        left = asyncio.Event()

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            assert await reader.read(1) == b""
            left.set()

        await metered(bed)
        origin = await bed.origin(reply)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        for path in (f"/llm{CHAT}", CHAT):
            _, writer = await bed.connect()
            body = b'{"user": "%b", "model": "llm"}' % (b"x" * (3 << 20))
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            writer.write(head + body)
            await eventually_async(lambda: origin.seen, "the request")
            writer.close()
            async with asyncio.timeout(20):
                await left.wait()
            left.clear()
            origin.seen.clear()

    play(case)


@pytest.mark.parametrize("path", [f"/llm{CHAT}", CHAT])
@pytest.mark.parametrize("chunked", [False, True])
def test_clients_that_send_long_bodies_slowly_leave_memory_to_others(path: str, chunked: bool) -> None:
    async def case(bed: Bed) -> None:
        await metered(bed)
        bed.plane.buffer_budget.limit = 8 << 20
        llm = route("llm", backend("llm-1", await bed.origin(whole=False)), models=("llm", "alias"))
        bed.publish(llm, route("zero", backend("zero-1")))
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {15 << 20}"
        start = b'{"model": "alias", "user": "%b' % (b"x" * ((2 << 20) - 100))
        start = b"%x\r\n%b\r\n" % (len(start), start) if chunked else start
        for _ in range(12):
            _, writer = await bed.connect()
            writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n".encode() + start)
            await writer.drain()
        await asyncio.sleep(0.5)
        other = asyncio.create_task(bed.ask("POST", "/zero/v2/models/m/infer", b"x" * (1 << 20)))
        await eventually_async(lambda: other.done() or any(each.name == "zero" for each in bed.wakes), "the wake-up")
        await asyncio.sleep(0.1)
        assert not other.done()
        bed.publish(llm, route("zero", backend("zero-1", await bed.origin())))
        assert (await other).status == 200

    play(case)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_body_is_in_the_budget_of_memory_until_its_replica_has_read_it(leaves: bool) -> None:
    """Or until its client leaves, which is seen while the replica reads nothing."""

    async def case(bed: Bed) -> None:
        reads = asyncio.Event()

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            await reads.wait()
            await reader.readexactly(len(body))
            await answer(writer, b"{}", "Content-Type: application/json")

        await metered(bed)
        origin = await bed.origin(reply, whole=False)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        body = b'{"user": "%b", "model": "llm"}' % (b"x" * (15 << 20))
        reader, writer = await bed.connect()
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await eventually_async(lambda: origin.seen, "the request")
        await asyncio.sleep(0.1)
        assert bed.plane.buffer_budget.used == len(body)
        if leaves:
            writer.close()
        else:
            reads.set()
            assert (await read_answer(reader)).status == 200
        await eventually_async(lambda: bed.plane.buffer_budget.used == 0, "the memory", 20)
        reads.set()

    play(case)


def test_what_is_compressed_is_refused_where_its_tokens_could_not_be_counted() -> None:
    zipped = gzip.compress(STREAM + b', "user": "%b"}' % (b"x" * 100_000))
    headers = {"Authorization": "Bearer ada", "Content-Encoding": "gzip"}

    async def case(bed: Bed) -> None:
        await metered(bed)
        origin = await bed.origin()
        for quota, expected in ((None, [415, 200]), (TokenQuota(per_day=20), [415, 415])):
            bed.publish(route("llm", backend("llm-1", origin), models=("llm",), access=TOKENS, quota=quota))
            asked = [await bed.ask("POST", f"/llm{path}", zipped, headers) for path in (CHAT, "/generate")]
            assert [each.status for each in asked] == expected
        assert [each.path for each in origin.seen] == ["/generate"]

    play(case, AccessAdmission())


def test_a_request_is_authenticated_once() -> None:
    times = count()
    admission = AccessAdmission(wall=lambda: float(next(times)))

    async def case(bed: Bed) -> None:
        await metered(bed)
        before = next(times)
        for token, status in (("ada", 200), ("eve", 401)):
            body = b'{"model": "llm", "messages": []}'
            assert (await bed.ask("POST", f"/llm{CHAT}", body, {"Authorization": f"Bearer {token}"})).status == status
        assert next(times) == before + 3, "two looks at the clock for two requests"

    play(case, admission)


def test_models_that_nobody_may_call_or_that_do_not_exist_wake_none() -> None:
    async def case(bed: Bed) -> None:
        bed.publish(*(route(name, backend(f"{name}-1"), models=(name,), access=TOKENS) for name in ("llm", "sql")))
        names = ("llm", "sql", "llm@none", "team/llm", *(f"unknown-{number}" for number in range(50)))
        for name in names:
            for headers in ({}, {"Authorization": "Bearer eve"}):
                body = json.dumps({"model": name, "messages": []}).encode()
                assert (await bed.ask("POST", CHAT, body, headers)).status in (401, 404)
        assert bed.wakes == []

    play(case, AccessAdmission())


def test_a_body_that_cannot_be_read_reaches_the_engine_unchanged() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        metrics = Metrics()
        bed.plane.observers.append(metrics.tokens.observe)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        options = {"model": "llm", "stream": True, "stream_options": {"include_usage": True}}
        bodies = [b"{not json", b"[1]", b"", json.dumps(options).encode(), b'{"stream": true, "tail": 1']
        bodies += [b'{"stream": "\xff"}', b'{"stream": true, "a": %b' % (b"[" * 100_000)]
        for body in bodies:
            assert (await bed.ask("POST", f"/llm{CHAT}", body)).status == 200
        assert [seen.body for seen in origin.seen] == bodies
        (_, requests), *_ = samples(metrics, "gen_ai_client_token_usage_count")
        assert requests == len(bodies)

    play(case)


@in_loop
async def test_the_control_process_gets_tokens_and_a_new_gateway_gets_what_was_spent(tmp_path: Path) -> None:
    day = int(time.time() // DAY)
    async with linked(tmp_path) as made, replica() as one:
        limited = plain_route(one.config, models=("iris",), access=TOKENS, quota=TokenQuota(per_day=50))
        await made.publish(limited)

        async def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return (await ask(made.port, f"/iris{CHAT}", headers, body=b'{"model": "iris"}')).status

        assert await status("ada") == 200
        report = await made.hears(Report)
        assert [(each.model, each.caller, each.requests) for each in report.tokens] == [("iris", ADA, 1)]
        made.link.spent = lambda: Spent(day, (("default", "iris", ADA, 50),))
        killed, heard = made.link.pid, len(made.words)
        os.kill(killed, signal.SIGKILL)
        await made.hears(Hello, heard)
        await made.publish(limited)
        assert [await status("ada"), await status("bob")] == [429, 200]


@pytest.mark.long  # transformers alone takes ten seconds of a core to import
def test_a_real_text_model_is_counted_as_it_reports(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `text` is not installed")
    (tmp_path / "models").mkdir()
    model = text_model(tmp_path / "models")
    messages: Any = [{"role": "user", "content": "count"}]

    async def case(bed: Bed) -> None:
        metrics = Metrics()
        metrics.tokens.reports = True
        bed.plane.observers.append(metrics.tokens.observe)
        bed.publish(route("chat", Backend("chat-1", "chat", 100, (Replica("a", server.port),)), models=("chat",)))
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{bed.port}/v1", api_key="none", timeout=300
        ) as client:
            create = partial(
                client.chat.completions.create, model="chat", messages=messages, temperature=0, max_tokens=12
            )
            whole: Any = await create()
            chunks: Any = [each async for each in await create(stream=True)]
        assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole.choices[0].message.content
        assert all(each.usage is None for each in chunks)
        (report,) = metrics.tokens.take_report()
        usage = whole.usage
        assert (report.requests, report.prompt) == (2, 2 * usage.prompt_tokens)
        assert report.completion == 2 * usage.completion_tokens
        assert sum(report.first_token) == 1
        ((_, per_token),) = samples(metrics, "pilotlight_gateway_time_per_output_token_seconds_count")
        assert per_token == 1

    with RunningServer(tmp_path, "--model-path", str(model), "--model-name", "chat") as server:
        play(case)
