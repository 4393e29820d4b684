"""What a cluster has of the catalogue: read where we may, passed over and said where we may not."""

from typing import Any

import pytest

from pilotlight.targets.kubernetes.capabilities import KSERVE, OME, cluster_catalogue
from pilotlight.targets.kubernetes.client import Cluster, KubeApiError, ResourceKind

RUNTIME = {
    "apiVersion": KSERVE,
    "kind": "ServingRuntime",
    "metadata": {
        "name": "house", "namespace": "lab", "uid": "1", "resourceVersion": "7", "managedFields": [],
        "finalizers": ["a"], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    },
    "spec": {"containers": []},
    "status": {"ready": True},
}  # fmt: skip
MODEL = {"apiVersion": OME, "kind": "ClusterBaseModel", "metadata": {"name": "llama"}, "spec": {}}


class Few(Cluster):
    """A cluster that knows two kinds, and hides those that it is told to."""

    def __init__(self, hidden: tuple[str, ...] = (), code: int = 403) -> None:
        self.hidden, self.code = hidden, code
        self.asked: list[tuple[str, str | None]] = []

    def kind(self, api_version: str, name: str) -> ResourceKind | None:
        known = {(KSERVE, "ServingRuntime"): True, (OME, "ClusterBaseModel"): False}
        namespaced = known.get((api_version, name))
        return None if namespaced is None else ResourceKind(api_version, name, f"{name.lower()}s", namespaced)

    def list(self, api_version: str, kind: str, namespace: str | None = None, selector: str = "") -> Any:
        self.asked.append((kind, namespace))
        if kind in self.hidden:
            raise KubeApiError(self.code, {"reason": "Forbidden"}, "GET")
        found = [each for each in (RUNTIME, MODEL) if each["kind"] == kind]
        return [each for each in found if namespace in (None, each["metadata"].get("namespace"))]


def test_namespaces_are_asked_for_what_is_theirs_and_the_cluster_once() -> None:
    cluster = Few()
    cluster_catalogue(cluster, ["lab", "shop"])
    assert cluster.asked == [("ServingRuntime", "lab"), ("ServingRuntime", "shop"), ("ClusterBaseModel", None)]


def test_a_document_is_as_somebody_wrote_it_and_says_where_it_is_from() -> None:
    found, warnings = cluster_catalogue(Few(), ["lab"])
    assert [origin for origin, _ in found] == ["cluster: ServingRuntime lab/house", "cluster: ClusterBaseModel llama"]
    assert found[0][1] == {
        "apiVersion": KSERVE,
        "kind": "ServingRuntime",
        "metadata": {"name": "house", "namespace": "lab"},
        "spec": {"containers": []},
    }
    assert not warnings


def test_what_may_not_be_read_is_passed_over_and_said_once() -> None:
    found, warnings = cluster_catalogue(Few(("ServingRuntime",)), ["lab", "shop"])
    assert [origin for origin, _ in found] == ["cluster: ClusterBaseModel llama"]
    (sentence,) = warnings
    assert sentence.startswith("the cluster's ServingRuntime cannot be read")


def test_any_other_refusal_is_told() -> None:
    with pytest.raises(KubeApiError):
        cluster_catalogue(Few(("ServingRuntime",), code=500), ["lab"])
