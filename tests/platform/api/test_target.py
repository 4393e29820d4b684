"""The local target and the control API together: what one end is told is what the other end sees."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.platform.api.conftest import Served

from pilotlight import errors
from pilotlight.api.middlewares import STATUSES, status_of
from pilotlight.errors import NotFound, PlatformError
from pilotlight.release.apply import generation
from pilotlight.spec.problems import InvalidDocument
from pilotlight.targets.local import client
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control_process_launcher import Address
from pilotlight.targets.target import Key, Release, ServiceStatus, Share

KEY = ("default", "iris")
MANIFEST = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "iris", "namespace": "default"}}


def release(**changed: object) -> Release:
    return Release(*KEY, "document: 1\n", (MANIFEST,), **changed)  # type: ignore[arg-type]


def test_what_is_applied_is_what_lives(api: Served) -> None:
    assert api.target.apply(release(note="deploy", catalogue=("a: 1",))).generation == 1
    assert [manifest.document for manifest in api.target.live(KEY)] == [MANIFEST]
    assert api.target.releases(KEY) == (release(note="deploy", catalogue=("a: 1",)),)
    assert [status.name for status in api.target.list(None)] == ["iris"]
    assert not api.target.list("elsewhere")


VERBS: dict[str, Callable[[LocalTarget], object]] = {
    "status": lambda target: target.status(KEY),
    "releases": lambda target: target.releases(KEY),
    "scale": lambda target: target.scale(KEY, {"minReplicas": 1}),
    "traffic": lambda target: target.traffic(KEY, None),
    "logs": lambda target: list(target.logs(KEY, follow=False, previous=False, replica="", tail=1)),
    "delete": lambda target: target.delete(KEY),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_a_service_of_another_target_says_which(verb: str, api: Served) -> None:
    api.target.apply(release())
    api.engine.runs_on = "docker"
    with pytest.raises(NotFound, match="default/iris runs on docker") as refused:
        VERBS[verb](api.target)
    assert (refused.value.hint, refused.value.exit_code) == ("add --target docker", 3)
    assert KEY in api.engine.kept
    VERBS[verb](api.target_named("docker"))


def test_each_target_lists_its_own_services(api: Served) -> None:
    api.target.apply(release())
    api.engine.runs_on = "docker"
    assert not api.target.list(None)
    assert [each.name for each in api.target.list_all(None)] == ["iris"]  # `down` ends it too, and names it
    assert not api.target.live(KEY)
    (status,) = api.target_named("docker").list(None)
    assert (status.name, status.target) == ("iris", "docker")


def test_a_name_that_another_target_has_is_a_conflict_at_once(api: Served) -> None:
    api.target.apply(release())
    api.engine.runs_on = "docker"
    with pytest.raises(errors.Conflict, match="default/iris runs on docker, delete it there") as refused:
        generation(api.target, KEY)
    assert refused.value.hint == "platformctl delete iris --target docker"
    assert generation(api.target_named("docker"), KEY) == 1
    assert generation(api.target, ("default", "other")) == 0


def test_a_dry_run_changes_nothing(api: Served) -> None:
    api.target.apply(release(), dry_run=True)
    assert not api.engine.kept


def test_nothing_lives_of_a_service_that_is_not_there(api: Served) -> None:
    assert api.target.live(KEY) == []


def test_a_plan_from_an_older_generation_is_a_conflict(api: Served) -> None:
    api.target.apply(release(expected=0))
    with pytest.raises(errors.Conflict, match="was changed by another deploy"):
        api.target.apply(release(expected=0))


def test_an_error_keeps_its_sentence_its_hint_and_its_exit_code(api: Served) -> None:
    with pytest.raises(errors.NotFound, match="no service default/iris") as raised:
        api.target.status(KEY)
    assert (raised.value.hint, raised.value.exit_code) == ("platformctl list --target local", 3)


def test_a_defect_of_the_engine_is_an_internal_error(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.engine, "status", lambda key: dict[str, ServiceStatus]()["a defect"])
    with pytest.raises(errors.InternalError, match="KeyError in the control process: 'a defect'"):
        api.target.status(KEY)


def test_every_error_of_the_tree_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PlatformError)]
    instances = [InvalidDocument([]), *(kind("x") for kind in kinds)]
    assert {status_of(error) for error in instances} == set(STATUSES.values())


def test_bounds_and_shares_arrive_and_null_takes_them_back(api: Served) -> None:
    api.target.apply(release())
    api.target.scale(KEY, {"minReplicas": 0, "maxReplicas": 5})
    api.target.traffic(KEY, [Share("iris-1", 90), Share("iris-2", 10, "new")])
    assert api.engine.bounds[KEY] == {"minReplicas": 0, "maxReplicas": 5}
    assert api.engine.shares[KEY] == (Share("iris-1", 90), Share("iris-2", 10, "new"))
    api.target.scale(KEY, None)
    api.target.traffic(KEY, None)
    assert (api.engine.bounds[KEY], api.engine.shares[KEY]) == (None, None)


def test_unknown_bounds_are_refused(api: Served) -> None:
    api.target.apply(release())
    with pytest.raises(errors.UsageError, match="bounds are minReplicas, maxReplicas, not replicas"):
        api.target.scale(KEY, {"replicas": 1})


def test_a_body_of_another_service_is_refused(api: Served) -> None:
    with pytest.raises(errors.UsageError, match="the body is of default/iris, the path of default/other"):
        api.target._request("PUT", client.path(("default", "other")), dict[str, object], release())


def test_of_many_events_the_latest_come_in_their_order(api: Served) -> None:
    api.target.apply(release())
    for number in range(450):
        api.engine.tell(KEY, "Counted", str(number))
    counted = [event.message for event in api.target.events(KEY, follow=False)]
    assert counted == [str(number) for number in range(250, 450)]


def test_events_outlive_their_service_and_one_that_never_was_has_none(api: Served) -> None:
    api.target.apply(release())
    api.target.delete(KEY)
    assert [event.reason for event in api.target.events(KEY, follow=False)] == ["Applied"]
    with pytest.raises(errors.NotFound):
        list(api.target.events(("default", "nobody"), follow=False))


def test_who_follows_events_hears_those_to_come(api: Served) -> None:
    api.target.apply(release())
    heard: list[str] = []

    def hear(key: Key | None) -> None:
        stream = api.target.events(key, follow=True)
        for _ in range(2):
            reason = next(stream).reason
            heard.append(reason)
        stream.close()  # type: ignore[attr-defined]

    followers = [threading.Thread(target=hear, args=(key,)) for key in (None, KEY)]
    for follower in followers:
        follower.start()
    deadline = time.monotonic() + 60
    while heard != ["Applied", "Applied"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    api.engine.tell(KEY, "Later", "")
    for follower in followers:
        follower.join(60)
    assert sorted(heard) == ["Applied", "Applied", "Later", "Later"]


def test_logs_of_one_replica_are_its_last_lines(api: Served, tmp_path: Path) -> None:
    api.target.apply(release())
    (tmp_path / "one.log").write_text("".join(f"line {number}\n" for number in range(50_000)))
    lines = list(api.target.logs(KEY, follow=False, previous=False, replica="one", tail=2))
    assert lines == ["line 49998", "line 49999"]
    assert list(api.target.logs(KEY, follow=False, previous=False, replica="one", tail=0)) == []


def test_logs_of_an_unknown_replica_name_those_that_exist(api: Served, tmp_path: Path) -> None:
    api.target.apply(release())
    (tmp_path / "one.log").write_text("a\n")
    with pytest.raises(NotFound, match="no replica or revision is called xx; there are one") as raised:
        list(api.target.logs(KEY, follow=False, previous=False, replica="xx", tail=-1))
    assert raised.value.hint == "the platform keeps the logs of the last 10 ended replicas of a service"


def test_logs_of_a_revision_that_no_longer_runs_are_those_of_its_last_replica(api: Served, tmp_path: Path) -> None:
    api.target.apply(release())
    api.engine.gone = {"new-1", "new-2"}
    for name in ("old-1", "new-1", "new-2"):
        (tmp_path / f"{name}.log").write_text(f"{name}\n")
    for previous in (False, True):
        lines = list(api.target.logs(KEY, follow=False, previous=previous, replica="new", tail=-1))
        assert lines == ["new-2"]
    assert list(api.target.logs(KEY, follow=False, previous=False, replica="", tail=-1)) == ["old-1"]


def test_logs_of_several_replicas_say_whose_they_are(api: Served, tmp_path: Path) -> None:
    api.target.apply(release())
    (tmp_path / "one.log").write_text("a\nb\nwithout an end")
    (tmp_path / "two.log").write_text("c\n")
    lines = list(api.target.logs(KEY, follow=False, previous=False, replica="", tail=-1))
    assert lines == ["a", "b", "==> two <==", "c", "==> one <==", "without an end"]


def test_who_follows_logs_hears_new_lines_new_replicas_and_goes_on_over_a_rotation(api: Served, tmp_path: Path) -> None:
    api.target.apply(release())
    log = tmp_path / "one.log"
    log.write_text("old\nlast\n")
    stream = api.target.logs(KEY, follow=True, previous=False, replica="", tail=1)
    assert next(stream) == "last"
    log.write_text("cut\n")
    assert next(stream) == "cut"
    (tmp_path / "two.log").write_text("first\n")
    assert [next(stream), next(stream)] == ["==> two <==", "first"]
    stream.close()  # type: ignore[attr-defined]


def test_another_version_is_told_with_the_way_out(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "__version__", "9.9.9")
    with pytest.raises(errors.PlatformError, match=r"has version .*, platformctl has 9\.9\.9") as raised:
        api.target.list(None)
    assert raised.value.hint == "run platformctl down && platformctl up"
    api.target.shutdown(3.5)
    assert api.drained == [3.5]


def test_a_control_process_that_is_gone_is_told(api: Served) -> None:
    gone = client.LocalTarget(Address(0, 0, "", 1, 0))
    with pytest.raises(errors.PlatformError, match="the control process does not answer"):
        gone.list(None)


def test_secrets_reach_the_engine_and_no_answer(api: Served) -> None:
    api.target.set_secret(KEY, {"token": "x"})
    assert api.engine.secrets == {KEY: {"token": "x"}}
