"""What a failure of ours is told to whom."""

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pilotlight.api.middlewares import error_middleware
from pilotlight.api.target_adapters import TOKEN


async def fails(request: web.Request) -> web.Response:
    raise KeyError("/var/lib/of-the-operator")


async def told(shown: str) -> str:
    app = web.Application(middlewares=[error_middleware])
    app[TOKEN] = "admins"
    app.router.add_get("/", fails)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/", headers={"Authorization": f"Bearer {shown}"})
        assert answer.status == 500
        return str((await answer.json())["error"])


def test_a_defect_is_told_with_its_words_to_the_operator_alone() -> None:
    assert "of-the-operator" in asyncio.run(told("admins"))
    assert asyncio.run(told("an org's")) == "the control process failed; see its log"
