"""What is stored and runs, back as the next plan's `current`: overrides, shares, the pods of a canary's other side."""

from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.local.rendering import KEY, document, rendered

from pilotlight.errors import UsageError
from pilotlight.k8s.manifest import Manifest
from pilotlight.plan.types import Current, Traffic
from pilotlight.release.current_state import current_of
from pilotlight.targets.local.manifests.interpret import interpret, revisions_of
from pilotlight.targets.local.store import Store, StoredService, live_manifests
from pilotlight.targets.target import Release, RevisionStatus, ServiceStatus

Json = Any
NOON = "2025-03-01T12:00:00Z"
STATUS = ServiceStatus(*KEY, 1, "Ready", "")


def stored(folder: Path, manifests: list[dict[str, Json]], overrides: Json = None) -> StoredService:
    store = Store.open(folder / "state.db")
    try:
        store.apply(Release(*KEY, "", tuple(manifests)), revisions_of(manifests), NOON)
        store.set_overrides(KEY, "iris-predictor", overrides)
        found = store.service(KEY)
        assert found is not None
        return found
    finally:
        store.close()


def current(service: StoredService, status: ServiceStatus = STATUS) -> Current:
    return current_of(map(Manifest, live_manifests(service, status)))[KEY]


@pytest.mark.parametrize("raw", [False, True], ids=["serverless", "raw"])
def test_bounds_set_by_hand_stay_over_a_deploy(tmp_path: Path, raw: bool) -> None:
    made = document(raw=raw, minReplicas=1, maxReplicas=2)
    service = stored(tmp_path, rendered(tmp_path, made), {"minReplicas": 3, "maxReplicas": 7})
    known = current(service)
    assert known.overrides == {"iris-predictor": {"minReplicas": 3, "maxReplicas": 7}}
    (workload,) = interpret(rendered(tmp_path, made, current={KEY: known})).workloads
    scaling: Any = workload.revision.scaling
    bounds = (scaling.min_replicas, scaling.max_replicas) if raw else (scaling.min_scale, scaling.max_scale)
    assert bounds == (3, 7)


def test_shares_set_by_hand_stay_over_a_deploy(tmp_path: Path) -> None:
    shares = [{"revision": "latest", "percent": 25}, {"revision": "iris-predictor-old", "percent": 75}]
    service = stored(tmp_path, rendered(tmp_path, document()), {"traffic": shares})
    again = rendered(tmp_path, document({"storageUri": "/models/new.onnx"}), current={KEY: current(service)})
    (workload,) = interpret(again).workloads
    assert [(share.revision, share.percent) for share in workload.traffic] == [
        (workload.revision.name, 25), ("iris-predictor-old", 75),
    ]  # fmt: skip


def test_the_status_shows_who_really_gets_requests(tmp_path: Path) -> None:
    service = stored(tmp_path, rendered(tmp_path, document()))
    new = interpret(service.manifests).workloads[0].revision.name
    revisions = (
        RevisionStatus(new, "iris-predictor", "predictor", 0, tags=("latest", "try"), model_state="FailedToLoad"),
        RevisionStatus("iris-predictor-old", "iris-predictor", "predictor", 100, model_state="Loaded"),
    )
    status = ServiceStatus(*KEY, 1, "Degraded", "", revisions=revisions)
    (shown,) = [found for found in live_manifests(service, status) if "status" in found]
    assert shown["status"]["latestCreatedRevisionName"] == new
    assert shown["status"]["latestReadyRevisionName"] == "iris-predictor-old"
    assert current(service, status).traffic["iris-predictor"] == (
        Traffic(new, 0, "latest"), Traffic(new, 0, "try"), Traffic("iris-predictor-old", 100),
    )  # fmt: skip


def test_a_first_deploy_that_is_not_ready_yet_shows_what_is_written(tmp_path: Path) -> None:
    service = stored(tmp_path, rendered(tmp_path, document()))
    name = interpret(service.manifests).workloads[0].revision.name
    assert current(service).traffic == {"iris-predictor": (Traffic(name, 100),)}


def test_a_canary_of_deployments_keeps_the_pods_of_the_stable_side(tmp_path: Path) -> None:
    first = rendered(tmp_path, document(raw=True))
    stable = interpret(first).workloads[0].revision
    known = current(stored(tmp_path, first))
    assert stable.name in known.templates
    new = document({"storageUri": "/models/new.onnx"}, raw=True, canaryTrafficPercent=20)
    both = rendered(tmp_path, new, current={KEY: known})
    spec = interpret(both)
    assert dict(spec.entry) == {"iris-predictor": 80, "iris-canary-predictor": 20}
    assert spec.workload("iris-predictor").revision.name == stable.name
    assert spec.workload("iris-predictor").revision.container.env == stable.container.env
    canary = spec.workload("iris-canary-predictor").revision
    assert canary.container.env["INFERENCE_MODEL_PATH"] == "/models/new.onnx"
    again = rendered(tmp_path, document({"storageUri": "/models/new.onnx"}, raw=True, canaryTrafficPercent=50),
                     current={KEY: current(stored(tmp_path, both))})  # fmt: skip
    assert dict(interpret(again).entry) == {"iris-predictor": 50, "iris-canary-predictor": 50}
    promoted = rendered(tmp_path, document({"storageUri": "/models/new.onnx"}, raw=True),
                        current={KEY: current(stored(tmp_path, again))})  # fmt: skip
    (workload,) = interpret(promoted).workloads
    assert (workload.name, workload.revision.name) == ("iris-predictor", canary.name)


@pytest.mark.parametrize(
    "written", ["{", "[]", '{"minReplicas": "two"}', '{"minReplicas": -1}', '{"traffic": [{"percent": 5}]}', '"x"']
)
def test_an_annotation_that_somebody_broke_is_named(written: str) -> None:
    metadata = {
        "name": "iris-predictor",
        "labels": {"pilotlight.dev/service": "iris"},
        "annotations": {"pilotlight.dev/overrides": written},
    }
    manifest = Manifest({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {}})
    with pytest.raises(UsageError, match=r"Deployment iris-predictor: annotation pilotlight\.dev/overrides = "):
        current_of([manifest])
