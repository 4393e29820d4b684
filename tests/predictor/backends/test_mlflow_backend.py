"""Models saved by mlflow's own functions, each flavour once, and answers equal to mlflow's."""

import hashlib
import importlib
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.onnx_models import write_identity
from tests.predictor.backends.huggingface.tiny_tasks import MOODS, write_bert
from tests.serving import RunningServer

from pilotlight_predictor.backends.mlflow import backend
from pilotlight_predictor.backends.mlflow.signature import read_signature
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import TensorSpec, tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.metrics.model_stats import ModelStats
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.v1_codec import DecodedPredict, encode_predictions
from pilotlight_predictor.repository.model_config import ModelConfig

pd = pytest.importorskip("pandas")
mlflow: Any = pytest.importorskip("mlflow")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("quiet"),
]
FRAME = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [0, 1, 0, 1]})
LABELS = np.array([0, 1, 0, 1])
NOTHING = ["numpy"]  # as requirements: mlflow would find them out in a process of its own, which takes 20 s
COLUMNS = [TensorSpec("a", "FP64", (-1, 1)), TensorSpec("b", "INT64", (-1, 1))]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)


def save(path: Path, flavour: str, *, signed: bool = True) -> tuple[Path, Any]:
    """Train and save a model; return its folder and what mlflow's python_function answers to FRAME."""
    from mlflow.models import infer_signature

    model, options = MAKERS[flavour]()
    module = __import__(f"mlflow.{flavour.partition('-')[0]}", fromlist=["save_model"])
    predictions = model.predict(FRAME) if hasattr(model, "predict") and "Booster" not in str(type(model)) else LABELS
    outputs = predictions.astype(options.pop("output", "i8"))
    signature = infer_signature(FRAME, outputs) if signed else None
    module.save_model(model, path, signature=signature, pip_requirements=NOTHING, **options)
    import mlflow.pyfunc

    return path, mlflow.pyfunc.load_model(str(path), suppress_warnings=True).predict(FRAME)


def _sklearn(**options: Any) -> tuple[Any, dict[str, Any]]:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(FRAME, LABELS), options


def _xgboost(*, wrapped: bool = False) -> tuple[Any, dict[str, Any]]:
    import xgboost

    if wrapped:
        return xgboost.XGBClassifier(n_estimators=2).fit(FRAME, LABELS), {}
    return xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(FRAME, label=LABELS), 2), {"output": "f4"}


def _lightgbm(*, wrapped: bool = False) -> tuple[Any, dict[str, Any]]:
    import lightgbm

    small = {"verbose": -1, "min_data_in_leaf": 1, "min_data_in_bin": 1}
    if wrapped:
        return lightgbm.LGBMClassifier(n_estimators=2, **small).fit(FRAME, LABELS), {}
    return lightgbm.train(small, lightgbm.Dataset(FRAME, label=LABELS), 2), {"output": "f8"}


MAKERS: dict[str, Any] = {
    "sklearn": _sklearn,
    "sklearn-pickle": lambda: _sklearn(serialization_format="cloudpickle"),
    "sklearn-proba": lambda: _sklearn(pyfunc_predict_fn="predict_proba", output="f8"),
    "xgboost": _xgboost,
    "xgboost-wrapped": lambda: _xgboost(wrapped=True),
    "lightgbm": _lightgbm,
    "lightgbm-wrapped": lambda: _lightgbm(wrapped=True),
}


def pins(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.p[kt]*")}


@pytest.fixture
def load(spec: Any) -> Any:
    def make(folder: Path, **fields: Any) -> Any:
        return backend.load(spec(folder, trusted_pickles=pins(folder), **fields))

    return make


def columns(frame: Any = FRAME) -> dict[str, Any]:
    return {name: tensor(frame[name].to_numpy()[:, None]) for name in frame}


@pytest.mark.parametrize("flavour", [each for each in MAKERS if each != "sklearn-proba"])
def test_a_saved_model_answers_as_mlflow_does(flavour: str, tmp_path: Path, load: Any) -> None:
    folder, expected = save(tmp_path / "model", flavour)
    instance = load(folder)
    assert instance.inputs == COLUMNS
    (output,) = instance.outputs
    (answer,) = instance.run(dict(reversed(columns().items()))).items()
    assert answer[0] == output.name == "output-0"
    assert answer[1].datatype == output.datatype
    np.testing.assert_allclose(answer[1].array, expected, rtol=1e-6)


def test_the_function_that_the_model_was_saved_with_is_called(tmp_path: Path, load: Any) -> None:
    folder, expected = save(tmp_path / "model", "sklearn-proba", signed=False)
    instance = load(folder)
    assert instance.inputs == [TensorSpec("input-0", "FP64", (-1, 2), columns=("a", "b"))]
    (answer,) = (each.array for each in instance.run({"input-0": tensor(FRAME.to_numpy())}).values())
    assert answer.shape == (4, 2)
    np.testing.assert_allclose(answer, expected)
    (by_name,) = instance.run({name: tensor(FRAME[name].to_numpy()) for name in ("b", "a")}).values()
    np.testing.assert_allclose(by_name.array, expected)


@pytest.mark.parametrize("flavour", ["sklearn", "xgboost", "lightgbm"])
def test_native_models_start_without_mlflow(flavour: str, tmp_path: Path) -> None:
    folder, _ = save(tmp_path / "model", flavour)
    code = (
        "import sys; from pathlib import Path; from pilotlight_predictor.backends.base import LoadSpec;"
        "from pilotlight_predictor.backends.mlflow import backend;"
        "from pilotlight_predictor.repository.model_config import ModelConfig;"
        "path = Path(sys.argv[1]); backend.load(LoadSpec(ModelConfig('m'), 1, path, path));"
        "print('mlflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_pickle_must_be_pinned(tmp_path: Path, spec: Any) -> None:
    folder, _ = save(tmp_path / "model", "sklearn-pickle")
    with pytest.raises(LoadFailed, match=f"--trust-pickle model.pkl={pins(folder)['model.pkl']}"):
        backend.load(spec(folder))
    with pytest.raises(LoadFailed, match="has changed since it was pinned"):
        backend.load(spec(folder, trusted_pickles={"model.pkl": "0" * 64}))


@pytest.mark.parametrize(("protocol", "why"), [(4, r"data\.bin holds a pickle"), (0, "leads to a pickle, of another")])
def test_a_pickle_of_another_name_must_be_pinned(protocol: int, why: str, tmp_path: Path, spec: Any) -> None:
    """Such as model.statsmodels, or what a loader reads that has no flavour here."""
    (tmp_path / "data.bin").write_bytes(pickle.dumps(Path(), protocol))
    flavour = {"loader_module": "mlflow.sklearn", "model_path": "data.bin"}
    (tmp_path / "MLmodel").write_text(json.dumps({"flavors": {"python_function": flavour}}))
    with pytest.raises(LoadFailed, match=why):
        backend.load(spec(tmp_path))


@pytest.mark.parametrize("flavour", [{"lightgbm": {"model_class": "LGBMClassifier"}}, {"sklearn": {"code": "code"}}])
@pytest.mark.parametrize("name", ["model.skops", "model.bin"])
def test_types_that_the_folder_itself_trusts_need_a_pin(
    flavour: dict[str, Any], name: str, tmp_path: Path, spec: Any
) -> None:
    from skops import io

    io.dump({"a": SimpleNamespace(b=1)}, tmp_path / name)
    ((key, fields),) = flavour.items()
    fields |= {"data": name, "pickled_model": name, "skops_trusted_types": ["types.SimpleNamespace"]}
    function = {"loader_module": f"mlflow.{key}", "model_path": name}
    flavours = {"python_function": function, key: {**fields, "serialization_format": "skops"}}
    (tmp_path / "MLmodel").write_text(json.dumps({"flavors": flavours}))
    why = r"types that are not known to be safe \(types.SimpleNamespace\)" if name == "model.skops" else "a pickle"
    with pytest.raises(LoadFailed, match=f"holds {why}.*--trust-pickle {name}="):
        backend.load(spec(tmp_path))


def test_an_estimator_with_code_of_its_own_gets_columns_by_name(tmp_path: Path, load: Any) -> None:
    import mlflow.pyfunc
    import mlflow.sklearn
    from mlflow.models import infer_signature

    (tmp_path / "own.py").write_text(
        "from sklearn.base import BaseEstimator\n"
        "class Sum(BaseEstimator):\n    def predict(self, table): return table['a'] + table['b']\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        model = importlib.import_module("own").Sum()
        folder, signature = tmp_path / "model", infer_signature(FRAME, FRAME["a"])
        options: dict[str, Any] = {"serialization_format": "cloudpickle", "pip_requirements": NOTHING}
        mlflow.sklearn.save_model(model, folder, code_paths=[str(tmp_path / "own.py")], signature=signature, **options)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("own")
    (answer,) = load(folder).run(columns()).values()
    assert answer.array.ravel().tolist() == [1.0, 3.0, 3.0, 5.0]
    assert "own" not in sys.modules


def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path, spec: Any) -> None:
    (tmp_path / "MLmodel").write_text(json.dumps({"flavors": {"onnx": {"data": "../../etc/model.onnx"}}}))
    with pytest.raises(LoadFailed, match=r"names \.\./\.\./etc/model.onnx, which is outside"):
        backend.load(spec(tmp_path))


@pytest.mark.parametrize("text", ["flavors: [", "- 1", "time: 3"])
def test_an_mlmodel_that_cannot_be_read_is_told(text: str, tmp_path: Path, spec: Any) -> None:
    (tmp_path / "MLmodel").write_text(text)
    with pytest.raises(LoadFailed, match="MLmodel cannot be read"):
        backend.load(spec(tmp_path))


ROW = {"x": 1.5, "when": pd.Timestamp("2024-05-06"), "word": "säge", "tags": ["a", "b"]}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import mlflow.pyfunc
    from mlflow.models import infer_signature

    class Scaled(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
        """Parameters, dates, text and JSON columns in; a table out. Without types, which MLflow would check."""

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            tags = [f"{row.word}-{len(row.tags)}" for row in model_input.itertuples()]
            years = model_input["when"].dt.year.astype("int64")
            return pd.DataFrame({"scaled": model_input["x"] * params["times"], "year": years, "tag": tags})

    output = pd.DataFrame({"scaled": [1.5], "year": [2024], "tag": ["säge-2"]})
    frame = pd.DataFrame([ROW])
    folder = tmp_path_factory.mktemp("scaled") / "model"
    signature = infer_signature(frame, output, params={"times": 2.0})
    mlflow.pyfunc.save_model(folder, python_model=Scaled(), signature=signature, pip_requirements=["numpy==1.0"])
    return folder


def request_columns(rows: int = 1) -> dict[str, Any]:
    values = {"x": 1.5, "when": b"2024-05-06", "word": "säge".encode(), "tags": b'["a","b"]'}
    return {
        name: tensor(np.array([[value]] * rows, dtype=None if name == "x" else object))
        for name, value in values.items()
    }


def test_a_python_function_takes_its_columns_and_parameters(scaled: Path, load: Any, ask: Any) -> None:
    instance = load(scaled)
    assert [each.datatype for each in instance.inputs] == ["FP64", "BYTES", "BYTES", "BYTES"]
    assert [(each.name, each.datatype, each.shape) for each in instance.outputs] == [
        ("scaled", "FP64", (-1, 1)), ("year", "INT64", (-1, 1)), ("tag", "BYTES", (-1, 1))
    ]  # fmt: skip
    plain, tripled = ask(**request_columns(2)), ask(**request_columns())
    tripled.parameters = {"times": 3.0, "unknown": 1}
    first, second = instance.execute([plain, tripled])
    assert first["scaled"].array.tolist() == [[3.0], [3.0]]
    assert second["scaled"].array.tolist() == [[4.5]]
    assert second["year"].array.tolist() == [[2024]]
    assert second["tag"].array.tolist() == [["säge-2".encode()]]


def test_inputs_that_do_not_fit_the_signature_are_the_clients_mistake(scaled: Path, load: Any) -> None:
    instance, good = load(scaled), request_columns()
    for change, message in (
        ({"when": tensor(np.array([["soon"]], object))}, "input 'when' has a value that is not of type datetime"),
        ({"tags": tensor(np.array([["["]], object))}, "input 'tags' has a value that is not of type array"),
        ({"y": good["x"]}, "unexpected inference input 'y'; its inputs are 'x', 'when', 'word', 'tags'"),
    ):
        with pytest.raises(BadRequest, match=message):
            instance.run({**good, **change})
    with pytest.raises(BadRequest, match="missing inputs: 'x', 'when'"):
        instance.run({name: good[name] for name in ("word", "tags")})
    with pytest.raises(BadRequest, match="unexpected inference input 'input-0'; its inputs are 'x', 'when'"):
        instance.run({"input-0": tensor(np.ones((2, 3)))})


def test_versions_other_than_the_models_are_warned_about(
    scaled: Path, load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pilotlight"):
        load(scaled)
    (record,) = [each for each in caplog.records if each.name.startswith("pilotlight")]
    assert f"saved with other versions: numpy 1.0 (here {np.__version__})" in record.getMessage()


def test_one_matrix_stands_for_all_columns(tmp_path: Path, load: Any) -> None:
    folder, expected = save(tmp_path / "model", "sklearn")
    answer = load(folder).run({"anything": tensor(FRAME.to_numpy())})["output-0"].array
    np.testing.assert_array_equal(answer, expected)


def test_an_onnx_model_is_run_by_our_onnx_backend(tmp_path: Path, load: Any, ask: Any) -> None:
    import mlflow.onnx
    import onnx

    path = write_identity(tmp_path, "m", "FP32") / "1/model.onnx"
    mlflow.onnx.save_model(onnx.load(path), tmp_path / "saved", pip_requirements=NOTHING)
    instance = load(tmp_path / "saved")
    assert type(instance).__name__ == "OnnxInstance"
    (answer,) = instance.execute([ask(x=np.array([1.5], "f4"))])
    assert answer["y"].array.tolist() == [1.5]


@pytest.mark.parametrize("form", ["pt2", "pickle"])
def test_a_pytorch_model_is_run_by_our_torch_backend(tmp_path: Path, load: Any, form: str) -> None:
    """Its own tensors for an exported one; for a pickled one here the columns of its signature."""
    import mlflow.pytorch
    import torch
    from mlflow.models import infer_signature

    module, rows = torch.nn.Linear(2, 1), FRAME.to_numpy().astype("f4")
    expected = module(torch.from_numpy(rows)).detach().numpy()
    options = {"input_example": rows} if form == "pt2" else {"signature": infer_signature(FRAME, expected)}
    mlflow.pytorch.save_model(
        module, tmp_path / "saved", serialization_format=form, pip_requirements=NOTHING, **options
    )
    instance = load(tmp_path / "saved")
    if form == "pickle":
        assert instance.inputs == COLUMNS
        (answer,) = instance.run(columns()).values()
    else:
        (given,) = instance.inputs
        (answer,) = instance.run({given.name: tensor(rows)}).values()
    np.testing.assert_allclose(answer.array, expected, rtol=1e-6)


@pytest.mark.parametrize("task", ["text-classification", "fill-mask"])
def test_a_pipeline_of_transformers_answers_as_mlflow_does(task: str, tmp_path: Path, load: Any) -> None:
    """A classifier by our backend for Hugging Face's layout, other tasks by mlflow's python_function."""
    transformers: Any = pytest.importorskip("transformers")
    import mlflow.pyfunc
    import mlflow.transformers

    head, config = ("ForMaskedLM", {}) if task == "fill-mask" else ("ForSequenceClassification", {"id2label": MOODS})
    pipeline = transformers.pipeline(task, model=str(write_bert(tmp_path / "plain", head, **config)), device="cpu")
    mlflow.transformers.save_model(pipeline, tmp_path / "saved", pip_requirements=NOTHING)
    texts = [f"{'good ' * (n % 5)}dog [MASK]" for n in range(backend.TEXTS + 3)]
    expected = mlflow.pyfunc.load_model(str(tmp_path / "saved"), suppress_warnings=True).predict(texts)
    instance = load(tmp_path / "saved")
    assert type(instance) is (backend.MlflowInstance if task == "fill-mask" else backend.NativeInstance)
    assert instance.inputs == [TensorSpec("input-0", "BYTES", (-1, 1))]
    column = np.array([[text.encode()] for text in texts], dtype=object)
    answer = {name: value.array.ravel() for name, value in instance.run({"input-0": tensor(column)}).items()}
    assert answer.keys() == {spec.name for spec in instance.outputs}
    if task == "fill-mask":
        assert [text.decode() for text in answer["output-0"]] == list(expected)
    else:
        assert [label.decode() for label in answer["label"]] == list(expected["label"])
        np.testing.assert_allclose(answer["score"], expected["score"], atol=1e-4)
        assert answer["score"].dtype == np.float64


def test_tensors_of_a_signature_are_declared() -> None:
    inputs = '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3, 8, 8]}, "name": "image"}]'
    outputs = '[{"type": "tensor", "tensor-spec": {"dtype": "str", "shape": [-1]}}]'
    signature = read_signature({"signature": {"inputs": inputs, "outputs": outputs, "params": None}})
    assert [each.spec for each in signature.inputs] == [TensorSpec("image", "FP32", (-1, 3, 8, 8))]
    assert [each.spec for each in signature.outputs] == [TensorSpec("output-0", "BYTES", (-1,))]
    with pytest.raises(LoadFailed, match="signature in MLmodel cannot be read"):
        read_signature({"signature": {"inputs": "[{}]"}})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, _ = save(tmp_path_factory.mktemp("served") / "wine", "sklearn")
    with RunningServer(folder.parent, "--model-path", str(folder)) as running:
        yield running


SPLIT = {"columns": ["a", "b"], "data": [[1.0, 0], [4.0, 1]]}
RECORDS = [{"a": 1.0, "b": 0}, {"a": 4.0, "b": 1}]


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": SPLIT},
        {"dataframe_split": {"columns": ["b", "a"], "data": [[0, 1.0], [1, 4.0]], "index": [0, 1]}},
        {"dataframe_records": RECORDS},
        {"dataframe_split": {"data": SPLIT["data"]}},
        {"dataframe_split": {"columns": [0, 1], "data": SPLIT["data"]}},
        {"instances": RECORDS},
        {"instances": SPLIT["data"]},
        {"inputs": {"a": [1.0, 4.0], "b": [0, 1]}},
        {"inputs": SPLIT["data"]},
    ],
    ids=lambda body: next(iter(body)),
)
def test_invocations_takes_every_form_of_mlflows_scoring_server(server: RunningServer, body: Any) -> None:
    answer = server.post("/invocations", body)
    assert (answer.status, answer.json()) == (200, {"predictions": [0, 1]})


def test_invocations_takes_csv(server: RunningServer) -> None:
    answer = server.post("/invocations", b"a,b\n1.0,0\n4.0,1\n", {"Content-Type": "text/csv"})
    assert (answer.status, answer.json()) == (200, {"predictions": [0, 1]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"dataframe_split": {"columns": ["a", "b"]}}, "dataframe_split must have data"),
        ({"dataframe_split": {"columns": ["a", "b"], "data": [[1]]}}, "rows of 2 values"),
        ({"dataframe_records": [{"a": 1}, {"b": 1}]}, "objects with the same names"),
        ({"dataframe_records": [], "instances": []}, "must have one of"),
        ({"dataframe_split": {"columns": ["a", "c"], "data": [[1, 2]]}}, "unexpected input 'c'"),
        ({"dataframe_records": [{"a": 1}]}, "missing inputs: 'b'"),
        ({"instances": [[1.0, 0], [4.0]]}, "instances[1] has 1 values, the model has 2 columns: a, b"),
        ({"dataframe_split": {"data": [[1, 2, 3]]}}, "instances[0] has 3 values, the model has 2 columns: a, b"),
        ({}, "no input"),
        ({"inputs": [1], "params": 3}, "params must be an object"),
    ],
)
def test_what_invocations_refuses_is_told(server: RunningServer, body: Any, message: str) -> None:
    answer = server.post("/invocations", body)
    assert (answer.status, answer.json()["error_code"]) == (400, "BAD_REQUEST")
    assert message in answer.json()["message"]


def test_v1_and_v2_take_columns_and_ping_answers(server: RunningServer) -> None:
    for rows in (RECORDS, SPLIT["data"]):
        assert server.post("/v1/models/wine:predict", {"instances": rows}).json() == {"predictions": [0, 1]}
    inputs = [
        {"name": "a", "datatype": "FP64", "shape": [2, 1], "data": [1.0, 4.0]},
        {"name": "b", "datatype": "INT64", "shape": [2, 1], "data": [0, 1]},
    ]
    assert server.infer("wine", {"inputs": inputs}).json()["outputs"][0]["data"] == [0, 1]
    assert server.get("/ping").status == 200
    declared = server.get("/v2/models/wine").json()
    assert declared["inputs"][0] == {"name": "a", "datatype": "FP64", "shape": [-1, 1]}
    assert declared["platform"] == "mlflow"


RETURNED: dict[str, Any] = {
    "list": lambda frame: ["yes"] * len(frame),
    "array": lambda frame: frame["a"].to_numpy(),
    "matrix": lambda frame: frame.to_numpy(),
    "series": lambda frame: frame["a"],
    "unnamed series": lambda frame: pd.Series(["yes"] * len(frame)),
    "one column": lambda frame: frame[["a"]],
    "columns": lambda frame: frame,
    "records": lambda frame: [{"a": 1, "tags": ["x", "y"]}] * len(frame),
    "dict": lambda frame: {"a": frame["a"].tolist(), "b": frame["b"].tolist()},
}
NATIVE = ["sklearn", "xgboost", "lightgbm", "onnx", "pytorch"]


def scored_by_mlflow(folder: Path) -> Any:
    """Return what `mlflow models serve` responds to FRAME."""
    import io

    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import predictions_to_json

    text = io.StringIO()
    predictions_to_json(mlflow.pyfunc.load_model(str(folder), suppress_warnings=True).predict(FRAME), text)
    return json.loads(text.getvalue())["predictions"]


def native_model(path: Path, flavour: str) -> Path:
    import torch
    from mlflow.models import infer_signature

    if flavour == "onnx":
        import mlflow.onnx
        import onnx
        from onnx import helper

        info = [helper.make_tensor_value_info(name, 1, [None, 2]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("ReduceSum", ["x", "axes"], ["s"])], "g", info[:1],
            [helper.make_tensor_value_info("s", 1, [None, 1])], [helper.make_tensor("axes", 7, [1], [1])])  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        signature = infer_signature(FRAME, np.ones((4, 1), "f4"))
        mlflow.onnx.save_model(model, path, signature=signature, pip_requirements=NOTHING)
    elif flavour == "pytorch":
        import mlflow.pytorch

        signature = infer_signature(FRAME, np.ones((4, 3), "f4"))
        module = torch.nn.Linear(2, 3)
        options = {"serialization_format": "pickle", "pip_requirements": NOTHING}
        mlflow.pytorch.save_model(module, path, signature=signature, **options)
    else:
        save(path, flavour)
    return path


@pytest.mark.parametrize("returned", [*RETURNED, *NATIVE])
def test_v1_and_invocations_write_predictions_as_mlflows_server_does(returned: str, tmp_path: Path, load: Any) -> None:
    import mlflow.pyfunc
    from mlflow.models import infer_signature

    folder = tmp_path / "saved"
    if returned in NATIVE:
        native_model(folder, returned)
    else:
        output = RETURNED[returned](FRAME)

        class Model(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
            def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
                return output[: len(model_input)] if not isinstance(output, dict) else output

        signature = infer_signature(FRAME, output)
        mlflow.pyfunc.save_model(folder, python_model=Model(), signature=signature, pip_requirements=NOTHING)
    instance, expected = load(folder), scored_by_mlflow(folder)
    requests = [InferRequest("m", columns(FRAME[:1])), InferRequest("m", columns(FRAME[1:]))]
    version = ModelVersion(ModelConfig("m"), 1, None, ModelStats("m", "1"), ((), ()), {})  # type: ignore[arg-type]
    decoded = DecodedPredict(requests[0], by_rows=True, single_instance=False)
    (whole,) = instance.execute([InferRequest("m", columns())])
    body = b"".join(encode_predictions(decoded, version.response(requests[0], whole)))
    assert same(json.loads(body)["predictions"], expected)
    if isinstance(expected, list):
        parts = [
            version.response(each, answer) for each, answer in zip(requests, instance.execute(requests), strict=True)
        ]
        bodies = [json.loads(b"".join(encode_predictions(decoded, part)))["predictions"] for part in parts]
        assert same([row for rows in bodies for row in rows], expected)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two JSON values are equal, numbers within float32's precision."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == pytest.approx(theirs, rel=1e-5)) if isinstance(theirs, float) else bool(ours == theirs)
