"""One plan, two ways: `helm template` of its values gives the objects of render(), each equal in every field.

Plans written by hand reach every branch of the templates; documents, ours and the examples, come the way of a user.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helm.conftest import CHARTS, Release
from tests.judges.verdict import assert_valid
from tests.platform.render.render_plans import PLANS

from pilotlight.catalogue.catalogue import builtin, catalogue_from, merge_catalogues
from pilotlight.plan import plan
from pilotlight.plan.types import Plan
from pilotlight.render import render, values_of
from pilotlight.spec.load_documents import load

SERVICES = sorted(
    path
    for path in (*(Path(__file__).parent / "services").glob("*.yaml"), *(CHARTS.parent / "examples").rglob("*.yaml"))
    if "kind: InferenceService\n" in path.read_text()
)
HOSTILE = "\" ' \\ \n---\nkind: Pod {{ .Values.name }} {{{{ $(x) %s é ☃ <&> 1e5 null # :"


def by_key(documents: list[Any]) -> dict[str, Any]:
    """Objects by identity; one that came twice would be lost here, so their number is compared as well."""
    keyed = {}
    for each in documents:
        metadata = each["metadata"]
        keyed[f"{each['apiVersion']} {each['kind']} {metadata.get('namespace')}/{metadata['name']}"] = each
    assert len(keyed) == len(documents)
    return keyed


def rendered(made: Plan) -> dict[str, Any]:
    return by_key([json.loads(json.dumps(manifest.document)) for manifest in render(made)])


def planned(path: Path) -> list[Plan]:
    loaded = load([str(path)])
    catalogue = merge_catalogues(catalogue_from(loaded.catalogue_nodes, loaded.problems), builtin())
    assert not loaded.problems.errors
    return [plan(service, catalogue) for service in loaded.services]


@pytest.mark.parametrize("name", PLANS)
def test_helm_and_render_give_the_same_objects(name: str, release: Release) -> None:
    made = PLANS[name]()
    assert by_key(release("inference-service", **values_of(made))) == rendered(made)


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_document_gives_the_same_valid_objects_both_ways(path: Path, release: Release) -> None:
    for made in planned(path):
        objects = by_key(release("inference-service", **values_of(made)))
        assert objects == rendered(made)
        assert_valid(objects.values())


def test_no_string_of_a_user_changes_the_structure(release: Release) -> None:
    text = json.dumps(values_of(PLANS["raw-latency"]()))
    values = json.loads(text.replace("s3://models/iris", json.dumps(HOSTILE)[1:-1]))
    (deployment,) = [each for each in release("inference-service", **values) if each["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] == HOSTILE


def test_a_release_may_have_another_name_than_its_service(release: Release) -> None:
    made = PLANS["serverless"]()
    assert by_key(release("inference-service", called="other", **values_of(made))) == rendered(made)


def test_a_plan_without_objects_installs_nothing_but_what_it_says(release: Release) -> None:
    made = Plan("iris", "default", "virtual", (), "", monitoring=False)
    assert by_key(release("inference-service", **values_of(made))) == rendered(made)
