"""Rates of language models in profiles: a stand-in engine of known rates, and our own text backend on the platform."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from aiohttp import web
from tests.app_in_thread import in_thread
from tests.cli.conftest import DOCUMENT, Call
from tests.predictor.backends.text.tiny import text_model

from pilotlight.errors import NotFound, PlatformError
from pilotlight.simulation.service_times import read_profile
from platformctl.commands.service.infer import infer, infer_model
from platformctl.profiles.llm_measurement import (
    LanguageModel,
    Stream,
    decode_tokens_s,
    kv_cache_tokens,
    prefill_tokens_s,
    rates,
)
from platformctl.targets import Gateway

PREFILL = 2000.0  # tokens per second
DECODE = {1: 50.0, 4: 120.0}
CONTEXT = 200
METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27000"} 1.0
"""


class Engine:
    """Speaks OpenAI's protocol: a word is a token; it reads prompts and writes answers at its rates."""

    def __init__(self) -> None:
        self.streams = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        fields = await request.json()
        words, tokens = len(fields["prompt"].split()), fields["max_tokens"]
        if words + tokens > CONTEXT:
            return web.json_response({"error": {"message": "longer than the context"}}, status=400)
        assert fields["ignore_eos"]
        await asyncio.sleep(words / PREFILL)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.streams += 1
        for number in range(tokens):
            if number:
                await asyncio.sleep(self.streams / DECODE[self.streams if self.streams in DECODE else 4])
            await self._event(response, {"choices": [{"index": 0, "text": " a"}]})
        self.streams -= 1
        usage = {"prompt_tokens": words, "completion_tokens": tokens}
        await self._event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, document: object) -> None:
        await response.write(f"data: {json.dumps(document)}\n\n".encode())


@pytest.fixture
def engine() -> Iterator[str]:
    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "words", "object": "model"}]})

    async def chatted(request: web.Request) -> web.Response:
        fields = await request.json()
        return web.json_response({"choices": [{"message": {**fields["messages"][0], "role": fields["model"]}}]})

    app = web.Application()
    app.router.add_post("/v1/completions", Engine().complete)
    app.router.add_get("/v1/models", listed)
    app.router.add_post("/v1/chat/completions", chatted)
    with in_thread(app) as url:
        yield url


def test_an_engine_is_measured_by_its_streams(engine: str) -> None:
    model = LanguageModel(engine, {})
    assert model.find()
    found = rates(model, [1, 4], 0.1, lambda what: None)
    assert found.prefill_tokens_s == pytest.approx(PREFILL, rel=0.5)
    assert found.prefill_tokens_s < PREFILL * 1.05
    assert found.decode_tokens_s[1] == pytest.approx(DECODE[1], rel=0.3)
    assert found.decode_tokens_s[4] == pytest.approx(DECODE[4], rel=0.3)


def test_a_text_for_an_engine_is_a_chat(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    with click.Context(infer):
        infer_model(Gateway(engine), "words", "", "text", "hello", "", "", 5.0)
    assert capsys.readouterr().out == "hello\n"
    with pytest.raises(NotFound), click.Context(infer):
        infer_model(Gateway(f"{engine}/elsewhere"), "words", "", "text", "hello", "", "", 5.0)


def test_a_chat_is_limited_and_says_that_it_was_cut(capsys: pytest.CaptureFixture[str]) -> None:
    limits = list[int | None]()

    async def chatted(request: web.Request) -> web.Response:
        fields = await request.json()
        limits.append(fields.get("max_tokens"))
        if fields["model"] == "short" and fields.get("max_tokens"):
            return web.json_response({"error": {"message": "max_tokens = 256, must be at most 60"}}, status=400)
        return web.json_response({"choices": [{"message": {"content": "hi"}, "finish_reason": "length"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chatted)
    with in_thread(app) as url, click.Context(infer):
        infer_model(Gateway(url), "words", "", "text", "hello", "", "", 5.0)
        assert "raise it: --max-tokens N" in capsys.readouterr().err
        infer_model(Gateway(url), "words", "", "text", "hello", "", "", 5.0, 7)
        infer_model(Gateway(url), "short", "", "text", "hello", "", "", 5.0)
        with pytest.raises(PlatformError, match="must be at most 60"):
            infer_model(Gateway(url), "short", "", "text", "hello", "", "", 5.0, 300)
    assert limits == [256, 7, 256, None, 300]


@pytest.mark.parametrize(("kind", "value"), [("text", "hello"), ("data", {"inputs": []})])
def test_a_server_that_is_no_chat_is_no_crash(kind: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One that answers any path with a page, and for requests with completions."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async def completed(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"text": "hi"}]})

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    app.router.add_post("/{path:.*}", completed)
    with in_thread(app) as url, click.Context(infer):
        infer_model(Gateway(url), "words", "", kind, value, "", "", 5.0)
    assert json.loads(capsys.readouterr().out) == {"choices": [{"text": "hi"}]}


def test_a_server_without_completions_is_no_language_model(engine: str) -> None:
    assert not LanguageModel(f"{engine}/elsewhere", {}).find()


def test_long_prompts_determine_the_rate_of_prompts() -> None:
    assert prefill_tokens_s([(100, 0.1), (1000, 1.0)]) == pytest.approx(1000)
    assert prefill_tokens_s([(10, 0.1), (1000, 1.0)]) == pytest.approx(1000, rel=0.01)


def test_only_the_time_in_which_all_streams_decode_counts() -> None:
    early = Stream(0.0, (1.0, 2.0, 3.0, 4.0), 8, 4)
    late = Stream(0.0, (2.0, 3.0, 4.0, 5.0), 8, 8)  # two tokens a part
    assert decode_tokens_s([early, late]) == pytest.approx((2 + 4) / 2)


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        (METRICS, 432_000),
        ('sglang:max_total_num_tokens{model_name="m"} 51200\n', 51_200),
        ("sglang:max_total_num_tokens 100\n", 100),
        ("# nothing\n", 0),
    ],
)
def test_the_size_of_the_kv_cache_is_on_the_engines_page(page: str, tokens: int) -> None:
    assert kv_cache_tokens(page) == tokens


@pytest.mark.long  # transformers alone takes ten seconds of a core to import
def test_a_text_model_on_the_platform_gets_a_profile_that_a_simulation_reads(
    call: Call, at_home: None, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="the extra `text` is not installed")
    (tmp_path / "kept").mkdir()
    model, profile, manifest = text_model(tmp_path / "kept"), tmp_path / "profile.json", tmp_path / "tiny.yaml"
    manifest.write_text(
        DOCUMENT.replace("iris", "tiny").replace("onnx}", "huggingface}").replace("./model.onnx", str(model))
    )
    measure = ("profile", "--write", str(profile), "--seconds", "0.2", "--concurrency", "1,4", "--cold-starts", "0")
    done = call(*measure, "-f", str(manifest))
    assert done.code == 0, done.err
    found = read_profile(profile).service_times.llm
    assert found is not None
    assert found.max_batch == 32
    assert found.prefill_tokens_s > found.decode_tokens_s[1] > 0
    assert found.decode_tokens_s[4] > found.decode_tokens_s[1]  # streams share steps
    assert "4 streams" in done.out
    trace = ("--trace", "poisson:rate=1,duration=1m,input=20,output=20")
    done = call("simulate", "-f", str(manifest), *trace, "--profile", str(profile), "--target", "local")
    assert done.code == 0, done.err
    assert "first token" in done.out
