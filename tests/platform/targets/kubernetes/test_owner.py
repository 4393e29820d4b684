"""An object has one owner: what Helm has installed, only Helm changes."""

import pytest
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster, named

from pilotlight.errors import UsageError
from pilotlight.k8s import names
from pilotlight.k8s.manifest import Manifest
from pilotlight.targets.kubernetes.apply import (
    access_secret,
    check_history_not_helm,
    check_not_helm,
    delete_own_secret,
    helm_release,
    not_owned,
    replacing_knative,
)


def installed(by: str, release: str = "") -> Manifest:
    annotations = {"meta.helm.sh/release-name": release} if release else {}
    metadata = {"name": "iris", "labels": {"app.kubernetes.io/managed-by": by}, "annotations": annotations}
    return Manifest({"apiVersion": "v1", "kind": "Service", "metadata": metadata})


def test_objects_of_a_release_belong_to_it() -> None:
    assert helm_release([installed("pilotlight"), installed("Helm", "flowers")]) == "flowers"


def test_objects_that_nobody_marked_belong_to_no_release() -> None:
    bare = Manifest({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "iris"}})
    assert helm_release([bare, installed("pilotlight"), installed("pilotlight", "left-over")]) == ""


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("deploy", "helm upgrade flowers -n lab"),
        ("scale", "helm upgrade flowers -n lab"),
        ("rollback", "helm rollback flowers -n lab"),
        ("delete", "helm uninstall flowers -n lab"),
    ],
)
def test_a_verb_that_changes_them_is_refused_with_the_line_of_helm(verb: str, line: str) -> None:
    with pytest.raises(UsageError, match="owned by the Helm release flowers") as refused:
        check_not_helm([installed("Helm", "flowers")], "lab", "iris", verb)
    assert line in refused.value.hint


def test_who_asks_for_releases_that_helm_keeps_is_sent_there() -> None:
    with pytest.raises(UsageError, match="is managed by the Helm release flowers") as told:
        check_history_not_helm([installed("Helm", "flowers")], "lab", "iris")
    assert "helm rollback flowers -n lab" in told.value.hint
    assert "helm upgrade flowers -n lab" in told.value.hint
    check_history_not_helm([installed("pilotlight")], "lab", "iris")


def test_a_verb_may_change_what_is_ours() -> None:
    check_not_helm([installed("pilotlight")], "lab", "iris", "delete")


def test_the_secret_of_access_rules_is_not_looked_for_since_secrets_may_not_be_read() -> None:
    metadata = {"labels": {names.LABEL_SERVICE: "iris"}}
    secret = named("v1", "Secret", "lab", "iris-access", metadata=metadata)
    service = named("v1", "Service", "lab", "iris", metadata=metadata)
    kinds = ("v1/Secret", "v1/Service", "v1/ServiceAccount", "v1/ConfigMap", "v1/PersistentVolumeClaim")
    with PaperCluster(named("v1", "Service", "lab", "iris"), secret, kinds=kinds, forbidden=("secrets",)) as paper:
        (sentence,) = not_owned(paper.cluster(), ("lab", "iris"), [secret, service])
    assert sentence.startswith("Service iris already exists")


def test_names_that_knative_has_for_the_service_are_free_once_it_leaves_knative() -> None:
    metadata = {"labels": {names.LABEL_SERVICE: "iris"}}
    owner = {"apiVersion": "serving.knative.dev/v1", "kind": "Route", "name": "iris", "controller": True}
    route = named("serving.knative.dev/v1", "Route", "lab", "iris", metadata=metadata)
    theirs = named("v1", "Service", "lab", "iris", metadata={"ownerReferences": [owner]})
    ours = named("v1", "Service", "lab", "iris", metadata=metadata)
    other = named("v1", "Service", "lab", "other", metadata=metadata)
    kinds = ("v1/Service", "v1/ServiceAccount", "v1/ConfigMap", "serving.knative.dev/v1/Route")
    with PaperCluster(route, theirs, named("v1", "Service", "lab", "other"), kinds=kinds) as paper:
        found = not_owned(paper.cluster(), ("lab", "iris"), [ours, other])
        assert [sentence.partition(" already exists")[0] for sentence in found] == ["Service other"]
        assert replacing_knative(paper.cluster(), ("lab", "iris"), [ours, other]) == [ours]
        assert replacing_knative(paper.cluster(), ("lab", "iris"), [ours, route]) == [], "it stays"


@pytest.mark.parametrize(("volume", "secret"), [("access", "iris-access"), ("mine", "iris-access"), ("access", "own")])
def test_the_secret_of_access_rules_goes_with_the_service_that_mounts_it(volume: str, secret: str) -> None:
    pod = {"containers": [{"name": "main"}], "volumes": [{"name": volume, "secret": {"secretName": secret}}]}
    workload = named("apps/v1", "Deployment", "lab", "iris-predictor", spec={"template": {"spec": pod}})
    found = [each["metadata"]["name"] for each in access_secret(("lab", "iris"), [workload])]
    assert found == (["iris-access"] if (volume, secret) == ("access", "iris-access") else [])


@pytest.mark.parametrize(
    ("label", "reference", "left"), [("iris", "iris", 0), ("", "iris", 1), ("rose", "iris", 1), ("iris", "other", 1)]
)
def test_a_services_own_secret_goes_with_it_and_one_of_the_user_stays(label: str, reference: str, left: int) -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": reference, "key": "TOKEN"}}}
    template = {"spec": {"containers": [{"name": "main", "env": [variable]}]}}
    workload = named("apps/v1", "StatefulSet", "lab", "iris-predictor", spec={"template": template})
    secret = named("v1", "Secret", "lab", "iris", metadata={"labels": {names.LABEL_SERVICE: label}})
    with PaperCluster(secret) as paper:
        delete_own_secret(paper.cluster(), ("lab", "iris"), [workload])
        assert len(paper.objects) == left


def test_a_secret_that_is_gone_already_is_no_error() -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "iris", "key": "TOKEN"}}}
    workload = named(
        "apps/v1", "StatefulSet", "lab", "iris", spec={"template": {"spec": {"containers": [{"env": [variable]}]}}}
    )
    with PaperCluster() as paper:
        delete_own_secret(paper.cluster(), ("lab", "iris"), [workload])
