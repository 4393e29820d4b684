"""CatBoost models in its binary format. Categorical columns are strings; the file tells which they are."""

from functools import partial
from typing import Any, Final

from pilotlight_predictor.backends.base import LoadSpec, first_line
from pilotlight_predictor.backends.tabular import Features, Methods, TableInstance, probe, thread_count
from pilotlight_predictor.errors import LoadFailed

CLASSIFIERS: Final = frozenset({"Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"})


def prepare() -> None:
    """Import catboost, during a download."""
    _import()


def load(spec: LoadSpec) -> TableInstance:
    catboost = _import()
    model = catboost.CatBoost()
    try:
        model.load_model(str(spec.path))
    except Exception as error:
        raise LoadFailed(f"{spec.path.name} is no CatBoost model: {first_line(error)}") from None
    names = [str(name) for name in model.feature_names_]
    texts = [names[index] for index in (*model.get_cat_feature_indices(), *model.get_text_feature_indices())]
    features = Features(spec.config.name, len(names), names, texts, framed=bool(texts), datatype="FP32")
    methods = _methods(model, thread_count(spec))
    return TableInstance(features, methods, probe(features, methods, {}))


def _import() -> Any:
    try:
        import catboost
    except ImportError as error:
        raise LoadFailed(
            f"CatBoost models need the catboost extra: pip install 'pilotlight[catboost]' ({error})"
        ) from None
    return catboost


def _methods(model: Any, threads: int) -> Methods:
    predict = partial(model.predict, thread_count=threads)
    loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
    if loss not in CLASSIFIERS:
        return {"predict": predict}
    return {
        "predict": lambda table: predict(table, prediction_type="Class").reshape(len(table)),
        "predict_proba": partial(predict, prediction_type="Probability"),
    }
