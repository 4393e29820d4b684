"""CatBoost models in its binary format. Categorical and text columns, as the file declares them, are strings."""

from functools import partial
from typing import Any, Final

from pilotlight_predictor.backends.base import LoadSpec, first_line, import_library
from pilotlight_predictor.backends.tabular import Features, Methods, TableInstance, thread_count
from pilotlight_predictor.errors import LoadFailed

CLASSIFIERS: Final = frozenset({"Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"})


def prepare() -> None:
    import_library("catboost", "CatBoost models", "catboost")


def load(spec: LoadSpec) -> TableInstance:
    model = import_library("catboost", "CatBoost models", "catboost").CatBoost()
    try:
        model.load_model(str(spec.path))
    except Exception as error:
        raise LoadFailed(f"{spec.path.name} is not a CatBoost model: {first_line(error)}") from None
    names = [str(name) for name in model.feature_names_]
    texts = [names[index] for index in (*model.get_cat_feature_indices(), *model.get_text_feature_indices())]
    features = Features(spec.config.name, len(names), names, texts, framed=bool(texts), datatype="FP32")
    return TableInstance(features, _methods(model, thread_count(spec)))


def _methods(model: Any, threads: int) -> Methods:
    predict = partial(model.predict, thread_count=threads)
    loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
    if loss not in CLASSIFIERS:
        return {"predict": predict}
    return {
        "predict": lambda table: predict(table, prediction_type="Class").reshape(len(table)),
        "predict_proba": partial(predict, prediction_type="Probability"),
    }
