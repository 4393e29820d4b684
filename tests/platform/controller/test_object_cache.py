"""The cache of the controller: newest versions, what it answers for, and what it leaves to the API server."""

from collections.abc import Iterator

import pytest
from tests.platform.targets.kubernetes.fake_cluster import named
from tests.platform.targets.kubernetes.live_cluster import LiveCluster

from pilotlight.controller.object_cache import WATCHED, CachedCluster, ObjectCache
from pilotlight.k8s.names import LABEL_SERVICE
from pilotlight.targets.kubernetes import canary_store, releases
from pilotlight.targets.kubernetes.client import KubeConnection

SERVICE = ("v1", "Service")
RELEASE = ("apps/v1", "ControllerRevision")


def version(number: int, name: str = "iris", kind: tuple[str, str] = SERVICE, **more: object) -> dict[str, object]:
    metadata = {"resourceVersion": str(number), "labels": {LABEL_SERVICE: "iris"}}
    return named(*kind, "models", name, metadata=metadata, number=number, **more)


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    cache = ObjectCache()
    cache.put(version(7))
    cache.put(version(5))
    assert [each["number"] for each in cache.list(SERVICE, "models", "iris")] == [7]


def test_a_deletion_does_not_remove_what_was_created_again() -> None:
    cache = ObjectCache()
    cache.put(version(9))
    cache.discard(version(8))
    assert cache.get(SERVICE, "models", "iris") is not None
    cache.discard(version(10))
    assert cache.get(SERVICE, "models", "iris") is None
    assert cache.list(SERVICE, "models", "iris") == []
    assert not cache._by_service, "memory does not grow with services that are gone"


def test_a_list_removes_what_it_does_not_have() -> None:
    cache = ObjectCache()
    cache.put(version(1, "gone"))
    before = cache.newest
    cache.put(version(3, "new"))  # written while the list was made
    cache.replace(SERVICE, [version(2)], before)
    assert {each["metadata"]["name"] for each in cache.list(SERVICE, None)} == {"iris", "new"}


def release(number: int) -> dict[str, object]:
    made = version(
        number, f"iris-release-{number}", RELEASE, revision=number, data={"document": "…", "manifests": [], "at": ""}
    )
    made["metadata"]["labels"][releases.LABEL] = "iris"
    return made


def test_a_revision_of_a_statefulset_takes_no_content_of_a_release() -> None:
    cache = ObjectCache()
    cache.put(release(1))
    cache.put(version(2, "iris-engine-78b89", RELEASE, revision=1, data={"spec": "…"}))
    cache.put(version(3, "iris-engine-99999", RELEASE, revision=2, data={"spec": "…"}))
    assert all("data" in each for each in cache.list(RELEASE, "models", "iris"))


def test_only_the_newest_release_has_its_content() -> None:
    cache = ObjectCache()
    for number in (2, 1, 3):
        cache.put(release(number))
    assert {each["revision"]: "data" in each for each in cache.list(RELEASE, "models", "iris")} == {
        1: False, 2: False, 3: True,
    }  # fmt: skip


@pytest.fixture
def live() -> Iterator[LiveCluster]:
    with LiveCluster(version(1), named(*SERVICE, "models", "theirs")) as cluster:
        yield cluster


def cached(live: LiveCluster) -> CachedCluster:
    cluster = CachedCluster(KubeConnection(live.api, sleep=lambda _: None), ObjectCache(), WATCHED)
    cluster.fill(())
    live.calls.clear()
    return cluster


def test_objects_with_the_label_are_answered_without_a_request(live: LiveCluster) -> None:
    cluster = cached(live)
    assert [each["metadata"]["name"] for each in cluster.list(*SERVICE, "models", f"{LABEL_SERVICE}=iris")] == ["iris"]
    assert cluster.get(*SERVICE, "models", "iris")
    assert live.calls == []


def test_canaries_are_listed_without_a_request(live: LiveCluster) -> None:
    cluster = cached(live)
    canary_store.save(cluster, ("models", "iris"), "{}", "")
    live.calls.clear()
    assert [each.key for each in canary_store.list_canaries(cluster, None)] == [("models", "iris")]
    assert canary_store.get(cluster, ("models", "other")) is None
    assert live.calls == []


def test_others_are_asked_for(live: LiveCluster) -> None:
    cluster = cached(live)
    assert cluster.get(*SERVICE, "models", "theirs")
    assert len(cluster.list(*SERVICE, "models")) == 2
    assert [call[0] for call in live.calls] == ["GET", "GET"]


def test_one_list_of_events_explains_all_services_for_a_while(live: LiveCluster) -> None:
    cluster = cached(live)
    assert cluster.list("v1", "Event", "models") == cluster.list("v1", "Event", "models") == []
    assert [call[1] for call in live.calls] == ["events"]


def test_what_it_writes_is_there_at_once(live: LiveCluster) -> None:
    cluster = cached(live)
    document = version(0, "new")
    del document["metadata"]["resourceVersion"]  # type: ignore[attr-defined]
    cluster.apply(document)
    assert cluster.cache.get(SERVICE, "models", "new")
    cluster.delete(document)
    assert cluster.cache.get(SERVICE, "models", "new") is None
