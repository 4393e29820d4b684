"""XGBoost, LightGBM and CatBoost: native files, classes and probabilities, categories."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.tables import answer, dumped, specs

from pilotlight_predictor.backends import catboost, lightgbm, sklearn, xgboost
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.protocols.v1_codec import decode_predict
from pilotlight_predictor.repository.model_config import ModelConfig


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_xgboosts_classifier_gives_classes_and_probabilities(tmp_path: Path, data: Any, suffix: str) -> None:
    from xgboost import XGBClassifier

    model = XGBClassifier(n_estimators=3, max_depth=2).fit(data.x, data.y)
    model.save_model(tmp_path / f"model.{suffix}")
    file = (tmp_path / f"model.{suffix}").rename(tmp_path / "model.bst")  # as KServe's runtime calls both
    instance = xgboost.load(LoadSpec(ModelConfig("m"), 1, file, tmp_path))
    assert specs(instance) == (
        [("input-0", "FP32", (-1, 4))],
        [("predict", "INT64", (-1,)), ("predict_proba", "FP32", (-1, 3))],
    )
    assert instance.labels == {"predict_proba": ["0", "1", "2"]}
    got = answer(instance, "predict", "predict_proba", x=data.x[::9])
    assert got["predict"] == model.predict(data.x[::9]).tolist()
    assert np.allclose(got["predict_proba"], model.predict_proba(data.x[::9]))


def test_xgboosts_binary_classifier_has_two_probabilities(tmp_path: Path, data: Any) -> None:
    from xgboost import XGBClassifier

    model = XGBClassifier(n_estimators=3, max_depth=2).fit(data.frame, data.y == 2)
    model.save_model(tmp_path / "model.ubj")
    instance = xgboost.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.ubj", tmp_path))
    assert instance.labels == {"predict_proba": ["0", "1"]}
    got = answer(instance, "predict", "predict_proba", **{name: data.frame[name][::9] for name in data.frame})
    assert got["predict"] == model.predict(data.frame[::9]).tolist()
    assert np.allclose(got["predict_proba"], model.predict_proba(data.frame[::9]))


@pytest.mark.parametrize("booster", ["gbtree", "gblinear"])
def test_a_booster_of_xgboost_gives_what_it_predicts(tmp_path: Path, data: Any, booster: str) -> None:
    import xgboost as library

    matrix = library.DMatrix(data.x, data.y)
    model = library.train({"booster": booster, "objective": "reg:squarederror"}, matrix, 3)
    model.save_model(tmp_path / "model.json")
    instance = xgboost.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.json", tmp_path))
    assert (specs(instance)[1], instance.labels) == ([("predict", "FP32", (-1,))], {})
    assert np.allclose(answer(instance, x=data.x)["predict"], model.predict(matrix), atol=1e-6)


def test_lightgbm_predicts_by_matrix_and_by_column(tmp_path: Path, data: Any) -> None:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=3, verbose=-1).fit(data.frame, data.y)
    model.booster_.save_model(tmp_path / "model.bst")
    instance = lightgbm.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.bst", tmp_path))
    assert specs(instance) == ([("input-0", "FP64", (-1, 4))], [("predict", "FP64", (-1, 3))])
    expected = model.booster_.predict(data.x[::9])
    assert np.allclose(answer(instance, x=data.x[::9])["predict"], expected)
    assert np.allclose(answer(instance, x=data.x[:1].astype(np.float32))["predict"], expected[:1], atol=1e-4)
    names = {name.replace(" ", "_"): data.frame[name][::9] for name in data.frame}
    assert np.allclose(answer(instance, **names)["predict"], expected)


def test_a_lightgbm_file_cannot_write_past_the_results_or_end_the_process(tmp_path: Path, data: Any) -> None:
    from lightgbm import LGBMClassifier

    LGBMClassifier(n_estimators=1, verbose=-1).fit(data.frame, data.y).booster_.save_model(tmp_path / "model.txt")
    text = (tmp_path / "model.txt").read_text("utf-8")
    (tmp_path / "model.txt").write_text(text.replace("num_class=3", "num_class=1"), "utf-8")
    with pytest.raises(LoadFailed, match="3 trees per iteration for num_class=1"):
        lightgbm.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.txt", tmp_path))
    (tmp_path / "model.txt").write_text(text.partition("end of trees")[0], "utf-8")
    with pytest.raises(LoadFailed, match="cut off"):
        lightgbm.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.txt", tmp_path))
    (tmp_path / "model.txt").write_text(text.replace("sepal", "sepäl" * 400), "utf-8")  # longer than the buffer
    lightgbm.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.txt", tmp_path))


@pytest.fixture(scope="module")
def colors() -> Any:
    """A table with categories of strings and of numbers, which are no codes."""
    import pandas as pd

    random = np.random.default_rng(0)
    columns = {"size": random.normal(size=200), "color": random.choice(["red", "green", "blue"], 200)}
    frame = pd.DataFrame({**columns, "grade": random.choice([3, 5, 7], 200)})
    frame = frame.astype({"color": "category", "grade": "category"})
    return frame, ((frame["color"] == "red") ^ (frame["grade"] == 5) ^ (frame["size"] > 0)).astype(int)


def fitted(library: str, colors: Any) -> Any:
    frame, y = colors
    if library == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=5, max_depth=3, enable_categorical=True).fit(frame, y)
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=5, min_child_samples=5, verbose=-1).fit(frame, y)


@pytest.mark.parametrize("name", ["xgb.json", "xgb.ubj", "xgb.joblib", "lgb.txt", "lgb.joblib"])
def test_categories_are_values_by_column_and_codes_in_a_matrix(tmp_path: Path, colors: Any, name: str) -> None:
    frame, library = colors[0][::9], "xgboost" if name[0] == "x" else "lightgbm"
    model, path = fitted(library, colors), tmp_path / name
    expected = model.predict_proba(frame)[:, 1]
    if path.suffix == ".joblib":
        instance = sklearn.load(dumped(path, model))
    elif library == "xgboost":
        model.save_model(path)
        instance = xgboost.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    else:
        model.booster_.save_model(path)
        instance = lightgbm.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    given = [(each.name, each.datatype, each.shape) for each in instance.inputs]
    number = "FP32" if path.suffix in (".json", ".ubj") else "FP64"
    assert given == [("size", number, (-1, 1)), ("color", "BYTES", (-1, 1)), ("grade", "FP64", (-1, 1))]
    output = instance.outputs[-1].name
    columns = {
        "size": frame["size"], "color": [each.encode() for each in frame["color"]], "grade": frame["grade"].astype(int)
    }  # fmt: skip

    def scores(**inputs: Any) -> Any:
        return np.array(answer(instance, output, **inputs)[output]).reshape(len(frame), -1)[:, -1]

    assert np.allclose(scores(**columns), expected)
    rows = [
        {"size": float(size), "color": color, "grade": int(grade)}
        for size, color, grade in zip(frame["size"], frame["color"], frame["grade"], strict=True)
    ]
    (reply,) = instance.execute([decode_predict("m", 1, {"instances": rows}, instance.inputs, batched=True).request])
    by_column = answer(instance, **columns)
    assert {name: value.array.tolist() for name, value in reply.items()} == by_column
    codes = frame.assign(color=frame["color"].cat.codes, grade=frame["grade"].cat.codes).to_numpy(float)
    assert np.allclose(scores(x=codes), expected)
    assert np.allclose(scores(**{**columns, "color": codes[:, 1]}), expected)
    missing = frame.assign(color=frame["color"].where(frame["color"].isna()))
    assert np.allclose(scores(**{**columns, "color": [b""] * len(frame)}), model.predict_proba(missing)[:, 1])
    assert instance.execute([InferRequest("m", instance.sample)])  # the warm-up: zero is no grade


def test_a_value_that_is_no_category_is_refused_by_xgboost_and_missing_for_lightgbm(
    tmp_path: Path, colors: Any
) -> None:
    row = {"size": [0.1], "color": [b"pink"], "grade": [5]}
    by_xgboost = sklearn.load(dumped(tmp_path / "xgb.joblib", fitted("xgboost", colors)))
    with pytest.raises(BadRequest, match="column 'color' has 'pink', expected one of 'blue', 'green', 'red'"):
        answer(by_xgboost, **row)
    with pytest.raises(BadRequest, match="column 'grade' has 4, expected one of 3, 5, 7"):
        answer(by_xgboost, **{**row, "color": [b"red"], "grade": [4]})
    with pytest.raises(BadRequest, match="column 'grade' is BYTES, expected numbers"):
        answer(by_xgboost, **{**row, "color": [b"red"], "grade": [b"5"]})
    by_lightgbm = sklearn.load(dumped(tmp_path / "lgb.joblib", fitted("lightgbm", colors)))
    assert answer(by_lightgbm, **row) == answer(by_lightgbm, **{**row, "color": [b""]})


def test_categories_that_a_file_of_xgboost_lacks_are_codes_and_warned_about(
    tmp_path: Path, colors: Any, caplog: pytest.LogCaptureFixture
) -> None:
    import xgboost as library

    frame, y = colors
    codes = frame.assign(color=frame["color"].cat.codes, grade=frame["grade"].cat.codes).to_numpy(float)
    matrix = library.DMatrix(codes, y, feature_names=[*frame], feature_types=["float", "c", "c"])
    library.train({"max_depth": 3}, matrix, 3).save_model(tmp_path / "model.json")
    with caplog.at_level("WARNING", logger="pilotlight"):
        instance = xgboost.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.json", tmp_path))
    assert "model.json does not have the categories of color, grade, so they are read as codes" in caplog.text
    assert specs(instance)[0] == [("input-0", "FP32", (-1, 3))]


@pytest.mark.parametrize(
    "values",
    [
        "[1, 2]", "[" * 100_000, '[{"a": 1}, [1]]', "[[[1]], [0.1]]", '[["a"], [null]]', '[["\\ud800"], [1]]',
        '[["blue", "green", "red"]]',
    ],
)  # fmt: skip
def test_categories_that_do_not_fit_a_file_of_lightgbm_are_codes_and_warned_about(
    tmp_path: Path, colors: Any, caplog: pytest.LogCaptureFixture, values: str
) -> None:
    fitted("lightgbm", colors).booster_.save_model(tmp_path / "model.txt")
    head = (tmp_path / "model.txt").read_text().partition("\npandas_categorical:")[0]
    (tmp_path / "model.txt").write_text(f"{head}\npandas_categorical:{values}\n")
    with caplog.at_level("WARNING", logger="pilotlight"):
        instance = lightgbm.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.txt", tmp_path))
    assert "model.txt does not have the categories of color, grade, so they are read as codes" in caplog.text
    assert specs(instance)[0] == [("input-0", "FP64", (-1, 3))]


def test_categories_of_xgboost_that_are_not_utf_8_are_named(tmp_path: Path, colors: Any) -> None:
    path = tmp_path / "model.json"
    fitted("xgboost", colors).save_model(path)
    saved = json.loads(path.read_bytes())
    for column in saved["learner"]["gradient_booster"]["model"]["cats"]["enc"]:
        if column.get("offsets"):
            column["values"][0] = -1
    path.write_text(json.dumps(saved))
    with pytest.raises(LoadFailed, match="categories that are not UTF-8"):
        xgboost.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))


def test_catboost_takes_its_categories_as_strings(tmp_path: Path, data: Any) -> None:
    import pandas as pd
    from catboost import CatBoostClassifier

    frame = pd.DataFrame({"n": [1.0, 2, 3, 4] * 4, "c": ["a", "b", "a", "b"] * 4})
    model = CatBoostClassifier(iterations=3, verbose=0, allow_writing_files=False, cat_features=["c"])
    model.fit(frame, ["x", "y", "x", "y"] * 4).save_model(str(tmp_path / "model.cbm"))
    instance = catboost.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.cbm", tmp_path))
    assert specs(instance)[0] == [("n", "FP32", (-1, 1)), ("c", "BYTES", (-1, 1))]
    got = answer(instance, "predict", "predict_proba", n=[1.0, 2.0], c=[b"a", b"b"])
    assert got["predict"] == [b"x", b"y"]
    assert np.allclose(got["predict_proba"], model.predict_proba(frame[:2]))


def test_catboosts_regressor_takes_a_matrix(tmp_path: Path, data: Any) -> None:
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(iterations=3, verbose=0, allow_writing_files=False).fit(data.x, data.y)
    model.save_model(str(tmp_path / "model.cbm"))
    instance = catboost.load(LoadSpec(ModelConfig("m"), 1, tmp_path / "model.cbm", tmp_path))
    assert specs(instance) == ([("input-0", "FP32", (-1, 4))], [("predict", "FP64", (-1,))])
    assert np.allclose(answer(instance, x=data.x)["predict"], model.predict(data.x))
