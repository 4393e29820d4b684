"""A classifier's answer is right by label and score, in whatever names a server has for its outputs."""

import json
from pathlib import Path

import pytest
from bench.huggingface_models import check_classifier, classifier_payload
from bench.layouts import mlserver_folder
from bench.load import BenchError
from bench.models import Model


@pytest.fixture
def model(tmp_path: Path) -> Model:
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert.answer").write_text('{"label": "neutral", "score": 0.6460}')
    return Model("bert", tmp_path / "bert", (1,), (1,))


@pytest.mark.parametrize(
    "body",
    [
        b'{"outputs":[{"name":"label","data":["neutral"]},{"name":"score","data":[0.64601]}]}',
        b'{"outputs":[{"name":"output","data":["{\\"label\\": \\"neutral\\", \\"score\\": 0.64599}"]}]}',
    ],
)
def test_both_servers_names_are_understood(model: Model, body: bytes) -> None:
    check_classifier(model, body)


@pytest.mark.parametrize("body", [b'{"label":"negative","score":0.646}', b'{"label":"neutral","score":0.9}'])
def test_another_label_or_score_is_refused(model: Model, body: bytes) -> None:
    with pytest.raises(BenchError, match="transformers itself gives"):
        check_classifier(model, body)


def test_each_server_is_asked_by_its_own_input(model: Model) -> None:
    payloads = [classifier_payload(server, model) for server in ("pilotlight", "mlserver")]
    names = [json.loads(payload.body)["inputs"][0]["name"] for payload in payloads]
    assert names == ["text", "array_inputs"]


def test_a_folder_is_served_by_the_runtime_of_hugging_face(model: Model, tmp_path: Path) -> None:
    folder = mlserver_folder(tmp_path / "mlserver", [model], (1, 2, False))
    settings = json.loads((folder / "bert" / "model-settings.json").read_text())
    assert settings["implementation"] == "mlserver_huggingface.HuggingFaceRuntime"
    assert settings["parameters"]["extra"]["pretrained_model"] == str(model.path)
