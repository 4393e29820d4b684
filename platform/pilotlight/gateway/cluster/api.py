"""The cluster's API over HTTP: lists and watches, with the credentials of a pod. The only module that asks it.

A token is good for an hour and the kubelet writes the next one into the same file, so it is read for every request.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec import DecodeError, json

from pilotlight.errors import PlatformError

Json = Any
PAGE: Final = 500  # objects that one answer holds
WATCH_S: Final = 60  # the server ends a watch after this time, so that a connection that died unnoticed does not last
LATE_S: Final = 15  # beyond it


class ApiError(PlatformError):
    """The API did not answer, or not as it should; worth another attempt."""


class Missing(ApiError):
    """The cluster has no such kind."""


class Gone(ApiError):
    """What was watched is too old: it must be listed anew."""


class Api:
    """`url` is of the API server; `credentials` a folder with `token` and `ca.crt`, either of which may be missing."""

    def __init__(self, url: str, credentials: Path) -> None:
        self._url, self._token = url, credentials / "token"
        authority = credentials / "ca.crt"
        trust = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
        # Several watches last for ever: without a bound of connections none of them waits for another.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=0), trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def list(self, path: str, selector: str) -> tuple[list[Json], str]:
        """All objects, and the version from which a watch goes on."""
        found: list[Json] = []
        page = ""
        while True:
            query = {"labelSelector": selector, "limit": str(PAGE), **({"continue": page} if page else {})}
            items, metadata = _page(path, await self._get(path, query))
            found += items
            page = metadata.get("continue") or ""
            if not page:
                return found, str(metadata.get("resourceVersion") or "")

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[Json]:
        """Events, until the server ends the watch. Raises Gone when the version is too old for one."""
        query = {
            "labelSelector": selector, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=LATE_S, sock_read=WATCH_S + LATE_S)
        try:
            async with self._session.get(
                self._url + path, params=query, headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.status != 200:
                    raise refusal(path, answer.status, await answer.read())
                async for line in _lines(answer.content):
                    yield _event(path, line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"the watch of {path} broke off: {error or type(error).__name__}") from error

    async def _get(self, path: str, query: Mapping[str, str]) -> Json:
        timeout = aiohttp.ClientTimeout(total=2 * LATE_S)
        try:
            async with self._session.get(
                self._url + path, params=query, headers=self._headers(), timeout=timeout
            ) as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise refusal(path, answer.status, body)
                return json.decode(body)
        except (aiohttp.ClientError, TimeoutError, OSError, DecodeError) as error:
            raise ApiError(f"{path} could not be listed: {error or type(error).__name__}") from error

    def _headers(self) -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        except OSError:
            return {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Of any length: an object may be longer than what the reader calls a line."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _event(path: str, line: bytes) -> Json:
    """Raises ApiError also for one of another shape: it must not end whoever watches."""
    try:
        event = json.decode(line)
    except DecodeError as error:
        raise ApiError(f"the watch of {path} sent what is no JSON: {error}") from error
    match event:
        case {"type": "ERROR", "object": {"code": int(code)}}:
            raise refusal(path, code, line)
        case {"type": "BOOKMARK", "object": {"metadata": dict()}} | {"object": {"metadata": {"name": str()}}}:
            return event
    raise ApiError(f"the watch of {path} sent what is no event: {line[:300].decode(errors='replace')}")


def _page(path: str, answer: Json) -> tuple[list[Json], dict[str, Json]]:
    """The objects of a list, and what it says of itself."""
    match answer:
        case {"metadata": dict(metadata), "items": list(items)} if all(map(_is_object, items)):
            return items, metadata
        case {"metadata": dict(metadata), "items": None}:
            return [], metadata
    raise ApiError(f"{path} could not be listed: the answer is no list of objects")


def _is_object(found: Json) -> bool:
    match found:
        case {"metadata": {"name": str()}}:
            return True
    return False


def refusal(path: str, status: int, body: bytes) -> ApiError:
    """By what there is to do about it."""
    if status == 404:
        return Missing(f"the cluster has no {path}")
    if status == 410:
        return Gone(f"the version of {path} is too old to watch from")
    return ApiError(f"the API answered {status} for {path}: {body[:300].decode(errors='replace')}")
