"""What a real cluster tells of a service: lines of its pods and events of its objects, as they are and as they come."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.iris import document, manifests
from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until

from pilotlight.targets.kubernetes.observe.events import events
from pilotlight.targets.kubernetes.observe.logs import lines

LABELS = {"pilotlight.dev/service": "crash"}
SAFE = {
    "allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 65532, "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(cluster: Cluster, namespace: str) -> tuple[str, str]:
    cluster.kubectl("apply", "-f", "-", text=manifests(document("plain", namespace, "Standard")))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/plain-predictor", "--timeout=180s")
    return namespace, "plain"


def told(cluster: Cluster, key: tuple[str, str], **how: Any) -> Iterator[str]:
    asked = {"follow": False, "previous": False, "replica": "", "tail": -1, **how}
    return lines(our_cluster(cluster), key, **asked)


def test_the_lines_of_the_predictor_are_shown_without_their_times(cluster: Cluster, plain: tuple[str, str]) -> None:
    seconds_until(lambda: any("grpc.listening" in line for line in told(cluster, plain)), "the last line of its start")
    found = list(told(cluster, plain))
    assert all(line.startswith("{") for line in found)
    assert any("model.loaded" in line for line in found)
    assert list(told(cluster, plain, tail=1)) == found[-1:]


def test_following_finds_a_pod_that_starts_later(cluster: Cluster, plain: tuple[str, str]) -> None:
    following = told(cluster, plain, follow=True, tail=1)
    next(following)
    cluster.kubectl("-n", plain[0], "scale", "deployment/plain-predictor", "--replicas=2")
    heading = next(line for line in following if line.startswith("==> "))
    assert heading.startswith("==> plain-predictor-")
    assert next(line for line in following if "model.loaded" in line)
    following.close()  # type: ignore[attr-defined]


def test_the_container_before_a_restart_is_still_read(cluster: Cluster, namespace: str) -> None:
    command = ["python", "-c", "print('the reason'); raise SystemExit(1)"]
    container = {"name": "main", "image": "pilotlight/predictor:0.1.0", "command": command, "securityContext": SAFE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "crash", "labels": LABELS}}
    cluster.apply({**pod, "spec": {"containers": [container]}}, namespace=namespace)
    key = (namespace, "crash")
    seconds_until(lambda: list(told(cluster, key, previous=True)) == ["the reason"], "the first run is told of")


def test_events_of_a_service_are_those_of_its_objects_oldest_first(cluster: Cluster, plain: tuple[str, str]) -> None:
    def reasons() -> set[str]:
        return {each.reason for each in events(our_cluster(cluster), plain, False)}

    seconds_until(lambda: reasons() >= {"Scheduled", "Started", "ScalingReplicaSet"}, "what happened is told")
    found = list(events(our_cluster(cluster), plain, False))
    assert {each.object.partition("/")[0] for each in found} >= {"Pod", "ReplicaSet", "Deployment"}
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert {each.service for each in found} == {"plain"}


def test_following_events_tells_what_happens_next(cluster: Cluster, plain: tuple[str, str]) -> None:
    known = len(list(events(our_cluster(cluster), plain, False)))
    following = events(our_cluster(cluster), plain, True)
    for _ in range(known):
        next(following)
    cluster.kubectl("-n", plain[0], "rollout", "restart", "deployment/plain-predictor")
    assert next(each for each in following if each.reason == "Started").object.startswith("Pod/plain-predictor-")
    following.close()  # type: ignore[attr-defined]
