"""Which format a file or folder has, and the names that formats go by."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from pilotlight.wire.model_formats import FORMATS, by_name, detect, find_format, only_model
from pilotlight.wire.model_formats.batch_dimension import fixed_batch

UBJSON = b"{L\0\0\0\0\0\0\0\x07learner{L\0\0\0\0\0\0\0\nattributes{}"
LIGHTGBM = b"tree\nversion=v4\nnum_class=3\n"
XGBOOST = b'{"learner":{"attributes":{}},"version":[3,2,0]}'


def put(folder: Path, **files: bytes) -> Path:
    """Write files; two underscores stand for a dot, three for a slash."""
    for name, content in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


NETWORK = b"class Net(nn.Module):\n    def predict(self, x): pass\n"
SERVED = b"class Digits:\n    def predict(self, x): pass\n"
SCALER = b"class Scale(base.BaseEstimator, TransformerMixin):\n    def transform(self, x): pass\n"


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "")
    return path


def detected(path: Path) -> str | None:
    found = detect(path)
    return found.format.name if found else None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("iris.onnx", "onnx"), ("m.joblib", "sklearn"), ("M.PKL", "sklearn"), ("m.skops", "sklearn"), ("m.bst", "xgboost"),
     ("m.ubj", "xgboost"), ("m.cbm", "catboost"), ("m.pmml", "pmml"), ("m.gguf", "gguf"), ("m.pt2", "torch-export"),
     ("m.savedmodel", "tensorflow"), ("m.py", "python"), ("m.mar", "pytorch"), ("m.json", None), ("m.txt", None),
     ("m", None)],
)  # fmt: skip
def test_a_suffix_names_the_format_of_a_file_that_cannot_be_opened(name: str, expected: str | None) -> None:
    row = by_name(name)
    assert (row.name if row else None) == expected
    assert detected(Path("/nowhere") / name) == expected


@pytest.mark.parametrize(
    ("alias", "name"),
    [("torch", "pytorch"), ("PyTorch", "pytorch"), ("scikit-learn", "sklearn"), ("transformers", "huggingface"),
     ("text", "huggingface"), ("xgb", "xgboost"), ("llama.cpp", "gguf"), ("onnx", "onnx"),
     ("savedmodel", "tensorflow")],
)  # fmt: skip
def test_a_format_is_known_by_its_aliases(alias: str, name: str) -> None:
    row = find_format(alias)
    assert row is not None
    assert row.name == name
    assert find_format("no-such-format") is None


def test_no_alias_and_no_suffix_belongs_to_two_formats() -> None:
    names = [name for row in FORMATS for name in row.aliases] + list({row.name for row in FORMATS})
    suffixes = [suffix for row in FORMATS for suffix in row.suffixes]
    assert len(names) == len(set(names))
    assert len(suffixes) == len(set(suffixes))


@pytest.mark.parametrize(
    ("name", "content", "expected", "phrase"),
    [
        ("model.json", XGBOOST, "xgboost", "XGBoost model (JSON)"),
        ("model.bst", UBJSON, "xgboost", "XGBoost model (UBJSON)"),
        ("model.bst", LIGHTGBM, "lightgbm", "LightGBM model (text)"),
        ("model.txt", LIGHTGBM, "lightgbm", "LightGBM model (text)"),
        ("model.pt", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "pytorch", "PyTorch weights (torch.save)"),
        ("m.pkl", b"\x80\x04\x8c\x10sklearn.pipeline\x94", "sklearn", "scikit-learn estimator (pickle)"),
        ("m.joblib", b"\x80\x04\x8c\x0fxgboost.sklearn\x94", "sklearn", "XGBoost estimator (joblib pickle)"),
        ("m.joblib", b"x^}S\xdf", "sklearn", "scikit-learn estimator"),  # compressed
        ("m.pkl", pickle.dumps({"a": 1}), "sklearn", "Python object (pickle)"),
    ],
)
def test_a_file_is_opened_where_its_name_does_not_tell(
    tmp_path: Path, name: str, content: bytes, expected: str, phrase: str
) -> None:
    (tmp_path / name).write_bytes(content)
    found = detect(tmp_path / name)
    assert found is not None
    assert (found.format.name, found.phrase) == (expected, phrase)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [(("m/data.pkl", "m/constants.pkl", "m/code/x.py"), "torchscript"), (("m/data.pkl", "m/data/0"), "pytorch"),
     (("m/models/model.json",), "torch-export"), (("readme",), "torchscript")],
)  # fmt: skip
def test_a_pt_file_is_what_its_archive_holds(tmp_path: Path, inside: tuple[str, ...], expected: str) -> None:
    assert detected(archive(tmp_path / "m.pt", *inside)) == expected


def test_other_text_and_json_is_no_model(tmp_path: Path) -> None:
    put(tmp_path, requirements__txt=b"numpy\n", tokenizer__model=b"\x0a\x0b", empty__json=b"")
    put(tmp_path, metrics__json=b'{"loss": 1}')
    assert [path.name for path in tmp_path.iterdir() if detected(path)] == []
    assert detect(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config__pbtxt": b"", "1___model__onnx": b""}, "triton"),
        ({"net___config__pbtxt": b"", "readme__md": b""}, "triton"),
        ({"net___1___model__onnx": b"", "other___2___model__py": b""}, "triton"),
        ({"net___config__pbtxt": b"", "client__py": b"def main(): pass\n"}, "triton"),
        ({"net___config__pbtxt": b"", "churn__py": b"def predict(x): pass\n"}, "python"),
        ({"net___config__pbtxt": b"", "model__py": b""}, "python"),
        ({"net___config__pbtxt": b"", "iris__onnx": b""}, "onnx"),
        ({"net___config__pbtxt": b"", "1___model__onnx": b""}, "onnx"),
        ({"models___net___config__pbtxt": b"", "models___net___1___model__onnx": b""}, None),
        ({"net___1___weights__onnx": b"", "__git___config__pbtxt": b"", "net___v1___model__onnx": b""}, None),
        ({"MLmodel": b"", "model__pkl": b"\x80"}, "mlflow"),
        ({"saved_model__pb": b""}, "tensorflow"),
        ({"config__json": b'{"model_type": "bert"}', "model__safetensors": b""}, "huggingface"),
        ({"config__json": b'{"lr": 1}', "model__onnx": b""}, "onnx"),
        ({"config__json": b'{"model_type": "bert"}', "model__onnx": b""}, "onnx"),
        ({"model__py": b"", "model__safetensors": b""}, "safetensors"),
        ({"model__py": b"", "model__joblib": b""}, "python"),
        ({"model__py": b"class Net(nn.Module):\n", "last__safetensors": b""}, "safetensors"),
        ({"model__py": b"class Model(torch.nn.Module):\n", "net__ckpt": b""}, "pytorch"),
        ({"model__py": b"def build():\n", "net__pth": b""}, "pytorch"),
        ({"model__py": b"class Net(nn.Module):\n\nclass Model:\n", "net__pth": b""}, "python"),
        ({"model__py": b"class Churn(kserve.Model):\n", "net__pth": b""}, "python"),
        ({"model__py": b"def predict(x):\n", "net__pth": b""}, "python"),
        ({"model__py": NETWORK, "net__pth": b""}, "pytorch"),
        ({"model__py": NETWORK, "model__safetensors": b""}, "safetensors"),
        ({"model__py": NETWORK + SERVED, "net__pth": b""}, "python"),
        ({"model__py": NETWORK + SERVED, "model__safetensors": b""}, "python"),
        ({"model__py": NETWORK + SERVED, "model__onnx": b""}, "onnx"),
        ({"model__py": SCALER, "m__joblib": b"", "feats__py": b""}, "sklearn"),
        ({"model__py": b"def double(x): pass\n", "model__pkl": b""}, "sklearn"),
        ({"model__py": SCALER + b"class Steps(Scale):\n    def predict(self, x): pass\n", "m__joblib": b""}, "python"),
        ({"model__py": b"class Mine(Forest): pass\n", "m__joblib": b""}, "python"),
        ({"model__py": b"def fit(:\n", "m__joblib": b""}, "python"),
        ({"model__py": SCALER, "a__joblib": b"", "b__onnx": b""}, "python"),
        ({"iris__joblib": b"", "requirements__txt": b"x"}, "sklearn"),
        ({"iris__onnx": b"", "scaler__pkl": b"", "util__py": b""}, "onnx"),
        ({"iris__joblib": b"", "feats__py": b"", "train__py": b""}, "sklearn"),
        ({"a__safetensors": b"", "b__safetensors": b""}, "safetensors"),
        ({"1___model__onnx": b"", "2___model__bst": UBJSON}, "xgboost"),
        ({"a__onnx": b"", "b__cbm": b""}, None),
        ({"readme__md": b""}, None),
    ],
)
def test_a_folder_is_known_by_its_signs_then_by_its_files(
    tmp_path: Path, files: dict[str, bytes], expected: str | None
) -> None:
    assert detected(put(tmp_path, **files)) == expected


def test_settings_of_mlserver_name_the_format(tmp_path: Path) -> None:
    settings = {"name": "m", "implementation": "mlserver_lightgbm.LightGBMModel", "parameters": {"uri": "./x.bst"}}
    put(tmp_path, **{"model-settings__json": json.dumps(settings).encode()})
    assert detected(tmp_path) == "lightgbm"


def test_several_models_of_one_format_leave_the_choice_open(tmp_path: Path) -> None:
    put(tmp_path, a__onnx=b"", b__onnx=b"")
    assert only_model(tmp_path) is None
    assert detect(tmp_path) is not None
    chosen = only_model(put(tmp_path, model__onnx=b""))
    assert chosen is not None
    assert chosen.file.name == "model.onnx"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"architectures": 5}', '{"architectures": {"A": 1}}', None])
def test_a_configuration_that_cannot_be_read_is_no_model(tmp_path: Path, text: str | None) -> None:
    """None: it is a FIFO, which opening would wait for."""
    if text is None:
        os.mkfifo(tmp_path / "config.json")
    else:
        (tmp_path / "config.json").write_text(text)
    assert detect(tmp_path) is None


@pytest.mark.parametrize("kind", ["fifo", "device", "sparse"])
def test_a_model_py_that_does_not_end_is_not_read(tmp_path: Path, kind: str) -> None:
    code = put(tmp_path, w__safetensors=b"") / "model.py"
    if kind == "fifo":
        os.mkfifo(code)
    elif kind == "device":
        code.symlink_to("/dev/zero")
    else:
        with code.open("wb") as file:
            file.truncate(1 << 40)
    assert only_model(tmp_path) is not None


@pytest.mark.parametrize(
    ("content", "phrase"),
    [(b"\x80\x02c__main__\nNet\nq\x00ctorch.nn.modules.linear\nLinear\n", "PyTorch module (pickle)"),
     (b"\x80\x02ccollections\nOrderedDict\nctorch._utils\n_rebuild_tensor_v2\n", "PyTorch weights (torch.save)")],
)  # fmt: skip
def test_a_whole_module_is_told_from_its_weights(tmp_path: Path, content: bytes, phrase: str) -> None:
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("net/data.pkl", content)
    found = detect(path)
    assert found is not None
    assert found.phrase == phrase


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        ({"x": (2, 4)}, 2),
        ({"x": (2, 4), "w": (3, 4)}, 2),  # weights, as files of old versions list them
        ({"x": ("n", 4)}, 0),
        ({"x": (-1, 4)}, 0),  # as onnxruntime reads it
        ({"x": (2, 4), "y": ("n", 4)}, 0),
        ({"x": (4,)}, 0),
    ],
)
def test_the_batch_dimension_of_an_onnx_file_is_read(
    inputs: dict[str, tuple[int | str, ...]], rows: int, tmp_path: Path
) -> None:
    from onnx import TensorProto, helper, save

    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    weights = [helper.make_tensor("w", TensorProto.FLOAT, (3, 4), [0.0] * 12)]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "g", infos, [output], weights)
    save(helper.make_model(graph), tmp_path / "model.onnx")
    assert fixed_batch(tmp_path / "model.onnx") == rows
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "model.onnx").read_bytes()[:40])
    assert fixed_batch(tmp_path / "cut.onnx") == 0
