"""`model.example` and `model.warmup` of a document: inline or from a file, checked once, the same for both groups."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from pilotlight.spec.canary_policy import CanaryPolicy, with_example
from pilotlight.spec.load_documents import load
from pilotlight.spec.service import Service

BODY = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [7.5]}]}
KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: iris}}
spec:
  predictor:
    {model}: {{{format}storageUri: gs://b/m, {fields}}}
"""
OME = """\
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {{name: chat}}
spec: {{model: {{name: llama, {fields}}}}}
"""


def documents(fields: str) -> list[str]:
    return [
        KSERVE.format(model="model", format="modelFormat: {name: onnx}, ", fields=fields),
        KSERVE.format(model="onnx", format="", fields=fields),
        OME.format(fields=fields),
    ]


def read(text: str, **options: Any) -> tuple[Service, list[str]]:
    loaded = load(["-"], stdin=io.StringIO(text), **options)
    return loaded.services[0], [f"{each.code} {each.path}: {each.message}" for each in loaded.problems.items]


@pytest.mark.parametrize("index", range(3), ids=["model", "framework", "ome"])
def test_an_example_is_a_map_or_its_json_and_the_stored_document_has_it_inline(index: int) -> None:
    quoted = json.dumps(json.dumps(BODY))
    for written in (json.dumps(BODY), quoted):
        service, problems = read(documents(f"warmup: none, example: {written}")[index])
        assert not problems
        assert service.example == BODY
        (component,) = service.components.values()
        assert component.warmup == "none"
        assert json.dumps(BODY["inputs"]) in json.dumps(service.document)


@pytest.mark.parametrize("index", range(3), ids=["model", "framework", "ome"])
@pytest.mark.parametrize("path", ["requests/one.json", "./requests/one.json"])
def test_a_path_is_read_beside_the_document(tmp_path: Path, index: int, path: str) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests/one.json").write_text(json.dumps(BODY))
    (tmp_path / "service.yaml").write_text(documents(f"example: {path}")[index])
    loaded = load([str(tmp_path / "service.yaml")])
    assert not loaded.problems.items
    assert loaded.services[0].example == BODY
    assert "one.json" not in json.dumps(loaded.services[0].document)


def test_a_variant_of_a_canary_has_its_own_example() -> None:
    text = KSERVE.format(model="onnx", format="", fields="runtimeVersion: '1'")
    variant = f"{{name: next, onnx: {{storageUri: gs://b/n, example: {json.dumps(BODY)}}}}}"
    service, problems = read(f"{text}  canary: [{{trafficPercent: 10, predictor: {variant}}}]\n")
    assert not problems
    assert service.canaries[0]["component"].example == BODY


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("{a: 1}", "PL104 {path}: is a map, must be the body of a request, with one of inputs, instances,"),
        ("[1]", "PL104 {path}: is a list, must be the body of a request"),
        ("'{'", "PL104 {path}: is not JSON"),
        ("nowhere.json", "PL112 {path}: {cwd}/nowhere.json cannot be read: No such file or directory"),
        (json.dumps({"instances": ["x" * 65_536]}), "PL104 {path}: has 65555 bytes, must have 65536 at most"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_field(written: str, problem: str) -> None:
    path = "spec.predictor.model.example"
    service, problems = read(documents(f"example: {written}")[0])
    assert len(problems) == 1
    assert problems[0].startswith(problem.format(path=path, cwd=Path.cwd()))
    assert not service.example


def test_a_file_that_is_no_request_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text("[]")
    _, problems = read(documents(f"example: {tmp_path / 'wrong.json'}")[0])
    assert problems[0].startswith("PL104 spec.predictor.model.example: ")
    assert "must be the body of a request" in problems[0]


def test_a_warm_up_is_automatic_or_none() -> None:
    _, problems = read(documents("warmup: never")[0])
    assert problems == ['PL104 spec.predictor.model.warmup: is "never", must be one of auto, none']


def test_probes_of_a_canary_send_the_models_example_unless_they_have_their_own() -> None:
    assert json.loads(with_example(CanaryPolicy(), BODY).example) == BODY
    assert with_example(CanaryPolicy(example="{}"), BODY).example == "{}"
    assert with_example(CanaryPolicy(), {}) == CanaryPolicy()


@pytest.mark.parametrize("field", ["labels", "annotations", "nodeSelector"])
def test_a_key_that_is_called_example_elsewhere_is_none(field: str) -> None:
    document = KSERVE.format(model="model", format="modelFormat: {name: onnx}, ", fields="")
    service, problems = read(document + f"    {field}: {{example: demo}}\n")
    assert not problems
    assert not service.example
