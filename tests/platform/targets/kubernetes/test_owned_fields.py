"""An object as it was applied, cut out of what the cluster shows."""

from typing import Any

import pytest
from tests.platform.targets.kubernetes.objects import knative

from pilotlight.targets.kubernetes.apply import applied_fields, as_written, with_live_templates, with_sent_templates
from pilotlight.targets.kubernetes.apply import as_shown as shown_now


def shown(**accounts: dict[str, Any]) -> dict[str, Any]:
    """A Deployment with a default of the server, a field of ours and one that somebody else has set."""
    managed = [{"manager": name, "operation": "Apply", "fieldsV1": each} for name, each in accounts.items()]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "iris",
            "namespace": "default",
            "uid": "1",
            "labels": {"ours": "1", "theirs": "2"},
            "managedFields": managed,
        },
        "spec": {
            "replicas": 3,
            "revisionHistoryLimit": 10,
            "template": {
                "spec": {
                    "containers": [
                        {"name": "main", "image": "a", "ports": [{"containerPort": 8080, "protocol": "TCP"}]},
                        {"name": "injected", "image": "b"},
                    ]
                }
            },
        },
        "status": {"replicas": 3},
    }


CONTAINER = {
    ".": {},
    "f:name": {},
    "f:image": {},
    "f:ports": {'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
}
OURS = {
    "f:metadata": {"f:labels": {"f:ours": {}}},
    "f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': CONTAINER}}}},
}


def test_only_what_was_applied_is_left_with_identity_and_status() -> None:
    assert applied_fields(shown(pilotlight=OURS, kubelet={"f:spec": {"f:replicas": {}}})) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "iris", "namespace": "default", "labels": {"ours": "1"}},
        "spec": {
            "template": {"spec": {"containers": [{"name": "main", "image": "a", "ports": [{"containerPort": 8080}]}]}}
        },
        "status": {"replicas": 3},
    }


def test_what_helm_has_applied_counts_as_well() -> None:
    found = applied_fields(shown(helm={"f:spec": {"f:replicas": {}}}))
    assert found["spec"] == {"replicas": 3}


def test_an_object_of_somebody_else_keeps_its_identity_only() -> None:
    assert "spec" not in applied_fields(shown(kubectl={"f:spec": {"f:replicas": {}}}))


def test_quantities_are_spelled_as_they_were_sent_when_they_mean_the_same() -> None:
    found = {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}
    sent = {"resources": {"limits": {"cpu": "1000m", "memory": "2Gi"}, "requests": {"cpu": "0.5"}}}
    kept = {"resources": {"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "0.5"}}}
    assert as_written(found, sent) == kept


def test_a_field_that_somebody_has_taken_over_is_shown_as_it_is_now() -> None:
    live = {"spec": {"maxReplicaCount": 7, "cooldownPeriod": 300}, "status": {}}
    applied, sent = {"spec": {"cooldownPeriod": 300}}, {"spec": {"maxReplicaCount": 2, "cooldownPeriod": 300}}
    assert shown_now(live, applied, sent) == {"spec": {"cooldownPeriod": 300, "maxReplicaCount": 7}}


def test_defaults_within_a_list_that_is_owned_as_a_whole_are_left_out() -> None:
    found = {"parentRefs": [{"name": "pilotlight", "kind": "Gateway", "group": "gateway.networking.k8s.io"}]}
    assert as_written(found, {"parentRefs": [{"name": "pilotlight"}]}) == {"parentRefs": [{"name": "pilotlight"}]}


def test_a_revision_that_exists_is_sent_as_the_cluster_has_it_and_shown_as_it_was_sent() -> None:
    sent, there = knative("iris-predictor", "iris-predictor-1"), knative("iris-predictor", "iris-predictor-1")
    there["spec"]["template"]["spec"]["enableServiceLinks"] = False
    there["metadata"]["annotations"] = {"serving.knative.dev/creator": "admin", "other": "x"}
    (again,) = with_live_templates([sent], [there])
    assert again["spec"]["template"] == there["spec"]["template"]
    assert again["metadata"]["annotations"] == {"serving.knative.dev/creator": "admin"}
    (told,) = with_sent_templates([there], [sent])
    assert told["spec"]["template"] == sent["spec"]["template"]


@pytest.mark.parametrize("kind", ["Route", "DomainMapping"])
def test_knatives_webhook_finds_the_creator_of_what_is_applied_again(kind: str) -> None:
    sent = {"apiVersion": "serving.knative.dev/v1", "kind": kind, "metadata": {"name": "iris"}, "spec": {"traffic": []}}
    creator = {"serving.knative.dev/creator": "admin"}
    (again,) = with_live_templates([sent], [{**sent, "metadata": {"name": "iris", "annotations": creator}}])
    assert again == {**sent, "metadata": {"name": "iris", "annotations": creator}}


def test_a_new_revision_is_sent_as_it_was_written() -> None:
    sent, there = knative("iris-predictor", "iris-predictor-2"), knative("iris-predictor", "iris-predictor-1")
    assert with_live_templates([sent], [there])[0]["spec"] == sent["spec"]
