"""Real predictors asked with pictures and texts, as the API and batch jobs ask them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.onnx_models import write_model, write_python
from tests.platform.microservices.media.conftest import png, video
from tests.serving import RunningServer

from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.inference.predict import predict
from pilotlight.microservices.media import Limits, Media
from pilotlight.microservices.media.images import identify
from pilotlight.microservices.registry.model_kinds import Schema, schema, validate

LIMITS = Limits()
COLOURS = schema("mine", "kind: classification\nlabels: [red, green, blue]\nprepare: {size: [4, 4]}")


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A classifier of three classes: how much of each colour there is."""
    folder = tmp_path_factory.mktemp("colours")
    nodes = [("GlobalAveragePool", ["x"], ["mean"]), ("Flatten", ["mean"], ["scores"]), ("Softmax", ["scores"], ["y"])]
    shapes = {"x": ("FP32", ("n", 3, "h", "w"))}, {"y": ("FP32", ("n", 3))}
    write_model(folder / "models", "model", nodes, *shapes)
    with RunningServer(folder, "--model-repository", str(folder / "models")) as server:
        yield server


def asked_of(server: RunningServer, of: Schema, media: list[Media], **given: object) -> dict[str, object]:
    body = {"images": [each.name for each in media], **given}
    return predict(server.url, of, validate(of, body), media, LIMITS, 60)


def test_pictures_are_classified_each_with_its_own_answer(colours: RunningServer) -> None:
    media = [
        identify(name, png(5, 7, rgb))
        for name, rgb in (("r.png", (255, 0, 0)), ("g.png", (0, 255, 0)), ("b.png", (0, 0, 255)))
    ]
    for batch_size in (1, 2, 3):
        found = asked_of(colours, COLOURS, media, batch_size=batch_size)["predictions"]
        assert isinstance(found, list)
        assert [(each["name"], each["label"]) for each in found] == [
            ("r.png", "red"),
            ("g.png", "green"),
            ("b.png", "blue"),
        ]


def test_one_picture_has_its_answer_at_the_top_too(colours: RunningServer) -> None:
    found = asked_of(colours, COLOURS, [identify("r.png", png())])
    assert found["response"] == "red"
    assert isinstance(found["confidence"], float)


def test_a_video_is_told_frame_by_frame(colours: RunningServer) -> None:
    found = asked_of(colours, COLOURS, [identify("v.mp4", video(3))])["predictions"]
    assert isinstance(found, list)
    assert len(found[0]["frames"]) == 3


def test_tensors_go_through_as_they_are(colours: RunningServer) -> None:
    of = schema("tensors")
    body = {"inputs": [{"name": "x", "shape": [1, 3, 1, 1], "datatype": "FP32", "data": [9, 0, 0]}]}
    found = predict(colours.url, of, validate(of, body), [], LIMITS, 60)
    assert found["outputs"][0]["shape"] == [1, 3]


def test_what_the_model_refuses_is_told_with_its_status(colours: RunningServer) -> None:
    of = schema("tensors")
    body = {"inputs": [{"name": "other", "shape": [1], "datatype": "FP32", "data": [9]}]}
    with pytest.raises(InferenceFailed) as caught:
        predict(colours.url, of, validate(of, body), [], LIMITS, 60)
    assert caught.value.status == 400
    assert "other" in str(caught.value)


def test_nobody_there_is_told_without_an_address() -> None:
    with pytest.raises(InferenceFailed, match="cannot be reached") as caught:
        predict("http://127.0.0.1:1", schema("tensors"), validate(schema("tensors"), {"inputs": [1]}), [], LIMITS, 5)
    assert caught.value.status == 0
    assert "127" not in str(caught.value)


# Says what it was given.
SPEAKER = """
import json
import numpy as np


class Model:
    def execute(self, inputs):
        if not inputs["messages"][0]:  # the warm-up
            return {"text_output": np.array([""], dtype=object)}
        content = json.loads(inputs["messages"][0])[0]["content"]
        kinds = [part["type"] for part in content] if isinstance(content, list) else ["text"]
        sizes = [len(each) for name in ("images", "videos") for each in inputs.get(name, [])]
        temperature = json.loads(inputs["sampling_parameters"][0])["temperature"]
        return {"text_output": np.array([f"{kinds} {sizes} {temperature}"], dtype=object)}
"""
SPEAKER_CONFIG = """
backend: "python"
input [
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "images" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "videos" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def test_a_model_that_talks_gets_pictures_videos_and_text(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "model", SPEAKER, SPEAKER_CONFIG)
    of = schema("vision-language")
    media = [identify("a.png", png()), identify("b.mp4", video(2))]
    asked = validate(of, {"media": ["a.png", "b.mp4"], "text": "What is it?", "conv_mode": "auto", "temperature": 0.5})
    with RunningServer(tmp_path, "--model-repository", str(tmp_path / "models"), "--microservice") as server:
        found = predict(server.url, of, asked, media, LIMITS, 60)
        plain = predict(server.url, schema("text"), validate(schema("text"), {"prompt": "hi"}), [], LIMITS, 60)
    assert found["response"] == f"['image', 'video', 'text'] [{len(media[0].data)}, {len(media[1].data)}] 0.5"
    assert plain["response"] == "['text'] [] 1.0"
