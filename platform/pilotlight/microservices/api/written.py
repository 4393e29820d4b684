"""Values as replies: the one place of this area where a body is encoded."""

from typing import Any

from aiohttp import web
from msgspec import json

from pilotlight.microservices.replies import Reply


def reply(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(value), status=status, content_type="application/json")


def written(made: Reply) -> web.Response:
    response = reply(made.body, made.status)
    if made.retry_after_s is not None:
        response.headers["Retry-After"] = str(made.retry_after_s)
    return response
