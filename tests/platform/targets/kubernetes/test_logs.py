"""Logs of a cluster's pods: which pods, which container, where a pod's lines begin, and what comes later."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster, named

from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.observe.logs import lines

KEY = ("default", "iris")
LOST = "unable to retrieve container logs for containerd://540587ec"


def pod(name: str, created: str, revision: str = "iris-predictor-1") -> dict[str, Any]:
    labels = {"pilotlight.dev/service": "iris", "serving.knative.dev/revision": revision}
    containers = [{"name": "queue-proxy"}, {"name": "kserve-container"}]
    metadata = {"labels": labels, "creationTimestamp": created}
    return named("v1", "Pod", "default", name, metadata=metadata, spec={"containers": containers})


def at(second: int, text: str) -> str:
    return f"2026-01-01T00:00:{second:02}.000000000Z {text}"


@pytest.fixture
def paper() -> Iterator[PaperCluster]:
    newer = pod("b-older-name", "2026-01-01T00:00:05Z", "iris-predictor-2")
    with PaperCluster(newer, pod("z-first", "2026-01-01T00:00:01Z")) as made:
        made.logs = {
            "z-first": [at(1, "one"), at(2, "two")],
            "b-older-name": [at(5, "five")],
            "z-first/previous": [at(0, "before")],
        }
        yield made


def told(cluster: Cluster, **how: Any) -> list[str]:
    return list(lines(cluster, KEY, **{"follow": False, "previous": False, "replica": "", "tail": -1, **how}))


def test_the_newest_pod_comes_last_under_a_heading_of_its_own(paper: PaperCluster) -> None:
    assert told(paper.cluster()) == ["one", "two", "==> b-older-name <==", "five"]
    assert paper.asked[-1]["container"] == "kserve-container"


def test_a_tail_is_taken_of_each_pod(paper: PaperCluster) -> None:
    assert told(paper.cluster(), tail=1) == ["two", "==> b-older-name <==", "five"]


def test_the_container_before_the_restart_is_shown_of_pods_that_had_one(paper: PaperCluster) -> None:
    assert told(paper.cluster(), previous=True) == ["before"]


@pytest.mark.parametrize(("replica", "found"), [("b-older-name", ["five"]), ("iris-predictor-1", ["one", "two"])])
def test_a_replica_is_named_by_its_pod_or_by_its_revision(paper: PaperCluster, replica: str, found: list[str]) -> None:
    assert told(paper.cluster(), replica=replica) == found


def test_a_replica_that_is_not_there_is_named_with_those_that_are(paper: PaperCluster) -> None:
    with pytest.raises(
        NotFound, match="no pod or revision with pods is called c; there are z-first, b-older-name"
    ) as caught:
        told(paper.cluster(), replica="c")
    assert caught.value.hint == "a cluster deletes the log with its pod, unless a log collector keeps it"


def test_what_a_node_says_of_a_log_that_it_has_no_more_is_no_line_of_it(paper: PaperCluster) -> None:
    paper.logs["z-first"] = [LOST]
    assert told(paper.cluster()) == ["five"]
    following = lines(paper.cluster(), KEY, follow=True, previous=False, replica="iris-predictor-1", tail=-1)
    paper.logs["z-first"].append(at(6, "six"))
    assert next(following) == "six"
    following.close()  # type: ignore[attr-defined]


def test_a_service_without_pods_has_no_lines_and_one_that_is_not_there_is_told() -> None:
    metadata = {"labels": {"pilotlight.dev/service": "iris"}}
    with PaperCluster(named("apps/v1", "Deployment", "default", "iris-predictor", metadata=metadata)) as empty:
        assert told(empty.cluster(), replica="iris-predictor-1") == []
    with PaperCluster() as empty, pytest.raises(NotFound, match="there is no service default/iris"):
        told(empty.cluster())


def test_following_goes_on_after_a_cut_without_repeating_and_finds_new_pods(paper: PaperCluster) -> None:
    following = lines(paper.cluster(), KEY, follow=True, previous=False, replica="", tail=1)
    first = set(islice(following, 3))
    assert {"two", "five"} < first
    paper.objects.append(pod("c-third", "2026-01-01T00:00:09Z"))
    paper.logs["c-third"] = [at(9, "nine"), at(10, "ten")]
    paper.logs["z-first"].append(at(11, "eleven"))
    later = {"nine", "ten", "eleven"}
    while later:  # with headings among them, in whatever order two pods are heard
        later.discard(next(following))
    following.close()  # type: ignore[attr-defined]
