"""One kind of objects as the cluster has them: listed once, watched from there, listed anew when that fails.

While the API is away the last state holds: requests go on by it, as they do when a control process is away.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pilotlight.gateway.cluster.api import Api, ApiError, Gone, Missing
from pilotlight.gateway.logs import log

Json = Any
Key = tuple[str, str]  # namespace and name of an object
T = TypeVar("T")
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # between attempts; the last one for as long as it takes
STEADY_S: Final = 10.0  # whoever lists and fails sooner than this has not recovered: the pauses go on growing
BRIEF_S: Final = 1.0  # a watch that ends sooner and tells nothing is a failure
MISSING_S: Final = 60.0  # a kind that the cluster lacks may be installed later


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """Where the API has it, which objects of it are meant, and what of one is kept; None: nothing.

    `optional`: a cluster may lack the kind, and has no objects of it then.
    """

    path: str
    selector: str
    read: Callable[[Json], T | None]
    optional: bool = False


class Watched(Generic[T]):
    """`changed` is called when what is kept of any object differs; most events change nothing of it."""

    def __init__(self, api: Api, kind: Kind[T], changed: Callable[[], None]) -> None:
        self.objects: dict[Key, T] = {}
        self.synced = False
        self.kind = kind
        self._api, self._changed = api, changed

    async def follow(self) -> None:
        """Until it is cancelled."""
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._watch(await self._list())
            except ApiError as error:
                failures = 0 if clock() - began >= STEADY_S else failures
                wait = self._told(error, PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
                await asyncio.sleep(wait)

    def _told(self, error: ApiError, pause: float) -> float:
        """How long to wait. What is known of a kind holds, even if the API denies that there is such a kind."""
        if isinstance(error, Missing) and self.kind.optional and not self.objects:
            self._replace({})
            return MISSING_S
        if not isinstance(error, Gone):
            log("gateway.watch", f"{error}; another attempt in {pause:g} s", level="WARNING")
        return pause

    async def _list(self) -> str:
        found, version = await self._api.list(self.kind.path, self.kind.selector)
        kept = {key_of(each): self._read(each) for each in found}
        self._replace({key: value for key, value in kept.items() if value is not None})
        return version

    def _replace(self, objects: dict[Key, T]) -> None:
        if objects != self.objects or not self.synced:
            self.objects, self.synced = objects, True
            self._changed()

    async def _watch(self, version: str) -> None:
        """A watch that the server ends is taken up where it ended."""
        clock = asyncio.get_running_loop().time
        while True:
            began, silent = clock(), True
            async for event in self._api.watch(self.kind.path, self.kind.selector, version):
                version = str(event["object"]["metadata"].get("resourceVersion") or version)
                self._apply(str(event.get("type")), event["object"])
                silent = False
            if silent and clock() - began < BRIEF_S:
                raise ApiError(f"the watch of {self.kind.path} ended as soon as it began")

    def _read(self, found: Json) -> T | None:
        """One object that nobody can read is left out; the others must not suffer from it."""
        try:
            return self.kind.read(found)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            where = f"{self.kind.path} {'/'.join(key_of(found))}"
            log("gateway.unreadable", f"{where} is not as Kubernetes defines it ({error!r})", level="WARNING")
            return None

    def _apply(self, what: str, found: Json) -> None:
        if what == "BOOKMARK":
            return
        key = key_of(found)
        value = None if what == "DELETED" else self._read(found)
        if self.objects.get(key) == value:
            return
        if value is None:
            del self.objects[key]
        else:
            self.objects[key] = value
        self._changed()


def key_of(found: Json) -> Key:
    metadata = found["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])
