"""Models of tables, saved by their own frameworks: scikit-learn, XGBoost, LightGBM, CatBoost."""

import gc
import hashlib
import importlib
import logging
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.planted import Planted, planted
from tests.predictor.backends.tables import ROW, answer, dumped, pinned, request, specs

from pilotlight_predictor.backends import catboost, lightgbm, sklearn, xgboost
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.tabular import CategoricalFeatures, open_library, openmp_threads
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.protocols.v1_codec import decode_predict
from pilotlight_predictor.protocols.v2.routes import tensor_metadata
from pilotlight_predictor.repository.model_config import ModelConfig


@pytest.fixture(scope="module")
def mixed() -> Any:
    """A pipeline of a ColumnTransformer, with a column of strings."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = pd.DataFrame({"age": [20.0, 30, 40, 50], "city": ["Bern", "Rome", "Bern", "Rome"]})
    columns = [("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["city"])]
    steps = [("columns", ColumnTransformer(columns)), ("model", LogisticRegression())]
    return Pipeline(steps).fit(frame, ["no", "yes", "no", "yes"])


def test_a_classifier_declares_features_classes_and_probabilities(tmp_path: Path, estimator: Any) -> None:
    instance = sklearn.load(dumped(tmp_path / "model.joblib", estimator))
    assert specs(instance) == (
        [("input-0", "FP64", (-1, 4))],
        [("predict", "INT64", (-1,)), ("predict_proba", "FP64", (-1, 3))],
    )
    assert instance.quick


def test_predict_is_the_default_and_other_methods_are_requested_by_name(tmp_path: Path, estimator: Any) -> None:
    instance = sklearn.load(dumped(tmp_path / "model.joblib", estimator))
    assert answer(instance, x=ROW) == {"predict": [0]}
    both = answer(instance, "predict_proba", "predict", x=ROW)
    assert list(both) == ["predict_proba", "predict"]
    assert np.allclose(both["predict_proba"], estimator.predict_proba(ROW))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_a_matrix_may_have_any_name_and_number_type(tmp_path: Path, estimator: Any, dtype: Any) -> None:
    instance = sklearn.load(dumped(tmp_path / "model.joblib", estimator))
    expected = estimator.predict(ROW.astype(dtype)).tolist()
    assert answer(instance, anything=ROW.astype(dtype)) == {"predict": expected}


def test_requests_of_a_batch_are_predicted_together(tmp_path: Path, estimator: Any, data: Any) -> None:
    instance = sklearn.load(dumped(tmp_path / "model.joblib", estimator))
    answers = instance.execute([request(x=data.x[:2]), request(x=data.x[50:51]), request(x=data.x[100:103])])
    assert [a["predict"].array.tolist() for a in answers] == [
        estimator.predict(data.x[rows]).tolist() for rows in (slice(0, 2), slice(50, 51), slice(100, 103))
    ]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": [[1.0, 2.0]]}, r"model 'm': input 'x' has shape \[1, 2\], expected \[-1, 4\]"),
        ({"x": [1.0, 2.0, 3.0, 4.0]}, r"input 'x' has shape \[4\], expected \[-1, 4\]"),
        ({"x": [["a", "b", "c", "d"]]}, "input 'x' is BYTES, expected numbers"),
        ({"x": [[np.nan, 1, 1, 1]]}, "the model rejects the input: Input X contains NaN"),
        ({"a": [1.0], "b": [2.0]}, r"takes one tensor of shape \[-1, 4\], got a, b"),
    ],
)
def test_a_table_that_does_not_fit_is_the_clients_mistake(
    tmp_path: Path, estimator: Any, inputs: dict[str, Any], message: str
) -> None:
    instance = sklearn.load(dumped(tmp_path / "model.joblib", estimator))
    with pytest.raises(BadRequest, match=message):
        answer(instance, **inputs)


def test_columns_by_name_become_the_matrix_in_the_order_of_the_training(tmp_path: Path, data: Any) -> None:
    from sklearn.tree import DecisionTreeClassifier

    model = DecisionTreeClassifier(random_state=0).fit(data.frame, data.y)
    instance = sklearn.load(dumped(tmp_path / "model.joblib", model))
    columns = {name: data.frame[name].to_numpy()[:3] for name in reversed(data.frame.columns)}
    expected = model.predict(data.frame[:3]).tolist()
    assert answer(instance, **columns) == {"predict": expected}
    assert answer(instance, x=data.x[:3]) == {"predict": expected}
    (matrix,) = tensor_metadata(instance.inputs)
    assert matrix["parameters"] == {"columns": tuple(data.frame.columns)}
    rows = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    decoded = decode_predict("m", 1, {"instances": rows}, instance.inputs, batched=True)
    (reply,) = instance.execute([decoded.request])
    assert reply["predict"].array.tolist() == expected
    columns.pop("petal width (cm)")
    with pytest.raises(BadRequest, match=r"column 'petal width \(cm\)' is missing; its columns are sepal length"):
        answer(instance, **columns)


def test_a_column_transformer_gets_a_data_frame_with_its_strings(tmp_path: Path, mixed: Any) -> None:
    instance = sklearn.load(dumped(tmp_path / "model.joblib", mixed))
    assert specs(instance) == (
        [("age", "FP64", (-1, 1)), ("city", "BYTES", (-1, 1))],
        [("predict", "BYTES", (-1,)), ("predict_proba", "FP64", (-1, 2))],
    )
    assert answer(instance, city=[b"Rome", b"Bern"], age=[30, 20]) == {"predict": [b"yes", b"no"]}
    assert answer(instance, city=[[b"Rome"]], age=[[30.0]]) == {"predict": [b"yes"]}
    decoded = decode_predict("m", 1, {"instances": [{"age": True, "city": "Rome"}]}, instance.inputs, batched=True)
    assert decoded.request.inputs["age"].array.tolist() == [[1.0]]
    expected = answer(instance, city=[b"Rome"], age=[1.0])["predict"]
    assert instance.execute([decoded.request])[0]["predict"].array.tolist() == expected
    with pytest.raises(BadRequest, match="column 'city' is INT64, expected BYTES"):
        answer(instance, city=[1], age=[2])
    with pytest.raises(BadRequest, match="the model rejects the input: Found unknown categories"):
        answer(instance, city=[b"Oslo"], age=[2])


def test_a_pipeline_that_begins_with_a_vectorizer_takes_strings(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(["good film", "bad film"], ["up", "down"])
    instance = sklearn.load(dumped(tmp_path / "model.joblib", model))
    assert specs(instance)[0] == [("input-0", "BYTES", (-1, 1))]
    assert answer(instance, text=[b"a good one", b"bad"]) == {"predict": [b"up", b"down"]}


def test_a_transformer_transforms(tmp_path: Path, data: Any) -> None:
    from sklearn.preprocessing import OneHotEncoder

    model = OneHotEncoder(handle_unknown="ignore").fit(data.y.reshape(-1, 1))
    instance = sklearn.load(dumped(tmp_path / "model.joblib", model))
    assert answer(instance, x=[[1]]) == {"transform": [[0, 1, 0]]}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["RandomForestClassifier", "ExtraTreesClassifier", "RandomForestRegressor"])
def test_a_forest_gives_what_scikit_learn_does_in_one_thread(
    tmp_path: Path, data: Any, kind: str, scaled: bool
) -> None:
    from sklearn import ensemble
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    forest = getattr(ensemble, kind)(5, n_jobs=-1, random_state=0)
    model = make_pipeline(StandardScaler(), forest) if scaled else forest
    model.fit(data.x, data.y)
    instance = sklearn.load(dumped(tmp_path / "model.joblib", model))
    names = [output.name for output in instance.outputs]
    assert names == (["predict"] if "Regressor" in kind else ["predict", "predict_proba"])
    for name, got in answer(instance, *names, x=data.x[::7]).items():
        assert np.array_equal(got, getattr(model, name)(data.x[::7]))
    missing = np.array([[np.nan, 1, 1, 1]])
    assert answer(instance, x=missing)["predict"] == pytest.approx(model.predict(missing))
    with pytest.raises(BadRequest, match="infinity"):
        answer(instance, x=[[np.inf, 1, 1, 1]])


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.joblib"])
def test_a_pickle_is_refused_with_the_line_that_pins_it(tmp_path: Path, estimator: Any, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(estimator))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(LoadFailed, match=f"set --trust-pickle {name}={digest}"):
        sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    assert answer(sklearn.load(pinned(path)), x=ROW) == {"predict": [0]}


def test_a_file_beside_a_pinned_pickle_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from joblib.numpy_pickle_compat import NDArrayWrapper

    path = tmp_path / "model.joblib"
    path.write_bytes(pickle.dumps(NDArrayWrapper("model.joblib_01.npy", np.ndarray)))
    pickled = np.array([_RunsCode(tmp_path / "ran")], dtype=object)
    np.save(tmp_path / "model.joblib_01.npy", pickled, allow_pickle=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadFailed, match=r"joblib_01\.npy, which --trust-pickle does not cover"):
        sklearn.load(pinned(path))
    assert not (tmp_path / "ran").exists()


class _RunsCode:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_a_forest_refuses_the_rows_of_a_step_that_have_too_few_features(tmp_path: Path, data: Any) -> None:
    from sklearn.decomposition import PCA
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(PCA(2).fit(data.x), RandomForestClassifier(2).fit(data.x, data.y))
    with pytest.raises(BadRequest, match="X has 2 features, but RandomForestClassifier is expecting 4"):
        answer(sklearn.load(dumped(tmp_path / "model.joblib", model)), x=data.x)


def test_version_skew_is_one_line_of_the_log(tmp_path: Path, estimator: Any, caplog: pytest.LogCaptureFixture) -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(with_mean=False), StandardScaler()).fit(ROW)
    path = tmp_path / "model.pkl"
    import sklearn as library

    path.write_bytes(pickle.dumps(model).replace(library.__version__.encode(), b"0.9.9"[: len(library.__version__)]))
    with caplog.at_level(logging.WARNING):
        sklearn.load(pinned(path))
    lines = [r.getMessage() for r in caplog.records if "was saved by scikit-learn 0.9.9" in r.getMessage()]
    assert len(lines) == 1
    assert "install scikit-learn==0.9.9" in lines[0]


class OwnTransformer:
    """A class that the server does not have, once it is gone from this module."""


def test_a_pickle_of_code_that_is_not_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(OwnTransformer()))
    monkeypatch.delattr(f"{__name__}.OwnTransformer")
    with pytest.raises(LoadFailed, match=r"OwnTransformer, which is not in the tests here \(Can't get attribute"):
        sklearn.load(pinned(path))
    path.write_bytes(b"\x80\x04\x8c\x0eno_such_module\x8c\x01X\x93.")
    with pytest.raises(LoadFailed, match=r"put the no_such_module\.py that defines it into the folder of model\.pkl"):
        sklearn.load(pinned(path))
    monkeypatch.setattr("__main__.of_the_server", len, raising=False)
    path.write_bytes(b"c__main__\nof_the_server\n.")
    with pytest.raises(LoadFailed, match=r"needs __main__\.of_the_server, of the script that saved it") as failure:
        sklearn.load(pinned(path))
    assert (failure.value.__cause__, failure.value.__suppress_context__) == (None, True)  # one line for its reader
    (tmp_path / "model.py").write_text("of_the_server = print")  # has none of the methods of an estimator
    with pytest.raises(LoadFailed, match="holds a builtin_function"):
        sklearn.load(pinned(path))
    path.write_bytes(b"nothing")
    with pytest.raises(LoadFailed, match=r"model\.pkl is damaged or not an estimator"):
        sklearn.load(pinned(path))


OWN = """
from sklearn.base import BaseEstimator, TransformerMixin
class Shift(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None): return self
    def transform(self, x): return x + {shift}
def double(x): return 2 * x
"""


@pytest.mark.parametrize("library", ["joblib", "pickle", "cloudpickle", "skops.io"])
def test_own_classes_and_functions_are_found_in_the_modules_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    before, loaded = set(sys.modules), []
    for shift in (1, 10):
        folder = tmp_path / str(shift)
        folder.mkdir()
        (folder / "feats.py").write_text(OWN.format(shift=shift))
        path = folder / ("m.skops" if library == "skops.io" else "m.pkl")
        with monkeypatch.context() as patch, path.open("wb") as file:
            patch.syspath_prepend(folder)
            feats = importlib.import_module("feats")
            model = make_pipeline(feats.Shift(), FunctionTransformer(feats.double))
            importlib.import_module(library).dump(model.fit(ROW), file)
        del sys.modules["feats"]
        loaded.append(sklearn.load(pinned(path)))
    assert [answer(each, x=[[1.0]]) for each in loaded] == [{"transform": [[4.0]]}, {"transform": [[22.0]]}]
    for each in loaded:
        assert not each.quick
    del each
    loaded.clear()
    gc.collect()
    assert not {name for name in set(sys.modules) - before if "feats" in name}


@pytest.mark.parametrize(
    ("backend", "name", "message"),
    [
        (xgboost, "model.json", "is not an XGBoost model"),
        (lightgbm, "model.txt", "is not a LightGBM model"),
        (catboost, "model.cbm", "is not a CatBoost model"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, backend: Any, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"nothing at all")
    with pytest.raises(LoadFailed, match=message) as failed:
        backend.load(LoadSpec(ModelConfig("m"), 1, tmp_path / name, tmp_path))
    assert ".so" not in str(failed.value)  # a stack trace names paths of this machine, and hides the reason


def test_a_library_that_is_missing_names_its_extra() -> None:
    with pytest.raises(LoadFailed, match=r"Booster models need the no_booster extra: .* install .*no_booster"):
        open_library("no_booster", "libbooster.so", "Booster", 1)
    with pytest.raises(LoadFailed, match=r"Booster models need libbooster\.so, which cannot be opened"):
        open_library("joblib", "libbooster.so", "Booster", 1)


@pytest.mark.parametrize("before", [None, "4"])
def test_libraries_are_opened_for_one_thread_unless_the_environment_says_more(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before:
        monkeypatch.setenv("OMP_NUM_THREADS", before)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with openmp_threads(1):
        assert os.environ["OMP_NUM_THREADS"] == (before or "1")
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_a_pinned_pickle_that_is_overwritten_after_its_check_is_not_read(
    tmp_path: Path, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import joblib

    spec, load = dumped(tmp_path / "model.joblib", estimator), joblib.load

    def overwrite_then_load(file: Any) -> Any:
        spec.path.write_bytes(pickle.dumps(Planted()))
        return load(file)

    monkeypatch.setattr(joblib, "load", overwrite_then_load)
    assert answer(sklearn.load(spec), x=ROW) == {"predict": [0]}
    assert not planted()


def test_requests_do_not_read_all_categories_of_a_column_again() -> None:
    class Categories(list[str]):
        reads = 0

        def __iter__(self) -> Iterator[str]:
            self.reads += 1
            return super().__iter__()

    cities = Categories(f"city-{index}" for index in range(100))
    features = CategoricalFeatures("m", ["city"], {"city": cities})
    before, row = cities.reads, {"city": Tensor("BYTES", np.array([[b"city-7"], [b""]], object))}
    assert np.array_equal(features.read(row), [[7], [np.nan]], equal_nan=True)
    assert cities.reads == before
