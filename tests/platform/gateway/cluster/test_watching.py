"""One kind of objects, listed and watched, whatever happens to the API meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.cluster.apiserver import SLICES, ApiServer, Json
from tests.platform.gateway.cluster.things import endpoint, slice_of
from tests.platform.gateway.linked import in_loop

from pilotlight.gateway.cluster import kube_api
from pilotlight.gateway.cluster.kube_api import Informer, KubeApi, WatchedKind
from pilotlight.gateway.cluster.object_fields import SELECTOR, EndpointSlice
from pilotlight.gateway.cluster.object_fields import slice_of as read


class Pauses(tuple[float, ...]):
    """Remembers which of them were taken."""

    taken: list[float]

    def __new__(cls, *seconds: float) -> "Pauses":
        made = super().__new__(cls, seconds)
        made.taken = []
        return made

    def __getitem__(self, index: Any) -> Any:
        self.taken.append(super().__getitem__(index))
        return self.taken[-1]


class Bed:
    def __init__(self, server: ApiServer, credentials: Path, optional: bool = False) -> None:
        self.server, self.changes = server, 0
        self.api = KubeApi(server.url, credentials)
        self.watched: Informer[EndpointSlice] = Informer(
            self.api, WatchedKind(SLICES, SELECTOR, read, optional), self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.watched.objects}


@asynccontextmanager
async def watched(
    credentials: Path, *kinds: str, first: tuple[Json, ...] = (), optional: bool = False, unwatchable: int = 0
) -> AsyncIterator[Bed]:
    server = await ApiServer(*kinds).start()
    server.unwatchable = unwatchable
    for each in first:
        server.put(SLICES, each)
    bed = Bed(server, credentials, optional)
    task = asyncio.create_task(bed.watched.run())
    try:
        await eventually_async(lambda: bed.watched.synced, "listed")
        yield bed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await bed.api.close()
        await server.close()


def piece(name: str, host: str = "10.0.0.1") -> Json:
    return slice_of("iris", "iris-predictor", endpoint(host), name=name)


@in_loop
async def test_what_is_there_is_listed_page_by_page_and_what_comes_and_goes_is_followed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    async with watched(tmp_path, SLICES, first=tuple(piece(name) for name in "abc")) as bed:
        assert bed.names == {"a", "b", "c"}
        bed.server.put(SLICES, piece("d"))
        bed.server.delete(SLICES, "models", "a")
        await eventually_async(lambda: bed.names == {"b", "c", "d"}, "followed")
        asked = bed.server.asked[0]
        assert asked[1]["labelSelector"] == "pilotlight.dev/service"
        assert asked[2] == "Bearer first"
        assert bed.server.lists(SLICES) == 2  # two pages, and never again


@in_loop
async def test_an_event_that_changes_nothing_that_is_read_is_no_change(tmp_path: Path) -> None:
    async with watched(tmp_path, SLICES, first=(piece("a"),)) as bed:
        before = bed.changes
        bed.server.put(SLICES, piece("a"))
        bed.server.put(SLICES, piece("b"))
        await eventually_async(lambda: "b" in bed.names, "seen")
        assert bed.changes == before + 1


@in_loop
async def test_a_watch_that_ends_goes_on_where_it_ended_without_a_list(tmp_path: Path) -> None:
    async with watched(tmp_path, SLICES) as bed:
        bed.server.put(SLICES, piece("a"))
        await eventually_async(lambda: bed.names == {"a"}, "seen")
        bed.server.drop()
        bed.server.put(SLICES, piece("b"))
        await eventually_async(lambda: bed.names == {"a", "b"}, "seen")
        assert bed.server.lists(SLICES) == 1


@in_loop
async def test_a_version_that_is_too_old_is_listed_anew(tmp_path: Path) -> None:
    async with watched(tmp_path, SLICES, first=(piece("a"), piece("b"))) as bed:
        del bed.server.kinds[SLICES]["models", "a"]  # nobody hears of it
        bed.server.forget()
        await eventually_async(lambda: bed.names == {"b"}, "listed anew")


@in_loop
async def test_while_the_api_fails_what_was_known_holds_and_the_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "BACKOFF_S", (0.01,))
    (tmp_path / "token").write_text("first")
    async with watched(tmp_path, SLICES, first=(piece("a"),)) as bed:
        (tmp_path / "token").write_text("second")
        bed.server.failing = 5
        bed.server.drop()
        await eventually_async(lambda: not bed.server.failing, "failed five times")
        assert bed.names == {"a"}
        bed.server.put(SLICES, piece("b"))
        await eventually_async(lambda: bed.names == {"a", "b"}, "seen again")
        assert bed.server.asked[-1][2] == "Bearer second"


@in_loop
async def test_a_kind_that_the_cluster_lacks_is_empty(tmp_path: Path) -> None:
    async with watched(tmp_path, optional=True) as bed:
        assert bed.watched.synced
        assert bed.names == set()


@pytest.mark.parametrize("optional", [False, True])
@in_loop
async def test_what_was_known_of_a_kind_holds_while_the_api_denies_that_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optional: bool
) -> None:
    """A load balancer before API servers that restart may say 404 for anything."""
    monkeypatch.setattr(kube_api, "BACKOFF_S", (0.01,))
    async with watched(tmp_path, SLICES, first=(piece("a"),), optional=optional) as bed:
        there = bed.server.kinds.pop(SLICES)
        bed.server.forget()
        before = bed.server.lists(SLICES)
        await eventually_async(lambda: bed.server.lists(SLICES) > before + 2, "denied three times")
        assert bed.names == {"a"}
        bed.server.kinds[SLICES] = there
        bed.server.put(SLICES, piece("b"))
        await eventually_async(lambda: bed.names == {"a", "b"}, "seen again")


@pytest.mark.parametrize("answer", [403, 410, 200])
@in_loop
async def test_pauses_grow_when_lists_work_and_watches_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    waits = Pauses(0.01, 0.02, 3600.0)
    monkeypatch.setattr(kube_api, "BACKOFF_S", waits)
    async with watched(tmp_path, SLICES, first=(piece("a"),), unwatchable=answer) as bed:
        await eventually_async(lambda: waits.taken[-1:] == [3600.0], "as slow as it gets")
        assert waits.taken == [0.01, 0.02, 3600.0]
        assert bed.server.lists(SLICES) == 3


@in_loop
async def test_an_object_that_cannot_be_read_leaves_the_others_alone(tmp_path: Path) -> None:
    odd = piece("odd")
    odd["endpoints"] = [{"addresses": []}]
    async with watched(tmp_path, SLICES, first=(odd, piece("a"))) as bed:
        assert bed.names == {"a"}


@pytest.mark.parametrize("odd", [[], {"type": "ADDED"}, {"type": "ERROR", "object": None}, {"object": {"metadata": 1}}])
@in_loop
async def test_an_event_of_another_shape_is_a_watch_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: Any
) -> None:
    monkeypatch.setattr(kube_api, "BACKOFF_S", (0.01,))
    async with watched(tmp_path, SLICES, first=(piece("a"),)) as bed:
        await eventually_async(lambda: bed.server.watches > 0, "watched")
        bed.server.say(odd)
        await eventually_async(lambda: bed.server.lists(SLICES) == 2, "listed anew")
        bed.server.put(SLICES, piece("b"))
        await eventually_async(lambda: bed.names == {"a", "b"}, "seen")


@in_loop
async def test_a_list_of_another_shape_is_a_list_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_api, "BACKOFF_S", (0.01,))
    async with watched(tmp_path, SLICES, first=(piece("a"),)) as bed:
        bed.server.kinds[SLICES]["", ""] = {"metadata": None}
        bed.server.forget()
        await eventually_async(lambda: bed.server.lists(SLICES) > 3, "tried again")
        assert bed.names == {"a"}
        del bed.server.kinds[SLICES]["", ""]
        bed.server.put(SLICES, piece("b"))
        await eventually_async(lambda: bed.names == {"a", "b"}, "seen")
