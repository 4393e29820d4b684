"""A Prometheus that is asked over HTTP, and every way in which it can fail to answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from pilotlight.prometheus.client import QueryFailed, query_number


def vector(*values: str) -> dict[str, Any]:
    found = [{"metric": {"n": str(n)}, "value": [1.0, value]} for n, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": found}}


async def asked(answer: Callable[[web.Request], Awaitable[web.Response]], promql: str = "sum(a)") -> float | None:
    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        return await asyncio.to_thread(query_number, f"http://127.0.0.1:{port}/", promql, 12.5)
    finally:
        await runner.cleanup()


def says(document: dict[str, Any], status: int = 200) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(document, status=status)

    return answer


@pytest.mark.parametrize(
    ("document", "value"),
    [
        (vector("4.5"), 4.5),
        (vector(), None),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1.0, "7"]}}, 7.0),
    ],
)
def test_one_number_or_nothing_is_an_answer(document: dict[str, Any], value: float | None) -> None:
    assert asyncio.run(asked(says(document))) == value


def test_the_query_and_the_time_are_sent() -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update(await request.post())
        return web.json_response(vector("1"))

    asyncio.run(asked(answer, 'sum(a{x="+ &"})'))
    assert seen == {"query": 'sum(a{x="+ &"})', "time": "12.500"}


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        (vector("1", "2"), 200, "returned 2 series; the query must return one number"),
        ({"status": "error", "error": "parse error: unexpected )"}, 400, "rejected the query: parse error"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, 200, "returned a matrix"),
        ({"hello": 1}, 200, "returned 200 without a result"),
    ],
)
def test_anything_else_is_a_failure_that_says_why(document: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(QueryFailed, match=message):
        asyncio.run(asked(says(document, status)))


def test_nobody_there_is_a_failure() -> None:
    with pytest.raises(QueryFailed, match="cannot be reached"):
        query_number("http://127.0.0.1:1", "sum(a)")
