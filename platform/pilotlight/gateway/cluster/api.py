"""Kubernetes API over HTTP: list and watch, with the credentials of a pod.

The kubelet renews the token file every hour, so it is read for every request.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec import DecodeError, json

from pilotlight.errors import PlatformError

Json = Any
PAGE: Final = 500  # objects per response
WATCH_S: Final = 60  # server-side limit of a watch, so that a dead connection does not stay unnoticed
LATE_S: Final = 15  # added to it by the client


class ApiError(PlatformError):
    """No response of the API, or an unexpected one; worth a retry."""


class KindNotFound(ApiError):
    """The cluster does not serve the kind."""


class VersionExpired(ApiError):
    """The resource version is too old to watch from (410 Gone): list again."""


class KubeApi:
    """`url` of the API server; `credentials`: a folder with `token` and `ca.crt`, both optional."""

    def __init__(self, url: str, credentials: Path) -> None:
        self._url, self._token = url, credentials / "token"
        authority = credentials / "ca.crt"
        trust = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
        # Watches never end: with a connection limit they could block each other.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=0), trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def list(self, path: str, selector: str) -> tuple[list[Json], str]:
        """Return all objects and the resource version to watch from."""
        objects: list[Json] = []
        page = ""
        while True:
            query = {"labelSelector": selector, "limit": str(PAGE), **({"continue": page} if page else {})}
            items, metadata = _page(path, await self._get(path, query))
            objects += items
            page = metadata.get("continue") or ""
            if not page:
                return objects, str(metadata.get("resourceVersion") or "")

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[Json]:
        """Yield events until the server ends the watch. Raises VersionExpired if the version is too old."""
        query = {
            "labelSelector": selector, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=LATE_S, sock_read=WATCH_S + LATE_S)
        try:
            async with self._session.get(
                self._url + path, params=query, headers=self._headers(), timeout=timeout
            ) as response:
                if response.status != 200:
                    raise api_error(path, response.status, await response.read())
                async for line in _lines(response.content):
                    yield _event(path, line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"the watch of {path} broke off: {error or type(error).__name__}") from error

    async def _get(self, path: str, query: Mapping[str, str]) -> Json:
        timeout = aiohttp.ClientTimeout(total=2 * LATE_S)
        try:
            async with self._session.get(
                self._url + path, params=query, headers=self._headers(), timeout=timeout
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise api_error(path, response.status, body)
                return json.decode(body)
        except (aiohttp.ClientError, TimeoutError, OSError, DecodeError) as error:
            raise ApiError(f"{path} could not be listed: {error or type(error).__name__}") from error

    def _headers(self) -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        except OSError:
            return {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length: an object may exceed the limit of StreamReader.readline."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _event(path: str, line: bytes) -> Json:
    """Decode an event. Raises ApiError also for an unexpected shape, so that the informer retries."""
    try:
        event = json.decode(line)
    except DecodeError as error:
        raise ApiError(f"the watch of {path} sent what is no JSON: {error}") from error
    match event:
        case {"type": "ERROR", "object": {"code": int(code)}}:
            raise api_error(path, code, line)
        case {"type": "BOOKMARK", "object": {"metadata": dict()}} | {"object": {"metadata": {"name": str()}}}:
            return event
    raise ApiError(f"the watch of {path} sent what is no event: {line[:300].decode(errors='replace')}")


def _page(path: str, response: Json) -> tuple[list[Json], dict[str, Json]]:
    """Return the items and the metadata of a list."""
    match response:
        case {"metadata": dict(metadata), "items": list(items)} if all(map(_is_object, items)):
            return items, metadata
        case {"metadata": dict(metadata), "items": None}:
            return [], metadata
    raise ApiError(f"{path} could not be listed: the answer is no list of objects")


def _is_object(item: Json) -> bool:
    match item:
        case {"metadata": {"name": str()}}:
            return True
    return False


def api_error(path: str, status: int, body: bytes) -> ApiError:
    """Return the error class for a status."""
    if status == 404:
        return KindNotFound(f"the cluster has no {path}")
    if status == 410:
        return VersionExpired(f"the version of {path} is too old to watch from")
    return ApiError(f"the API answered {status} for {path}: {body[:300].decode(errors='replace')}")
