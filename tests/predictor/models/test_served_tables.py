"""Models of tables over HTTP, in MLServer's layout and in KServe's: V1 and V2, by matrix and by column."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.serving import RunningServer

ROW = [5.1, 3.5, 1.4, 0.2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    """`iris` is scikit-learn's and `trees` XGBoost's, as MLServer has them; `people` has columns, as KServe has it."""
    import joblib
    import pandas as pd
    import xgboost
    from sklearn.compose import make_column_transformer
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    root = tmp_path_factory.mktemp("tables")
    x, y = load_iris(return_X_y=True)
    for folder in ("first", "second", "people/1"):
        (root / folder).mkdir(parents=True)
    joblib.dump(LogisticRegression(max_iter=300).fit(x, y), root / "first" / "iris.joblib")
    xgboost.train({"objective": "reg:squarederror"}, xgboost.DMatrix(x, y), 2).save_model(root / "second/model.json")
    for folder, name, runtime, parameters in (
        ("first", "iris", "mlserver_sklearn.SKLearnModel", {"uri": "./iris.joblib", "version": "v0.1.0"}),
        ("second", "trees", "mlserver_xgboost.XGBoostModel", {"version": "3"}),
    ):
        settings = {"name": name, "implementation": runtime, "parameters": parameters}
        (root / folder / "model-settings.json").write_text(json.dumps(settings))
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"]), remainder="passthrough")
    frame = pd.DataFrame({"age": [20.0, 30, 40, 50], "city": ["Bern", "Rome", "Bern", "Rome"]})
    model = make_pipeline(columns, LogisticRegression()).fit(frame, ["no", "yes", "no", "yes"])
    joblib.dump(model, root / "people/1/model.joblib")
    trusted = [root / "first/iris.joblib", root / "people/1/model.joblib"]
    pins = [f"{path.name}={hashlib.sha256(path.read_bytes()).hexdigest()}" for path in trusted]
    return serve_module(root, *(word for pin in pins for word in ("--trust-pickle", pin)))


def v2(name: str, datatype: str, values: list[Any], columns: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values) // columns, columns], "data": values}


def test_v1_takes_rows_as_kserves_runtime_does(server: RunningServer) -> None:
    answer = server.post("/v1/models/iris:predict", {"instances": [ROW, [6.7, 3.0, 5.2, 2.3]]})
    assert answer.json() == {"predictions": [0, 2]}


@pytest.mark.parametrize(("name", "datatype"), [("predict", "FP32"), ("input-0", "FP64"), ("x", "INT32")])
def test_v2_takes_a_matrix_of_any_name_and_number_type(server: RunningServer, name: str, datatype: str) -> None:
    values = ROW if datatype.startswith("FP") else [5, 3, 1, 0]
    answer = server.infer("iris", {"inputs": [v2(name, datatype, values, 4)]}).json()
    assert answer["outputs"] == [{"name": "predict", "datatype": "INT64", "shape": [1], "data": [0]}]


def test_probabilities_are_requested_by_name(server: RunningServer) -> None:
    body = {"inputs": [v2("x", "FP64", ROW * 2, 4)], "outputs": [{"name": "predict_proba"}]}
    (output,) = server.infer("iris", body).json()["outputs"]
    assert (output["name"], output["shape"]) == ("predict_proba", [2, 3])
    assert sum(output["data"][:3]) == pytest.approx(1)


def test_a_table_of_a_thousand_rows_is_one_request(server: RunningServer) -> None:
    (output,) = server.infer("iris", {"inputs": [v2("x", "FP64", ROW * 1000, 4)]}).json()["outputs"]
    assert output["data"] == [0] * 1000


def test_columns_by_name_reach_the_pipeline_in_v1_and_v2(server: RunningServer) -> None:
    rows = [{"age": 30, "city": "Rome"}, {"city": "Bern", "age": 20}]
    assert server.post("/v1/models/people:predict", {"instances": rows[:1]}).json() == {"predictions": ["yes"]}
    inputs = [v2("city", "BYTES", ["Rome", "Bern"], 1), v2("age", "INT64", [30, 20], 1)]
    (output,) = server.infer("people", {"inputs": inputs}).json()["outputs"]
    assert output == {"name": "predict", "datatype": "BYTES", "shape": [2], "data": ["yes", "no"]}


def test_metadata_lists_columns_and_methods(server: RunningServer) -> None:
    metadata = server.get("/v2/models/people").json()
    assert metadata["inputs"] == [
        {"name": "age", "datatype": "FP64", "shape": [-1, 1]},
        {"name": "city", "datatype": "BYTES", "shape": [-1, 1]},
    ]
    assert [output["name"] for output in metadata["outputs"]] == ["predict", "predict_proba"]


def test_a_numbered_version_of_mlserver_is_kept(server: RunningServer) -> None:
    assert server.get("/v2/models/trees").json()["versions"] == ["3"]
    assert server.get("/v2/models/iris").json()["versions"] == ["1"]
    assert server.infer("trees", {"inputs": [v2("x", "FP32", ROW, 4)]}).status == 200


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("iris", [v2("x", "FP32", [1, 2, 3], 3)], "model 'iris': input 'x' has shape [1, 3], expected [-1, 4]"),
        ("people", [v2("age", "FP32", [1], 1)], "model 'people': column 'city' is missing; its columns are age, city"),
        ("iris", [v2("x", "FP32", [], 4)], "the batch dimension must be at least 1"),
    ],
)
def test_what_does_not_fit_is_a_bad_request(server: RunningServer, model: str, inputs: list[Any], message: str) -> None:
    answer = server.infer(model, {"inputs": inputs})
    assert answer.status == 400
    assert message in answer.error
