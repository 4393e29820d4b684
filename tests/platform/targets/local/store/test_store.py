"""What the store remembers, how it counts deploys, and what it lets go."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.targets.local.store import Store
from pilotlight.targets.target import Event, Release

IRIS = ("default", "iris")
NOON = "2025-03-01T12:00:00Z"
LATER = "2025-03-01T12:05:00Z"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "state.db")
    yield opened
    opened.close()


def release(document: str = "one", expected: int | None = None, **fields: Any) -> Release:
    manifests = ({"kind": "Deployment", "metadata": {"name": document}},)
    return Release(*IRIS, document, manifests, expected=expected, **fields)


def deploy(store: Store, document: str = "one", revision: str = "r1", now: str = NOON, **fields: Any) -> int:
    objects = [{"kind": "Deployment", "metadata": {"name": document}}]
    return store.apply(release(document, **fields), [("iris-predictor", revision, objects)], now)


def event(number: int = 0, service: str = "iris") -> Event:
    return Event(NOON, "default", service, "Revision/r1", "Normal", "Scaled", f"number {number}")


def test_a_service_is_its_newest_release(store: Store) -> None:
    assert store.service(IRIS) is None
    assert deploy(store, "one", catalogue=("kind: BaseModel",), note="first") == 1
    assert deploy(store, "two", now=LATER) == 2
    found = store.service(IRIS)
    assert found is not None
    assert (found.key, found.generation, found.document) == (IRIS, 2, "two")
    assert (found.created_at, found.updated_at, found.deleting) == (NOON, LATER, False)
    assert found.manifests == [{"kind": "Deployment", "metadata": {"name": "two"}}]
    newest, first = store.releases(IRIS)
    assert (newest.generation, newest.at, newest.document) == (2, LATER, "two")
    assert (first.generation, first.note, first.catalogue) == (1, "first", ("kind: BaseModel",))
    assert first.manifests == release("one").manifests


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store.open(path)
    deploy(store)
    store.set_overrides(IRIS, "iris-predictor", {"minReplicas": 2})
    store.save_replica("x7k2q", {"pid": 1})
    store.close()
    store = Store.open(path)
    try:
        assert [found.overrides for found in store.services()] == [{"iris-predictor": {"minReplicas": 2}}]
        assert store.replicas() == [{"pid": 1}]
    finally:
        store.close()


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    Store.open(tmp_path / "state.db").close()
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600


def test_the_same_deploy_again_changes_nothing(store: Store) -> None:
    deploy(store)
    before = store.service(IRIS)
    assert deploy(store, now=LATER) == 1
    assert store.service(IRIS) == before
    assert deploy(store, now=LATER, catalogue=("other",)) == 2


@pytest.mark.parametrize(
    ("present", "expected", "sentence"),
    [
        (2, 1, "default/iris was changed by another deploy (generation 2, yours started from 1); run it again"),
        (1, 0, "default/iris was changed by another deploy (generation 1, yours started before the first deploy); run"),
        (0, 3, "default/iris was deleted in the meantime (yours started from 3); run it again"),
    ],
)
def test_a_plan_from_an_older_state_is_refused(store: Store, present: int, expected: int, sentence: str) -> None:
    for number in range(present):
        deploy(store, f"document {number}")
    with pytest.raises(Conflict) as raised:
        deploy(store, "mine", expected=expected)
    assert str(raised.value).startswith(sentence)
    assert deploy(store, "mine", expected=present) == present + 1


def test_a_generation_is_never_used_twice_even_over_a_delete(store: Store) -> None:
    assert [deploy(store, "one"), deploy(store, "two")] == [1, 2]
    store.begin_delete(IRIS)
    store.finish_delete(IRIS)
    assert store.service(IRIS) is None
    assert deploy(store, "two", expected=0) == 3


def test_nothing_is_deployed_onto_a_service_that_is_being_deleted(store: Store) -> None:
    deploy(store)
    store.begin_delete(IRIS)
    found = store.service(IRIS)
    assert found is not None
    assert found.deleting
    with pytest.raises(Conflict, match="is being deleted"):
        deploy(store, "two")


def test_deleting_leaves_nothing_but_events(store: Store) -> None:
    deploy(store)
    store.set_overrides(IRIS, "iris-predictor", {"minReplicas": 2})
    store.port(IRIS, "http", [9001])
    store.add_event(event())
    store.finish_delete(IRIS)
    assert (store.services(), store.releases(IRIS), store.revisions(IRIS)) == ([], [], [])
    assert len(store.events(IRIS)) == 1
    with pytest.raises(NotFound, match="no service default/iris"):
        store.begin_delete(IRIS)


def test_the_last_ten_releases_are_kept_and_those_of_revisions_that_are_not_forgotten(store: Store) -> None:
    for number in range(1, 15):
        deploy(store, f"document {number}", revision="old" if number == 2 else "new")
    assert [found.generation for found in store.releases(IRIS)] == [*range(14, 4, -1), 2]
    store.forget_revision(IRIS, "iris-predictor", "old")
    deploy(store, "document 15", revision="new")
    assert [found.generation for found in store.releases(IRIS)] == [*range(15, 5, -1)]


def test_a_revision_tells_how_it_went(store: Store) -> None:
    deploy(store, revision="r1")
    store.update_revision(IRIS, "iris-predictor", "r1", failed="no such file")
    deploy(store, "two", revision="r2")
    newest, first = store.revisions(IRIS)
    assert (newest.name, newest.workload, newest.service, newest.generation) == ("r2", "iris-predictor", "iris", 2)
    assert (first.name, first.failed, first.first_ready_at) == ("r1", "no such file", "")
    assert first.manifests == [{"kind": "Deployment", "metadata": {"name": "one"}}]
    store.mark_ready(IRIS, "iris-predictor", "r1", NOON)
    store.mark_ready(IRIS, "iris-predictor", "r1", LATER)
    first = store.revisions(IRIS)[1]
    assert (first.failed, first.first_ready_at) == ("", NOON)


def test_a_revision_that_comes_again_keeps_its_past_and_gets_its_new_objects(store: Store) -> None:
    deploy(store, "one", revision="r1")
    store.mark_ready(IRIS, "iris-predictor", "r1", NOON)
    store.update_revision(IRIS, "iris-predictor", "r1", failed="out of memory")
    store.update_revision(IRIS, "iris-predictor", "r1", gpu_peak=3 << 30)
    deploy(store, "two", revision="r1", now=LATER)
    (found,) = store.revisions(IRIS)
    assert found.gpu_peak == 3 << 30
    assert (found.created_at, found.first_ready_at, found.failed, found.generation) == (NOON, NOON, "", 2)
    assert found.manifests == [{"kind": "Deployment", "metadata": {"name": "two"}}]


def test_failed_first_answers_are_remembered_until_that_revision_is_deployed_again(store: Store) -> None:
    deploy(store, "one", revision="r1")
    deploy(store, "two", revision="r2")
    for name in ("r1", "r2"):
        store.update_revision(IRIS, "iris-predictor", name, verification="failing", answer_failure="all 500")
        store.mark_ready(IRIS, "iris-predictor", name, NOON)  # another replica
    deploy(store, "one again", revision="r1")
    found = {each.name: (each.verification, each.answer_failure) for each in store.revisions(IRIS)}
    assert found == {"r1": ("unverified", ""), "r2": ("failing", "all 500")}
    store.update_revision(IRIS, "iris-predictor", "r1", verification="verified", answer_failure="")
    deploy(store, "and again", revision="r1")
    assert store.revisions(IRIS)[0].verification == "verified"


def test_what_was_set_by_hand_stays_until_it_is_reset(store: Store) -> None:
    deploy(store)
    store.set_overrides(IRIS, "iris-predictor", {"minReplicas": 2})
    store.set_overrides(IRIS, "iris-predictor", {"maxReplicas": 5})
    deploy(store, "two")
    assert _overrides(store) == {"iris-predictor": {"maxReplicas": 5}}
    assert store.apply(release("two"), [], LATER, reset=True) == 2
    assert _overrides(store) == {}
    store.set_overrides(IRIS, "iris-predictor", {"maxReplicas": 5})
    store.set_overrides(IRIS, "iris-predictor", None)
    assert _overrides(store) == {}


def _overrides(store: Store) -> Mapping[str, Mapping[str, Any]]:
    found = store.service(IRIS)
    assert found is not None
    return found.overrides


def test_a_lost_race_leaves_overrides_alone(store: Store) -> None:
    deploy(store)
    store.set_overrides(IRIS, "iris-predictor", {"minReplicas": 2})
    with pytest.raises(Conflict):
        store.apply(release("two", expected=7), [], LATER, reset=True)
    assert _overrides(store) == {"iris-predictor": {"minReplicas": 2}}


def test_nothing_is_set_on_a_service_that_is_not_there(store: Store) -> None:
    with pytest.raises(NotFound):
        store.set_overrides(IRIS, "iris-predictor", {"minReplicas": 2})
    with pytest.raises(NotFound):
        store.port(IRIS, "http", [9001])


def test_replicas_come_and_go(store: Store) -> None:
    store.save_replica("a", {"state": "starting"})
    store.save_replica("b", {"state": "starting"})
    store.save_replica("a", {"state": "ready"})
    store.drop_replica("b")
    store.drop_replica("never there")
    assert store.replicas() == [{"state": "ready"}]


def test_a_port_stays_with_its_service(store: Store) -> None:
    other = ("default", "other")
    for key in (IRIS, other):
        store.apply(Release(*key, "", ()), [], NOON)
    assert store.port(IRIS, "http", [9001, 9002]) == 9001
    assert store.port(other, "http", [9001, 9002]) == 9002
    assert store.port(IRIS, "http", [9005]) == 9001
    assert store.port(IRIS, "grpc", range(9001, 9009)) == 9003
    with pytest.raises(PlatformError, match="no grpc port is left for default/other"):
        store.port(other, "grpc", [9001, 9002, 9003])
    store.release_port(IRIS, "http")
    assert store.port(IRIS, "http", [9002, 9004]) == 9004
    store.finish_delete(IRIS)
    assert store.port(other, "grpc", [9004]) == 9004


def test_events_are_read_from_the_end_or_onwards_from_a_number(store: Store) -> None:
    numbers = [store.add_event(event(index, "iris" if index % 2 else "other")) for index in range(6)]
    assert numbers == sorted(set(numbers))
    assert [found.message for found in store.events(None, limit=2)] == ["number 4", "number 5"]
    assert [found.message for found in store.events(IRIS)] == ["number 1", "number 3", "number 5"]
    onwards = store.events(None, after=numbers[2], limit=2)
    assert [(found.number, found.message) for found in onwards] == [(numbers[3], "number 3"), (numbers[4], "number 4")]


def test_events_are_bounded_and_their_numbers_go_on(store: Store) -> None:
    store.add_event(event(-1, "quiet"))
    last = [store.add_event(event(index)) for index in range(1005)][-1]
    kept = store.events(IRIS, limit=5000)
    assert (len(kept), kept[0].message, kept[-1].number) == (1000, "number 5", last)
    assert len(store.events(("default", "quiet"))) == 1


def test_events_of_many_services_are_bounded_in_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotlight.targets.local.store.store.MAX_EVENTS", 20)
    for index in range(30):
        store.add_event(event(index, f"service-{index}"))
    assert [found.message for found in store.events(None, limit=100)] == [f"number {index}" for index in range(10, 30)]
