"""`canary:` in a spec: the same policy as the annotation has, found by every later stage where it has always been."""

import io
import json

import pytest
from schemas import json_schema

from pilotlight.errors import UsageError
from pilotlight.k8s.names import ANNOTATION_CANARY
from pilotlight.spec import field_tables as tables
from pilotlight.spec.canary_policy import KEYS, parse_policy, policy_from_annotations
from pilotlight.spec.field_types import OneOf
from pilotlight.spec.load_documents import LoadedDocuments, load

FIELDS = tables.COMPONENTS.record("canary").fields
OME = """\
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  model: {name: iris}
"""
KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {team: flowers}
spec:
  predictor:
    model: {modelFormat: {name: sklearn}, storageUri: "s3://bucket/iris"}
"""
BLOCK = """\
  canary:
    steps: [10, 100]
    check: [p99_ms<300, error_rate<1%]
    promql: {gpu: 'max(gpu{revision="{{revision}}"})'}
    max: 0.9
"""
WRITTEN = {
    "steps": [10, 100], "check": ["p99_ms<300", "error_rate<1%"], "max": 0.9,
    "promql": {"gpu": 'max(gpu{revision="{{revision}}"})'},
}  # fmt: skip


def read(text: str, *sets: str) -> LoadedDocuments:
    return load(["-"], stdin=io.StringIO(text), sets=sets)


def told(text: str) -> list[str]:
    return [str(each).removeprefix("<stdin>:") for each in read(text).problems.items]


@pytest.mark.parametrize("document", [OME, KSERVE])
def test_a_block_is_the_policy_that_the_annotation_would_be(document: str) -> None:
    loaded = read(document + BLOCK)
    assert not loaded.problems.items
    (service,) = loaded.services
    assert policy_from_annotations(service.annotations) == parse_policy(WRITTEN)
    assert "canary" not in service.document["spec"], "whoever else reads the kind knows no such field"
    assert json.loads(service.document["metadata"]["annotations"][ANNOTATION_CANARY]) == WRITTEN


def test_other_annotations_stay() -> None:
    (service,) = read(KSERVE + BLOCK).services
    assert service.annotations["team"] == "flowers"


def test_a_flag_may_change_a_key_of_it() -> None:
    (service,) = read(OME + BLOCK, "spec.canary.steps=50,100").services
    policy = policy_from_annotations(service.annotations)
    assert policy is not None
    assert policy.steps == (50, 100)


@pytest.mark.parametrize("kept", ['{"steps": "10,100", "bake": "9s"}', "steps: 10,100\nbake: 9s\n"])
def test_a_flag_may_change_what_a_kept_document_has_as_its_annotation(kept: str) -> None:
    document = OME.replace(
        "{name: iris}\nspec", f"{{name: iris, annotations: {{{ANNOTATION_CANARY}: {json.dumps(kept)}}}}}\nspec"
    )
    changed = policy_from_annotations(read(document, "spec.canary.steps=50,100").services[0].annotations)
    assert changed == parse_policy({"steps": "50,100", "bake": "9s"})
    assert policy_from_annotations(read(document, "spec.canary=null").services[0].annotations) is None


@pytest.mark.parametrize("kept", ["--- {steps: 1}\n--- {}", "[1]", "steps: ["])
def test_an_annotation_that_cannot_be_read_is_told_and_not_taken_for_the_block(kept: str) -> None:
    document = OME.replace(
        "{name: iris}\nspec", f"{{name: iris, annotations: {{{ANNOTATION_CANARY}: {json.dumps(kept)}}}}}\nspec"
    )
    found = {each.code for each in read(document, "spec.canary.steps=50,100").problems.items}
    assert found == {"PL111", "PL116"}


def test_a_list_is_kserves_own() -> None:
    other = '  canary: [{trafficPercent: 10, predictor: {name: next, sklearn: {storageUri: "s3://b/i"}}}]\n'
    loaded = read(KSERVE + other)
    assert not loaded.problems.items
    (service,) = loaded.services
    assert [each["name"] for each in service.canaries] == ["next"]
    assert ANNOTATION_CANARY not in service.annotations


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (
            "  canary:\n    bake: 2m\n    steps: 5,25\n",
            '8:5: error PL116: spec.canary: steps is "5,25", must be rising',
        ),
        (
            "  canary:\n    minRequests: 5\n",
            "7:5: error PL116: spec.canary: minRequests is not a canary setting; did",
        ),
        ("  canary: {check: p98_ms<3}\n", '6:3: error PL116: spec.canary: the check "p98_ms<3" uses p98_ms'),
        ("  canary: often\n", '6:11: error PL102: spec.canary: is "often", must be a map with the fields of canary'),
    ],
)
def test_what_is_wrong_in_it_is_told_at_its_key(block: str, found: str) -> None:
    (problem,) = told(OME + block)
    assert problem.startswith(found)


def test_it_is_written_once() -> None:
    twice = OME.replace("{name: iris}\nspec", f'{{name: iris, annotations: {{{ANNOTATION_CANARY}: "{{}}"}}}}\nspec')
    (problem,) = told(twice + BLOCK)
    assert problem.startswith(f"6:3: error PL111: spec.canary: excludes the annotation {ANNOTATION_CANARY}")


def test_annotations_that_are_no_map_are_told_once() -> None:
    (problem,) = told(OME.replace("{name: iris}\nspec", "{name: iris, annotations: [a]}\nspec") + BLOCK)
    assert "metadata.annotations: is a list, must be a map" in problem


@pytest.mark.parametrize("key", [key for key, field in FIELDS.items() if isinstance(field.type, OneOf)])
def test_editors_offer_what_can_be_read(key: str) -> None:
    kind = FIELDS[key].type
    assert isinstance(kind, OneOf)
    for value in kind.values:
        assert parse_policy({key: value, "check": "p99_ms<3"})
    with pytest.raises(UsageError, match=f"{key} is"):
        parse_policy({key: "something else"})


def test_editors_know_every_key() -> None:
    assert set(FIELDS) == {*KEYS, "manual"}
    for table in (tables.OME, tables.KSERVE):
        schema = json_schema.schema(table.record("InferenceService"))["$defs"]["InferenceServiceSpec"]["properties"][
            "canary"
        ]
        maps = schema.get("anyOf", [schema])
        assert set(maps[-1]["properties"]) == {*KEYS, "manual"}
