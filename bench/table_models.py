"""Models of tables, made and saved by scikit-learn, XGBoost and LightGBM, and the MLServer runtime of each."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.models import Model, Payload

FEATURES: Final = 20
ROW: Final = tuple(round(0.1 * index - 1, 1) for index in range(FEATURES))
TREES: Final = 100


def write_tables(directory: Path) -> list[Model]:
    """Make the files that are missing, each with the answer of its own library beside it."""
    models = []
    for name, (filename, make) in TABLES.items():
        path = directory / filename
        if not path.exists():
            answer = make(path, *_table())
            answer_path(path).write_text(json.dumps(np.ravel(answer).tolist()))
        models.append(Model(name, path, (FEATURES,), (1,)))
    return models


def answer_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.answer")


def table_payload(model: Model) -> Payload:
    inputs = [{"name": "x", "shape": [1, FEATURES], "datatype": "FP32", "data": ROW}]
    answer = tuple(float(value) for value in json.loads(answer_path(model.path).read_text()))
    return Payload(json.dumps({"inputs": inputs}).encode(), answer, {"Content-Type": "application/json"})


def _table() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, FEATURES)).astype(np.float32)
    return x, (x @ rng.standard_normal(FEATURES) + rng.standard_normal(2000) > 0).astype(np.int64)


def _row() -> Any:
    return np.array([ROW], np.float32)


def _sklearn(path: Path, x: Any, y: Any) -> Any:
    import joblib
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    joblib.dump(model, path)
    return model.predict(_row())


def _xgboost(path: Path, x: Any, y: Any) -> Any:
    from xgboost import XGBRegressor

    model = XGBRegressor(n_estimators=TREES, max_depth=6).fit(x, y)
    model.save_model(path)
    return model.predict(_row())


def _lightgbm(path: Path, x: Any, y: Any) -> Any:
    from lightgbm import LGBMRegressor

    model = LGBMRegressor(n_estimators=TREES, verbose=-1).fit(x, y)
    model.booster_.save_model(path)
    return model.predict(_row())


TABLES: Final[Mapping[str, tuple[str, Callable[[Path, Any, Any], Any]]]] = {
    "sklearn": ("sklearn.joblib", _sklearn),
    "xgboost": ("xgboost.ubj", _xgboost),
    "lightgbm": ("lightgbm.txt", _lightgbm),
}
RUNTIMES: Final = {
    "sklearn": "mlserver_sklearn.SKLearnModel",
    "xgboost": "mlserver_xgboost.XGBoostModel",
    "lightgbm": "mlserver_lightgbm.LightGBMModel",
}  # of MLServer
