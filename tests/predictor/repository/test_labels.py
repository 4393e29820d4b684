"""Label files of classifiers."""

from pathlib import Path

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.layout import read_labels
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig


def config(filename: str) -> ModelConfig:
    outputs = (TensorConfig("prob", "FP32", (3,), label_filename=filename), TensorConfig("other", "FP32", (3,)))
    return ModelConfig("m", outputs=outputs)


@pytest.mark.parametrize("text", ["cat\ndog\n\nbird\n", "cat\r\ndog\r\n\r\nbird", "\ufeffcat\ndog\n\nbird"])
def test_one_label_a_line_with_its_number_as_the_class(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.txt").write_bytes(text.encode())
    assert read_labels(tmp_path, config("labels.txt")) == {"prob": ["cat", "dog", "", "bird"]}


def test_an_empty_file_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("")
    assert read_labels(tmp_path, config("labels.txt")) == {"prob": []}


@pytest.mark.parametrize("filename", ["../labels.txt", "/etc/passwd", "a/../../b", "..\\x"])
def test_a_path_out_of_the_model_is_refused(tmp_path: Path, filename: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "labels.txt").write_text("secret")
    with pytest.raises(LoadFailed, match="inside the model's directory"):
        read_labels(tmp_path / "m", config(filename))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"'labels\.txt' cannot be read"):
        read_labels(tmp_path, config("labels.txt"))
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(LoadFailed, match="not UTF-8"):
        read_labels(tmp_path, config("labels.txt"))
