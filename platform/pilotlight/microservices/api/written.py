"""JSON responses of this area."""

from typing import Any

from aiohttp import web
from msgspec import json

from pilotlight.microservices.replies import ApiResponse


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(value), status=status, content_type="application/json")


def to_response(result: ApiResponse) -> web.Response:
    response = json_response(result.body, result.status)
    if result.retry_after_s is not None:
        response.headers["Retry-After"] = str(result.retry_after_s)
    return response
