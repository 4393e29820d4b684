"""Kubernetes API with the credentials of a pod, and the informer of one kind on it.

An informer lists objects, watches from there, and lists again after a failure. While the API is unavailable the last
state stays in force.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import aiohttp
from msgspec import DecodeError, json

from pilotlight.errors import PlatformError
from pilotlight.gateway.metrics_and_reports import log

Json = Any
PAGE: Final = 500  # objects per response
WATCH_S: Final = 60  # server-side limit of a watch, so that a dead connection does not stay unnoticed
LATE_S: Final = 15  # added to it by the client
BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # back-off between attempts
STEADY_S: Final = 10.0  # a failure sooner than this after a list does not reset the back-off
BRIEF_S: Final = 1.0  # a watch that ends sooner without events is a failure
MISSING_S: Final = 60.0  # retry for a CRD that is not installed

ObjectKey = tuple[str, str]  # namespace and name of an object
T = TypeVar("T")


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
            async with self._request(path, query, timeout) as response:
                if response.status != 200:
                    raise api_error(path, response.status, await response.read())
                async for line in _lines(response.content):
                    yield _event(path, line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"the watch of {path} was interrupted: {error or type(error).__name__}") from error

    async def _get(self, path: str, query: Mapping[str, str]) -> Json:
        try:
            async with self._request(path, query, aiohttp.ClientTimeout(total=2 * LATE_S)) as response:
                body = await response.read()
                if response.status != 200:
                    raise api_error(path, response.status, body)
                return json.decode(body)
        except (aiohttp.ClientError, TimeoutError, OSError, DecodeError) as error:
            raise ApiError(f"{path} could not be listed: {error or type(error).__name__}") from error

    def _request(
        self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {}
        with suppress(OSError):  # read for every request: the kubelet renews the token file every hour
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        return self._session.get(self._url + path, params=query, headers=headers, timeout=timeout)


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[T]):
    """Path, label selector, and the reader of an object's fields; None: irrelevant.

    `optional`: the cluster may lack the kind, which then has no objects.
    """

    path: str
    selector: str
    read: Callable[[Json], T | None]
    optional: bool = False


class Informer(Generic[T]):
    """`changed` is called when the fields read of any object differ; most events change none."""

    def __init__(self, api: KubeApi, kind: WatchedKind[T], changed: Callable[[], None]) -> None:
        self.objects: dict[ObjectKey, T] = {}
        self.synced = False
        self.kind = kind
        self._api, self._changed = api, changed

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._watch(await self._list())
            except ApiError as error:
                failures = 0 if clock() - began >= STEADY_S else failures
                wait = self._retry_delay(error, BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
                await asyncio.sleep(wait)

    def _retry_delay(self, error: ApiError, delay: float) -> float:
        """Log the error and return the delay. Known objects stay, even if the API does not serve the kind any more."""
        if isinstance(error, KindNotFound) and self.kind.optional and not self.objects:
            self._replace({})
            return MISSING_S
        if not isinstance(error, VersionExpired):
            log("gateway.watch", f"{error}; retrying in {delay:g} s", level="WARNING")
        return delay

    async def _list(self) -> str:
        documents, version = await self._api.list(self.kind.path, self.kind.selector)
        objects = {key_of(each): self._read(each) for each in documents}
        self._replace({key: value for key, value in objects.items() if value is not None})
        return version

    def _replace(self, objects: dict[ObjectKey, T]) -> None:
        if objects != self.objects or not self.synced:
            self.objects, self.synced = objects, True
            self._changed()

    async def _watch(self, version: str) -> None:
        """Watch; when the server ends a watch, continue at the last version."""
        clock = asyncio.get_running_loop().time
        while True:
            began, silent = clock(), True
            async for event in self._api.watch(self.kind.path, self.kind.selector, version):
                version = str(event["object"]["metadata"].get("resourceVersion") or version)
                self._apply(str(event.get("type")), event["object"])
                silent = False
            if silent and clock() - began < BRIEF_S:
                raise ApiError(f"the watch of {self.kind.path} ended immediately")

    def _read(self, document: Json) -> T | None:
        """Read the fields of an object; None with a warning if it is malformed."""
        try:
            return self.kind.read(document)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            where = f"{self.kind.path} {'/'.join(key_of(document))}"
            log("gateway.unreadable", f"{where} is not a valid Kubernetes object ({error!r})", level="WARNING")
            return None

    def _apply(self, event_type: str, document: Json) -> None:
        if event_type == "BOOKMARK":
            return
        key = key_of(document)
        value = None if event_type == "DELETED" else self._read(document)
        if self.objects.get(key) == value:
            return
        if value is None:
            del self.objects[key]
        else:
            self.objects[key] = value
        self._changed()


def key_of(document: Json) -> ObjectKey:
    metadata = document["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


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
        raise ApiError(f"the watch of {path} sent invalid JSON: {error}") from error
    match event:
        case {"type": "ERROR", "object": {"code": int(code)}}:
            raise api_error(path, code, line)
        case {"type": "BOOKMARK", "object": {"metadata": dict()}} | {"object": {"metadata": {"name": str()}}}:
            return event
    raise ApiError(f"the watch of {path} sent an invalid event: {line[:300].decode(errors='replace')}")


def _page(path: str, response: Json) -> tuple[list[Json], dict[str, Json]]:
    match response:
        case {"metadata": dict(metadata), "items": list(items)} if all(map(_is_object, items)):
            return items, metadata
        case {"metadata": dict(metadata), "items": None}:
            return [], metadata
    raise ApiError(f"{path} could not be listed: the response is not a list")


def _is_object(item: Json) -> bool:
    match item:
        case {"metadata": {"name": str()}}:
            return True
    return False


def api_error(path: str, status: int, body: bytes) -> ApiError:
    if status == 404:
        return KindNotFound(f"the cluster does not know {path}")
    if status == 410:
        return VersionExpired(f"the version of {path} is too old to watch from")
    return ApiError(f"the API returned {status} for {path}: {body[:300].decode(errors='replace')}")
