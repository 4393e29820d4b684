"""Figures of revisions on a cluster: what a Prometheus says reaches `status`, and nothing that it does harms it."""

import threading
import time
from collections.abc import Sequence

import pytest
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster, named

from pilotlight.errors import PlatformError
from pilotlight.observability import revision_latency
from pilotlight.observability.revision_latency import promql, with_latency
from pilotlight.targets.kubernetes.target import KubernetesTarget
from pilotlight.targets.target import RevisionStatus, Sample, ServiceStatus
from platformctl.services import status_views

IRIS = ServiceStatus(
    "lab", "iris", 1, "Ready", "",
    revisions=(RevisionStatus("iris-2", "iris", "predictor", 20), RevisionStatus("iris-1", "iris", "predictor", 80)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is slow."""
    monkeypatch.setattr(revision_latency, "TIMEOUT_S", 60.0)


def sample(figure: str, value: float, revision: str = "iris-1") -> Sample:
    labels = {"namespace": "lab", "inference_service": "iris", "revision": revision, "figure": figure}
    return Sample(labels, value)


def test_each_revision_gets_its_own_figures() -> None:
    told = [sample("requests", 41.6), sample("p50_ms", 3.5), sample("p99_ms", 9.0), sample("error_percent", 0.0)]
    (status,) = with_latency([IRIS], lambda _: told)
    canary, stable = status.revisions
    assert canary == IRIS.revisions[0]
    assert (stable.requests, stable.p50_ms, stable.p99_ms, stable.error_percent) == (42, 3.5, 9.0, 0.0)


def test_a_quantile_of_nothing_is_left_out() -> None:
    (status,) = with_latency([IRIS], lambda _: [sample("requests", 0.0), sample("p99_ms", float("nan"))])
    assert (status.revisions[1].requests, status.revisions[1].p99_ms) == (0, None)


def test_nobody_who_can_be_asked_changes_nothing() -> None:
    def refuse(_: str) -> Sequence[Sample]:
        raise PlatformError("no Prometheus")

    assert list(with_latency([IRIS], refuse)) == [IRIS]


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    never = threading.Event()

    def hang(_: str) -> Sequence[Sample]:
        never.wait(60)
        return [sample("requests", 1.0)]

    began = time.monotonic()
    assert list(with_latency([IRIS], hang, timeout_s=0.05)) == [IRIS]
    assert time.monotonic() - began < 30
    never.set()


def test_nothing_is_asked_about_nothing() -> None:
    def refuse(_: str) -> Sequence[Sample]:
        raise AssertionError("asked")

    assert list(with_latency([], refuse)) == []


def test_a_cluster_s_prometheus_is_asked_and_a_cluster_without_one_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PILOTLIGHT_PROMETHEUS", raising=False)
    service = named("v1", "Service", "monitoring", "prometheus", spec={"ports": [{"port": 9090}]})
    told = sample("p99_ms", 9.0)
    vector = {"resultType": "vector", "result": [{"metric": dict(told.labels), "value": [5, "9"]}]}
    with PaperCluster(service) as paper:
        paper.queries[promql([IRIS])] = {"status": "success", "data": vector}
        (status,) = status_views.with_latency_figures([IRIS], KubernetesTarget(paper.cluster()))
    assert [row.p99_ms for row in status.revisions] == [None, 9.0]
    with PaperCluster() as paper:
        assert list(status_views.with_latency_figures([IRIS], KubernetesTarget(paper.cluster()))) == [IRIS]


@pytest.mark.parametrize("name", ["iris", "a.b"])
def test_a_query_names_exactly_the_services_that_are_shown(name: str) -> None:
    query = promql([ServiceStatus("lab", name, 1, "Ready", "")])
    assert f'inference_service=~"{name.replace(".", "[.]")}"' in query
    assert 'namespace=~"lab"' in query
