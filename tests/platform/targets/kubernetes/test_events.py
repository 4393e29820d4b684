"""Events of a cluster as those of a service: whose they are, in which order, and what a watch that is behind does."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from tests.platform.targets.kubernetes.fake_cluster import KNATIVE, PLAIN, PaperCluster, named
from tests.platform.targets.kubernetes.objects import pod

from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes.observe.events import as_event, at, events, owner

KEY = ("default", "iris")
OURS = {"labels": {"pilotlight.dev/service": "iris"}}
DEPLOYMENT = named("apps/v1", "Deployment", "default", "iris-predictor", metadata=OURS)
OTHER = named(
    "apps/v1", "Deployment", "default", "iris-predictor-x", metadata={"labels": {"pilotlight.dev/service": "x"}}
)


def event(name: str, about: str, second: int, **more: Any) -> dict[str, Any]:
    metadata = {"uid": name, "resourceVersion": str(second)}
    return named(
        "v1", "Event", "default", name, metadata=metadata, involvedObject={"kind": "Pod", "name": about},
        lastTimestamp=f"2026-01-01T00:00:{second:02}Z", reason="Started", message=name, type="Normal", **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("iris-predictor", "iris"),
        ("iris-predictor-00001-deployment-7d9f-abcde", "iris"),
        ("iris-predictor-x-7d9f", "x"),
        ("keda-hpa-iris-predictor", "iris"),
        ("iris-predictory", ""),
        ("iris", ""),
    ],
)
def test_an_object_belongs_to_the_longest_workload_that_its_name_begins_with(name: str, service: str) -> None:
    known = {("default", "iris-predictor"): "iris", ("default", "iris-predictor-x"): "x"}
    assert owner(("default", name), known) == service
    assert owner(("elsewhere", name), known) == ""


def test_events_of_a_service_come_oldest_first_and_others_not_at_all() -> None:
    noted = [
        event("late", "iris-predictor-1", 9),
        event("other", "iris-predictor-x-1", 5),
        event("early", "iris-predictor", 2),
    ]
    with PaperCluster(DEPLOYMENT, OTHER, *noted) as paper:
        found = list(events(paper.cluster(), KEY, False))
    assert [(each.message, each.service, each.number) for each in found] == [("early", "iris", 1), ("late", "iris", 2)]


def test_a_service_that_is_not_there_is_told_at_once() -> None:
    with PaperCluster(OTHER) as paper, pytest.raises(NotFound, match="there is no service default/iris"):
        events(paper.cluster(), KEY, True)


def test_without_a_service_those_of_all_services_come() -> None:
    noted = [event("a", "iris-predictor", 1), event("b", "iris-predictor-x", 2), event("c", "stranger", 3)]
    with PaperCluster(DEPLOYMENT, OTHER, *noted) as paper:
        assert [each.service for each in events(paper.cluster(), None, False)] == ["iris", "x"]


def test_a_watch_that_fell_behind_lists_again_and_repeats_nothing() -> None:
    def change(document: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "ADDED", "object": document}

    first, second, third = (event(name, "iris-predictor-1", at) for name, at in (("a", 1), ("b", 8), ("c", 9)))
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "metadata": {}}}
    with PaperCluster(DEPLOYMENT, first, kinds=PLAIN + KNATIVE) as paper:
        paper.watched = [[change(second)], [gone], [change(third)]]
        following = events(paper.cluster(), KEY, True)
        found = [next(following).message]
        paper.objects += [second]  # so that the list after the error has it too
        found += [each.message for each in islice(following, 2)]
        assert found == ["a", "b", "c"]
        assert paper.versions[:2] == ["7", "8"]
        following.close()  # type: ignore[attr-defined]


def test_a_service_that_comes_while_one_follows_is_known_by_the_object_itself() -> None:
    fresh = event("new", "fresh-predictor", 8)
    fresh["involvedObject"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fresh-predictor"}
    stranger = event("not ours", "nginx", 8)
    stranger["involvedObject"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nginx"}
    metadata = {"labels": {"pilotlight.dev/service": "fresh"}}
    with PaperCluster(DEPLOYMENT, event("a", "iris-predictor", 1)) as paper:
        paper.watched = [[{"type": "ADDED", "object": each} for each in (stranger, fresh)]]
        following = events(paper.cluster(), None, True)
        next(following)
        paper.objects.append(named("apps/v1", "Deployment", "default", "fresh-predictor", metadata=metadata))
        assert next(following).service == "fresh"
        following.close()  # type: ignore[attr-defined]


def test_a_probe_that_fails_is_told_with_the_predictors_own_reason_while_it_holds() -> None:
    line = '{"level": "ERROR", "event": "failed", "message": "model.onnx changed; deploy again"}'
    failing, ready = (
        pod("iris-predictor", "iris-predictor-1", name=name, ready=ready, container={"state": {"running": {}}})
        for name, ready in (("iris-predictor-1-x", False), ("iris-predictor-1-y", True))
    )
    noted = [event(name, name, second) for second, name in enumerate(("iris-predictor-1-x", "iris-predictor-1-y"))]
    live = event("live", "iris-predictor-1-x", 8)
    for each in (*noted, live):
        each["reason"] = "Unhealthy"
    with PaperCluster(DEPLOYMENT, failing, ready, *noted) as paper:
        paper.logs = {"iris-predictor-1-x": [line], "iris-predictor-1-y": [line]}
        paper.watched = [[{"type": "ADDED", "object": live}]]
        following = events(paper.cluster(), KEY, True)
        found = [each.message for each in islice(following, 3)]
        following.close()  # type: ignore[attr-defined]
    cause = "model.onnx changed; deploy again"
    assert found == [f"iris-predictor-1-x: {cause}", "iris-predictor-1-y", f"live: {cause}"]


def test_an_event_says_how_often_it_was_seen() -> None:
    found = as_event(event("BackOff", "iris-predictor-1", 3, count=5), "iris", 1)
    assert (found.object, found.message) == ("Pod/iris-predictor-1", "BackOff (×5)")


def test_the_time_is_taken_from_whichever_field_the_writer_used() -> None:
    metadata = {"creationTimestamp": "2026-01-01T00:00:01Z"}
    assert at({"metadata": metadata}) == "2026-01-01T00:00:01Z"
    assert at({"metadata": metadata, "eventTime": "2026-01-01T00:00:02.123456Z"}) == "2026-01-01T00:00:02Z"
