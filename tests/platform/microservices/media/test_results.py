"""Pictures as tensors, and what outputs mean: labels, thresholds, and nothing made up."""

import numpy as np
import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.inference.picture_models import predictions
from pilotlight.microservices.media.tensors import tensor
from pilotlight.microservices.registry.model_kinds import Preparation, schema
from pilotlight.v2_tensors import InputSpec

RED = np.zeros((2, 4, 3), dtype="u1") + np.array([255, 0, 51], dtype="u1")


@pytest.mark.parametrize(
    ("shape", "made"),
    [((-1, 3, 8, 6), (1, 3, 8, 6)), ((1, 8, 6, 3), (1, 8, 6, 3)), ((3, 8, 6), (3, 8, 6)),
     ((-1, 3, -1, -1), (1, 3, 2, 4)), ((-1, 1, 8, 6), (1, 1, 8, 6))],
)  # fmt: skip
def test_a_picture_takes_the_models_shape(shape: tuple[int, ...], made: tuple[int, ...]) -> None:
    assert tensor([RED], InputSpec("x", "FP32", shape), Preparation()).shape == made


def test_numbers_are_scaled_and_normalised_channel_by_channel() -> None:
    found = tensor([RED], InputSpec("x", "FP32", (1, 3, 2, 4)), Preparation(mean=(0.5, 0, 0.1), std=(0.5, 1, 0.1)))
    assert found.dtype == np.float32
    assert np.allclose(found[0, :, 0, 0], [1.0, 0.0, 1.0])
    bytes_ = tensor([RED], InputSpec("x", "UINT8", (1, 2, 4, 3)), Preparation())
    assert (bytes_[0] == RED).all()


def test_what_is_no_picture_is_refused_with_the_way_out() -> None:
    for shape in ((4,), (1, 4, 5, 7), (1, 2)):
        with pytest.raises(UsageError, match="which is not an image"):
            tensor([RED], InputSpec("x", "FP32", shape), Preparation())


def test_pictures_of_different_sizes_go_together_only_where_the_model_resizes_them() -> None:
    other = np.zeros((3, 3, 3), dtype="u1")
    assert tensor([RED, other], InputSpec("x", "FP32", (-1, 3, 8, 8)), Preparation()).shape == (2, 3, 8, 8)
    with pytest.raises(UsageError, match="batch_size 1"):
        tensor([RED, other], InputSpec("x", "FP32", (-1, 3, -1, -1)), Preparation())


def test_classes_are_named_sorted_and_cut_at_the_threshold() -> None:
    of = schema("classification", "kind: classification\nlabels: [cat, dog, owl]")
    rows = np.array([[0.2, 0.7, 0.1], [0.4, 0.3, 0.3]], dtype="f4")
    found = predictions(of, {"y": rows}, {"top_k": 2, "confidence_threshold": 0.35}, 2)
    assert [each["label"] for each in found] == ["dog", "cat"]
    assert [len(each["classes"]) for each in found] == [1, 1]
    assert "confidence_is" not in found[0]
    none = predictions(of, {"y": rows}, {"top_k": 2, "confidence_threshold": 0.99}, 2)[0]
    assert none == {"label": None, "confidence": None, "classes": []}


def test_scores_that_are_no_distribution_become_one_and_it_is_told() -> None:
    of = schema("classification")
    found = predictions(of, {"y": np.array([[1.0, 3.0]], dtype="f4")}, {"top_k": 5}, 1)[0]
    assert found["label"] == "1"
    assert found["confidence"] == pytest.approx(1 / (1 + np.exp(-2)))
    assert found["confidence_is"] == "softmax"


def test_detections_below_the_threshold_are_left_out() -> None:
    of = schema("detection", "kind: detection\nlabels: [cat, dog]\noutputs: {boxes: b, scores: s, classes: c}")
    outputs = {
        "b": np.arange(8, dtype="f4").reshape(1, 2, 4),
        "s": np.array([[0.9, 0.2]], dtype="f4"),
        "c": np.array([[1, 0]]),
    }
    found = predictions(of, outputs, {"confidence_threshold": 0.5}, 1)
    assert found == [{"detections": [{"label": "dog", "confidence": pytest.approx(0.9), "box": [0.0, 1.0, 2.0, 3.0]}]}]
    assert len(predictions(of, outputs, {"confidence_threshold": 0.0}, 1)[0]["detections"]) == 2


def test_a_mask_is_told_with_the_share_of_each_class() -> None:
    of = schema("segmentation", "kind: segmentation\nlabels: [sky, road]")
    scores = np.zeros((1, 2, 2, 2), dtype="f4")
    scores[0, 1, 0, 0] = 1
    found = predictions(of, {"y": scores}, {}, 1)[0]
    assert found == {"shares": {"sky": 0.75, "road": 0.25}, "mask": [[1, 0], [0, 0]]}


def test_what_is_not_understood_is_told_as_it_came() -> None:
    of = schema("detection")
    outputs = {"x": np.array([[b"a", "b"]], dtype=object), "y": np.array([[1.5]])}
    assert predictions(of, outputs, {}, 1) == [{"outputs": {"x": ["a", "b"], "y": [1.5]}}]
