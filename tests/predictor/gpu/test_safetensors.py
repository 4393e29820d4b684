"""A safetensors header read by ourselves: the places that safetensors wrote, and files that are not to be believed."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.safetensors_header import read_header, read_tensor, weight_files


def written(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_places_are_those_that_safetensors_wrote(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(5, np.int8), "empty": np.zeros((0, 4))}
    save_file(arrays, tmp_path / "w.safetensors", {"format": "pt"})
    file = read_header(tmp_path / "w.safetensors")
    assert set(file.tensors) == set(arrays)
    for name, array in arrays.items():
        assert file.tensors[name].shape == array.shape
        assert read_tensor(file, file.tensors[name]) == array.tobytes()


def test_a_folder_has_all_its_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        save_file({name: np.ones(1)}, tmp_path / f"{name}.safetensors")
    assert [file.name for file in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, "lies outside"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "lies outside"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, "lies outside"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "lies outside"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "does not fit its shape [3]"),
        ({"dtype": "F32", "shape": [2]}, "cannot be read"),
        ("no tensor", "cannot be read"),
    ],
)
def test_a_tensor_that_is_not_where_it_says_is_refused(tmp_path: Path, tensor: object, words: str) -> None:
    with pytest.raises(LoadFailed, match="damaged or not a safetensors") as told:
        read_header(written(tmp_path / "w.safetensors", {"t": tensor}, bytes(8)))
    assert words in str(told.value)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 8, (9).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"]
)
def test_what_has_no_header_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(raw)
    with pytest.raises(LoadFailed, match="is damaged or not a safetensors"):
        read_header(tmp_path / "w.safetensors")
