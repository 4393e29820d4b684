"""HTTP session of kopf whose responses are never nested deeper than Python can read.

kopf ends with the first watch that it cannot decode, so that one object would stop the controller for everybody.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf

from pilotlight.k8s.json_depth import may_be_deep, without_deep_values

Json = Any


class ShallowResponse(aiohttp.ClientResponse):
    """Response to a list or a watch, which has one JSON document per line."""

    async def start(self, connection: Any) -> "ShallowResponse":
        await super().start(connection)
        if self.url.query.get("watch"):
            self.content: Any = _Lines(self.content)
        return self

    async def json(self, **options: Any) -> Json:
        try:
            return await super().json(**options)
        except RecursionError:
            return json.loads(without_deep_values(await self.read()))


class _Lines:
    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield (without_deep_values(line) if may_be_deep(line) else line) + b"\n"
        yield rest


def open_session(connection: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    """Return a session with the credentials of a connection; kopf closes it."""
    connector = aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context())
    session = aiohttp.ClientSession(
        connector=connector, headers=connection.as_http_headers(), response_class=ShallowResponse
    )
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)
