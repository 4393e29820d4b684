"""What a real cluster has, lacks and allows: doctor, the facts for a plan, and the check before anything is written."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from tests.cluster.iris import document, manifests
from tests.cluster.own_objects import as_account, our_cluster
from tests.cluster.real_cluster import Cluster

from pilotlight.plan.types import Capabilities
from pilotlight.targets.kubernetes.capabilities import discover
from pilotlight.targets.kubernetes.preflight import drop_unknown_optional, missing
from platformctl.doctor.cluster_checks import findings

Run = Callable[..., CompletedProcess[str]]


def written(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(manifests(text)) if each]


def test_doctor_finds_what_the_cluster_has(platformctl: Run) -> None:
    done = platformctl("doctor", "-o", "json")
    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    for name in ("cluster", "knative", "ingress", "keda", "gateway api", "rights", "reading", "gpus"):
        assert found[name]["level"] == "ok", found[name]
    assert "Kubernetes 1." in found["cluster"]["message"]


def test_an_account_without_rights_is_told_which_it_lacks(cluster: Cluster, namespace: str) -> None:
    found = {each.check: each for each in findings(as_account(cluster, namespace, "nobody"), namespace)}
    assert found["cluster"].level == "ok"
    assert found["rights"].level == "fail"
    assert "deployments.apps" in found["rights"].message.partition("no create, patch, delete of ")[2]
    assert found["gpus"].message.startswith("no right to look")


def test_the_facts_for_a_plan_are_those_of_the_cluster(cluster: Cluster) -> None:
    found = discover(our_cluster(cluster))
    made = Capabilities(**found)
    assert (made.knative, made.gateway_api, made.domain) == (True, True, cluster.domain)
    assert "multi-container" in made.features


def test_who_may_see_little_gets_the_facts_that_everybody_may_see(cluster: Cluster, namespace: str) -> None:
    found = discover(as_account(cluster, namespace, "nobody"))
    assert found["knative"] is True
    assert not {"gpus", "features", "prometheus"} & found.keys()


@pytest.mark.parametrize("mode", ["Serverless", "Standard"])
def test_a_service_that_fits_lacks_nothing(cluster: Cluster, namespace: str, mode: str) -> None:
    documents = written(document("iris", namespace, mode))
    kept, told = drop_unknown_optional(our_cluster(cluster), documents)
    assert missing(our_cluster(cluster), kept) == []
    assert len(kept) == len(documents) or told


def test_everything_that_is_missing_is_told_before_anything_is_written(cluster: Cluster, namespace: str) -> None:
    service = written(document("iris", "nowhere-at-all"))
    pod = next(each for each in service if each["apiVersion"].startswith("serving."))["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"disk": "fast"}
    pod["timeoutSeconds"] = 100_000
    pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    pod["containers"][0]["envFrom"] = [{"secretRef": {"name": "token"}}]
    unknown = {"apiVersion": "none.example/v1", "kind": "Nothing", "metadata": {"name": "x", "namespace": namespace}}
    found = "\n".join(missing(our_cluster(cluster), [*service, unknown]))
    for sentence in (
        "Nothing of none.example/v1 is not installed in this cluster",
        "the namespace nowhere-at-all does not exist: kubectl create namespace nowhere-at-all",
        "Knative's flag kubernetes.podspec-nodeselector is off",
        "has timeoutSeconds 100000, and Knative allows",
        "refers to the Secret token",
        "requests nvidia.com/gpu, which no node of this cluster has",
    ):
        assert sentence in found


def test_rights_that_are_lacking_are_told_before_anything_is_written(cluster: Cluster, namespace: str) -> None:
    found = missing(as_account(cluster, namespace, "nobody"), written(document("iris", namespace, "Standard")))
    assert any(f"you may not create or patch or delete deployments.apps in {namespace}" in each for each in found)
