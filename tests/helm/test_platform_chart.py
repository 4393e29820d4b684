"""The platform's roles allow exactly what services consist of."""

from pathlib import Path
from typing import Any

import pytest
from tests.helm.conftest import CHARTS, Release
from tests.judges import helm
from tests.judges.helm import HelmFailed
from tests.judges.verdict import assert_valid
from tests.platform.render.render_plans import PLANS

from pilotlight.render import render
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.capabilities import HTTP_SCALER, PROMETHEUS
from pilotlight.targets.kubernetes.observe import snapshot
from pilotlight.targets.kubernetes.ordered_apply import SLICE
from pilotlight.targets.kubernetes.service_route import INGRESSES, OUR_GATEWAY

CASES = sorted((CHARTS / "inference-platform/ci").glob("*-values.yaml"))
READING = {"get", "list", "watch"}
WRITING = {*READING, "create", "update", "patch", "delete"}
# What goes with a service beside what is rendered: its releases, canaries, document, and what came beside that.
KEPT = {
    ("apps", "controllerrevisions"), ("coordination.k8s.io", "leases"), ("", "configmaps"),
    ("", "persistentvolumeclaims"),
    ("ome.io", "inferenceservices"), ("ome.io", "inferenceservices/status"),
    ("serving.kserve.io", "inferenceservices"), ("serving.kserve.io", "inferenceservices/status"),
    ("serving.kserve.io", "llminferenceservices"), ("serving.kserve.io", "llminferenceservices/status"),
    ("serving.kserve.io", "inferencegraphs"), ("serving.kserve.io", "inferencegraphs/status"),
}  # fmt: skip
SECRETS = {("", "secrets")}  # written and removed by name, never listed
SEEN = {
    ("", "pods"), ("", "pods/log"), ("", "events"), ("apps", "replicasets"), ("serving.knative.dev", "revisions"),
    ("ome.io", "servingruntimes"), ("ome.io", "basemodels"), ("serving.kserve.io", "servingruntimes"),
    ("discovery.k8s.io", "endpointslices"),
    ("serving.kserve.io", "localmodelnamespacecaches"),
}  # fmt: skip
PICKER_READS = {("inference.networking.x-k8s.io", each) for each in ("inferenceobjectives", "inferencemodelrewrites")}


def role(objects: list[dict[str, Any]], name: str) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and resource."""
    (found,) = [each for each in objects if each["kind"] == "ClusterRole" and each["metadata"]["name"] == name]
    rules: dict[tuple[str, str], set[str]] = {}
    for rule in found["rules"]:
        for place in ((group, resource) for group in rule["apiGroups"] for resource in rule["resources"]):
            rules[place] = rules.get(place, set()) | set(rule["verbs"])
    return rules


def resources_of_services() -> set[tuple[str, str]]:
    manifests = [manifest for plan in PLANS.values() for manifest in render(plan())]
    return {(manifest.key[0], plural(manifest.kind.lower())) for manifest in manifests}


def plural(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_is_valid(path: Path, release: Release) -> None:
    assert_valid(release("inference-platform", "-f", str(path)))


def test_a_deployer_may_apply_all_that_is_rendered_and_what_goes_with_it(release: Release) -> None:
    rules = role(release("inference-platform"), "pilotlight-deployer")
    assert {place for place, verbs in rules.items() if verbs == WRITING} == resources_of_services() - SECRETS | KEPT
    read = {place for place, verbs in rules.items() if verbs == READING}
    assert read == SEEN - {("", "events")} | PICKER_READS, "who writes a Role must have its rights"
    assert rules["", "events"] == {*READING, "create"}
    assert rules["", "secrets"] == {"create", "patch", "delete"}
    assert rules["", "pods/portforward"] == {"get", "create"}


def test_a_deployer_may_do_what_the_target_does(release: Release) -> None:
    rules = role(release("inference-platform"), "pilotlight-deployer")
    asked = {
        (version.rpartition("/")[0], plural(kind.lower())) for version, kind in (*kinds.OWNED, *snapshot.READ, SLICE)
    }
    assert not asked - set(rules)


def test_a_viewer_changes_nothing_and_sees_no_secret(release: Release) -> None:
    rules = role(release("inference-platform"), "pilotlight-viewer")
    assert all(verbs == READING for verbs in rules.values())
    assert ("", "secrets") not in rules


def test_whoever_has_a_role_reads_the_catalogue_of_the_whole_cluster(release: Release) -> None:
    subjects = {"deployers": [{"kind": "Group", "name": "a"}], "viewers": [{"kind": "User", "name": "b"}]}
    objects = release("inference-platform", namespaces=["lab"], **subjects)
    rules = role(objects, "pilotlight-viewer-catalogue")
    assert all(verbs <= READING for verbs in rules.values())
    assert {("ome.io", "clusterservingruntimes"), ("serving.kserve.io", "localmodelcaches")} <= set(rules)
    (document,) = [each for each in objects if each["metadata"]["name"] == "pilotlight-viewer-catalogue"][:1]
    named = {name for rule in document["rules"] if "services" in rule["resources"] for name in rule["resourceNames"]}
    looked_for = [*INGRESSES.values(), OUR_GATEWAY, ("keda", HTTP_SCALER), *PROMETHEUS]
    assert named == {name for _, name in looked_for}
    assert rules["", "services"] == {"get"}
    (binding,) = [each for each in objects if each.get("roleRef", {}).get("name") == "pilotlight-viewer-catalogue"]
    assert [subject["name"] for subject in binding["subjects"]] == ["a", "b"]


def test_nobody_has_a_role_by_default(release: Release) -> None:
    objects = release("inference-platform", gateway={"enabled": False}, dashboards={"enabled": False})
    assert {each["kind"] for each in objects} == {"ClusterRole"}
    labels = [key for each in objects for key in each["metadata"]["labels"]]
    assert not [key for key in labels if "aggregate" in key]


def test_a_test_pod_asks_the_gateway_where_there_is_one(real_helm: str) -> None:
    chart, only = CHARTS / "inference-platform", ("--show-only", "templates/tests/gateway.yaml")
    (pod,) = helm.template(chart, "platform", *only)
    assert_valid([pod])
    assert pod["spec"]["containers"][0]["args"][0] == "http://pilotlight-gateway.default.svc:8090/healthz"
    with pytest.raises(HelmFailed, match="could not find template"):
        helm.template(chart, "platform", *only, "--set", "gateway.enabled=false")


def test_a_service_account_needs_its_namespace(release: Release) -> None:
    with pytest.raises(HelmFailed, match="needs its namespace"):
        release("inference-platform", namespaces=["a"], deployers=[{"kind": "ServiceAccount", "name": "ci"}])
