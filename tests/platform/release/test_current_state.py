"""What runs now, from objects as they were rendered, as a cluster tells them, or as nobody should have written them."""

from typing import Any

import pytest

from pilotlight.k8s import names
from pilotlight.k8s.manifest import Manifest
from pilotlight.plan.types import Current, Traffic
from pilotlight.release.current_state import current_of


def knative(**fields: Any) -> Manifest:
    labels = {names.LABEL_SERVICE: "iris"}
    spec = {
        "template": {"metadata": {"name": "iris-predictor-new"}},
        "traffic": [{"latestRevision": True, "percent": 100}],
    }
    metadata = {"name": "iris-predictor", "namespace": "lab", "labels": labels}
    return Manifest(
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": metadata, "spec": spec, **fields}
    )


def current(*manifests: Manifest) -> Current:
    return current_of(manifests)["lab", "iris"]


def test_a_rendered_knative_service_has_its_one_revision() -> None:
    found = current(knative())
    assert found.traffic == {"iris-predictor": (Traffic("iris-predictor-new", 100),)}
    assert found.revisions == {"iris-predictor": ("iris-predictor-new",)}


def test_what_knative_does_counts_more_than_what_it_was_told() -> None:
    shares = [
        {"revisionName": "iris-predictor-new", "percent": 10, "tag": "latest"},
        {"revisionName": "iris-predictor-old", "percent": 90},
    ]
    found = current(knative(status={"latestReadyRevisionName": "iris-predictor-new", "traffic": shares}))
    assert found.traffic["iris-predictor"] == (
        Traffic("iris-predictor-new", 10, "latest"),
        Traffic("iris-predictor-old", 90),
    )
    assert found.revisions["iris-predictor"] == ("iris-predictor-new", "iris-predictor-old")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "LeaderWorkerSet"])
def test_the_pods_of_other_workloads_are_kept_by_revision(kind: str) -> None:
    template = {"metadata": {"labels": {names.LABEL_REVISION: "r1"}}, "spec": {"containers": []}}
    spec = (
        {"leaderWorkerTemplate": {"leaderTemplate": template}} if kind == "LeaderWorkerSet" else {"template": template}
    )
    metadata = {"name": "iris-engine", "namespace": "lab", "labels": {names.LABEL_SERVICE: "iris"}}
    found = current(Manifest({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}))
    assert found.revisions == {"iris-engine": ("r1",)}
    assert found.templates == {"r1": template}


def test_objects_of_nobody_are_left_out() -> None:
    assert current_of([Manifest({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}})]) == {}


@pytest.mark.parametrize(
    "fields",
    [{"spec": None}, {"spec": {"traffic": "all"}}, {"spec": {"traffic": [1, {"percent": "x"}]}}, {"status": []}],
)
def test_files_that_nobody_checked_do_no_harm(fields: dict[str, Any]) -> None:
    assert isinstance(current(knative(**fields)), Current)
