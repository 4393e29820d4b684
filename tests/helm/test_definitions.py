"""The kinds that the platform chart can install: an API server takes them, and they take every document that we do."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schemas.crds import KINDS, definition
from schemas.json_schema import EITHER, OPEN
from tests.helm.conftest import CHARTS, Release
from tests.judges.schemas import tightened
from tests.judges.verdict import assert_valid

from pilotlight.spec.load_documents import load

BOTH = {"install": True, "groups": ["ome.io", "serving.kserve.io"]}
DOCUMENTS = sorted(
    path
    for path in (*(Path(__file__).parent / "services").glob("*.yaml"), *(CHARTS.parent / "examples").rglob("*.yaml"))
    if "kind: InferenceService\n" in path.read_text()
)
FORBIDDEN = {"$ref", "$defs", "propertyNames", "deprecated", "readOnly"}


def schema_of(kind: Any) -> dict[str, Any]:
    version = definition(kind)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def unstructural(node: dict[str, Any], path: str = "") -> list[str]:
    """What an API server refuses: references, and values of no type."""
    found = [f"{path}.{word}" for word in FORBIDDEN & set(node)]
    if "type" not in node and not node.get(OPEN) and not node.get(EITHER):
        found.append(f"{path} has no type")
    children = {**node.get("properties", {})}
    children |= {"[]": node["items"]} if "items" in node else {}
    children |= {"*": node["additionalProperties"]} if "additionalProperties" in node else {}
    return found + [each for name, child in children.items() for each in unstructural(child, f"{path}.{name}")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.plural}.{kind.group}")
def test_a_definition_is_structural(kind: Any) -> None:
    assert_valid([definition(kind)])
    assert not unstructural(schema_of(kind))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_what_we_read_an_api_server_takes_without_pruning(path: Path) -> None:
    loaded = load([str(path)])
    documents = [service.document for service in loaded.services] + [node.plain() for node in loaded.catalogue_nodes]
    for document in documents:
        title = (document["apiVersion"], document["kind"])
        schema = tightened(schema_of(next(k for k in KINDS if (f"{k.group}/{k.version}", k.kind) == title)))
        schema["properties"]["metadata"] = {}
        assert not [error.message for error in Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize(
    "canary", [{"steps": "5,100", "check": ["p99_ms<300"]}, [{"trafficPercent": 10, "predictor": {}}]]
)
def test_both_forms_of_a_canary_can_be_applied_with_kubectl(canary: Any) -> None:
    """Without `platformctl`, which makes an annotation of the policy."""
    document = {"spec": {"predictor": {}, "canary": canary}}
    kind = next(k for k in KINDS if (k.group, k.kind) == ("serving.kserve.io", "InferenceService"))
    assert not [error.message for error in Draft202012Validator(tightened(schema_of(kind))).iter_errors(document)]


def test_no_kind_is_installed_unless_asked_for(release: Release) -> None:
    kinds = {each["kind"] for each in release("inference-platform", crds={"groups": BOTH["groups"]})}
    assert "CustomResourceDefinition" not in kinds


def test_the_groups_that_are_asked_for_are_installed_and_known_as_ours(release: Release) -> None:
    found = [each for each in release("inference-platform", crds={"install": True}) if "Custom" in each["kind"]]
    assert {each["spec"]["group"] for each in found} == {"ome.io"}
    assert {each["metadata"]["annotations"]["pilotlight.dev/crd"] for each in found} == {"true"}
    both = [each for each in release("inference-platform", crds=BOTH) if "Custom" in each["kind"]]
    assert {each["metadata"]["name"] for each in both} == {f"{kind.plural}.{kind.group}" for kind in KINDS}


def test_an_uninstall_leaves_the_kinds_unless_told_otherwise(release: Release) -> None:
    for keep, policy in ((True, "keep"), (False, None)):
        objects = release("inference-platform", crds={**BOTH, "keep": keep})
        found = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
        assert {each["metadata"]["annotations"].get("helm.sh/resource-policy") for each in found} == {policy}


def test_kubectl_get_shows_where_a_service_is_and_whether_it_is_ready() -> None:
    (kind,) = [each for each in KINDS if (each.group, each.kind) == ("ome.io", "InferenceService")]
    (version,) = definition(kind)["spec"]["versions"]
    columns = [each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority")]
    assert columns == ["URL", "Ready", "Mode", "Age"]
    assert definition(kind)["spec"]["names"]["shortNames"] == ["isvc"]
