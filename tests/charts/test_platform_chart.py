"""The platform's roles allow exactly what services consist of."""

from pathlib import Path
from typing import Any

import pytest
from tests.charts.conftest import CHARTS, Release
from tests.control.render.render_plans import PLANS
from tests.judges.helm import HelmFailed
from tests.judges.verdict import assert_valid

from pilotlight.render import render

CASES = sorted((CHARTS / "inference-platform/ci").glob("*-values.yaml"))
WRITING = {"get", "list", "watch", "create", "update", "patch", "delete"}


def role(objects: list[dict[str, Any]], name: str) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and resource."""
    (found,) = [each for each in objects if each["kind"] == "ClusterRole" and each["metadata"]["name"] == name]
    return {
        (group, resource): set(rule["verbs"])
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def resources_of_services() -> set[tuple[str, str]]:
    manifests = [manifest for plan in PLANS.values() for manifest in render(plan())]
    return {(manifest.key[0], plural(manifest.kind.lower())) for manifest in manifests}


def plural(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_is_valid(path: Path, release: Release) -> None:
    assert_valid(release("inference-platform", "-f", str(path)))


def test_a_deployer_may_apply_all_that_is_rendered_and_nothing_else(release: Release) -> None:
    rules = role(release("inference-platform"), "pilotlight-deployer")
    assert {place for place, verbs in rules.items() if verbs == WRITING} == resources_of_services()
    assert {place for place, verbs in rules.items() if verbs != WRITING} == {
        ("", "pods"), ("", "pods/log"), ("", "events"),
    }  # fmt: skip


def test_a_viewer_changes_nothing(release: Release) -> None:
    rules = role(release("inference-platform"), "pilotlight-viewer")
    assert all(verbs == {"get", "list", "watch"} for verbs in rules.values())


def test_nobody_has_a_role_by_default(release: Release) -> None:
    objects = release("inference-platform")
    assert {each["kind"] for each in objects} == {"ClusterRole"}
    labels = [key for each in objects for key in each["metadata"]["labels"]]
    assert not [key for key in labels if "aggregate" in key]


def test_a_service_account_needs_its_namespace(release: Release) -> None:
    with pytest.raises(HelmFailed, match="needs its namespace"):
        release("inference-platform", namespaces=["a"], deployers=[{"kind": "ServiceAccount", "name": "ci"}])
