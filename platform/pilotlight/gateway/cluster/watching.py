"""Informer of one kind: lists objects, watches from there, and lists again after a failure.

While the API is unavailable the last state stays in force.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pilotlight.gateway.cluster.api import ApiError, KindNotFound, KubeApi, VersionExpired
from pilotlight.gateway.logs import log

Json = Any
ObjectKey = tuple[str, str]  # namespace and name of an object
T = TypeVar("T")
BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # back-off between attempts
STEADY_S: Final = 10.0  # a failure sooner than this after a list does not reset the back-off
BRIEF_S: Final = 1.0  # a watch that ends sooner without events is a failure
MISSING_S: Final = 60.0  # retry for a CRD that is not installed


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
            log("gateway.watch", f"{error}; another attempt in {delay:g} s", level="WARNING")
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
                raise ApiError(f"the watch of {self.kind.path} ended as soon as it began")

    def _read(self, document: Json) -> T | None:
        """Read the fields of an object; None with a warning if it is malformed."""
        try:
            return self.kind.read(document)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            where = f"{self.kind.path} {'/'.join(key_of(document))}"
            log("gateway.unreadable", f"{where} is not as Kubernetes defines it ({error!r})", level="WARNING")
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
