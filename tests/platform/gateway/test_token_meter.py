"""Tokens by service, model and caller, from `usage`; the gateway requests that of streams if the client does not."""

import asyncio
import hashlib
import json
from typing import Any

import openai
from prometheus_client.parser import text_string_to_metric_families
from tests.platform.gateway.bed import Bed, Clock, Reader, Seen, Writer, answer, backend, play, route
from tests.serving import Answer

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.metrics_and_reports import Metrics
from pilotlight.wire.service_access import Access, TokenQuota

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 8}}
TOKENS = Access(tokens=tuple(hashlib.sha256(word).hexdigest() for word in (b"ada", b"bob")))
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


def test_a_body_that_cannot_be_read_reaches_the_engine_unchanged() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        metrics = Metrics()
        bed.plane.observers.append(metrics.tokens.observe)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        options = {"model": "llm", "stream": True, "stream_options": {"include_usage": False}}
        bodies = [b"{not json", b"[1]", b"", json.dumps(options).encode(), b'{"stream": true, "tail": 1']
        for body in bodies:
            assert (await bed.ask("POST", f"/llm{CHAT}", body)).status == 200
        assert [seen.body for seen in origin.seen] == bodies
        (_, requests), *_ = samples(metrics, "gen_ai_client_token_usage_count")
        assert requests == len(bodies)

    play(case)
