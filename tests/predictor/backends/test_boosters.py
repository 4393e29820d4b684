"""XGBoost, LightGBM and CatBoost: native files, classes and probabilities, categories."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.tables import answer, specs

from pilotlight_predictor.backends import catboost, lightgbm, xgboost
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.errors import LoadFailed
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
