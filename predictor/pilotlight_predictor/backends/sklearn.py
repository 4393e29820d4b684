"""scikit-learn estimators and pipelines: pickles of joblib or pickle, which must be pinned, and files of skops.

Estimators of other libraries with scikit-learn's interface (XGBClassifier, LGBMRegressor …) are served as well.
"""

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextvars import Context
from functools import partial
from types import FunctionType
from typing import Any, Final, NoReturn

import numpy as np

from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.model_formats import SKOPS_TYPES
from pilotlight_predictor.backends import lightgbm, xgboost
from pilotlight_predictor.backends.base import LoadSpec, check_unpacked_memory, first_line, import_library
from pilotlight_predictor.backends.python.source import UserModule
from pilotlight_predictor.backends.tabular import (
    CategoricalFeatures,
    Categories,
    Features,
    Methods,
    TableInstance,
    Texts,
    openmp_threads,
    thread_count,
)
from pilotlight_predictor.backends.trusted_pickles import Find, find_named, finding, open_trusted
from pilotlight_predictor.core.tensors import Array, TensorSpec, datatype_of
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log

METHODS: Final = ("predict", "predict_proba", "transform")
# Forests call their trees through joblib, which takes 65 µs for each of them; the trees themselves take 4 µs.
FORESTS: Final = frozenset(
    {"RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor"}
)
FOREST_MODULE: Final = "sklearn.ensemble._forest"
# Their estimators give features to trees without checking how many these expect.
TREES: Final = frozenset({"sklearn.tree._classes", "sklearn.ensemble._gb", "sklearn.ensemble._iforest", FOREST_MODULE})
PLAIN: Final = frozenset({str, int, float, bool, type, type(None)})  # which hold nothing, in long vocabularies
LIBRARIES: Final = frozenset({"sklearn", "numpy", "xgboost", "lightgbm", "catboost"})  # no code of users


def prepare() -> None:
    _import(1)


def load(spec: LoadSpec) -> TableInstance:
    code = UserModule(spec.folder / "model.py", spec.model_dir)
    try:
        instance = _load(spec, code)
    except BaseException:
        code.close()
        raise
    weakref.finalize(instance, code.close)  # clones are the instance itself
    return instance


def _load(spec: LoadSpec, code: UserModule) -> TableInstance:
    exceptions = _import(thread_count(spec))
    with warnings.catch_warnings(record=True) as skew:
        warnings.simplefilter("always", exceptions.InconsistentVersionWarning)
        estimator = read_estimator(spec, code.pickled)
    _log_version_skew(spec, [w.message for w in skew])
    found = list(_parts(estimator))
    parts = [part for part in found if hasattr(part, "get_params")]
    for part in parts:
        if hasattr(part, "n_jobs"):
            part.n_jobs = thread_count(spec)
    # A matrix is what the estimator saw as well, under names; each warning would cost more than the prediction.
    warnings.filterwarnings("ignore", "X does not have valid feature names")
    features, methods = _features(spec.config.name, estimator, parts), _methods(estimator)
    if not methods:
        raise LoadFailed(f"{spec.path.name} holds a {type(estimator).__name__}, which has none of {', '.join(METHODS)}")
    code_of = [*map(type, parts), *(part for part in found if isinstance(part, FunctionType))]
    quick = bool(parts) and all(str(each.__module__).partition(".")[0] in LIBRARIES for each in code_of)
    known = _outputs(estimator)
    instance = TableInstance(features, methods, known, quick=quick)
    if "predict_proba" in known:
        instance.labels = {"predict_proba": [str(label) for label in estimator.classes_]}
    return instance


def _import(threads: int) -> Any:
    with openmp_threads(threads):
        return import_library("sklearn.exceptions", "scikit-learn models", "sklearn")


def read_estimator(spec: LoadSpec, own: Find) -> Any:
    """Read a file of joblib, pickle or skops. Raise LoadFailed if it is not trusted or cannot be read.

    `own` finds classes and functions that are not installed.
    """
    try:
        if spec.path.suffix == ".skops":
            return _read_skops(spec, own)
        import joblib
        from joblib.numpy_pickle_compat import NDArrayWrapper, ZNDArrayWrapper

        NDArrayWrapper.read = ZNDArrayWrapper.read = _refuse_file_of_array
        trusted = open_trusted(spec.path, spec.trusted_pickles, "a pickle", "save it by skops.io.dump")
        with trusted as file, finding(own, spec.path.name):
            return joblib.load(file)
    except LoadFailed:
        raise
    except Exception as error:  # of many types
        raise LoadFailed(f"{spec.path.name} is damaged or not an estimator: {first_line(error)}") from error


def _refuse_file_of_array(wrapper: Any, unpickler: Any) -> NoReturn:
    """Refuse a file beside a pickle, from the working directory: it may be a pickle, too, and no pin covers it."""
    message = f"joblib before 0.10 wrote its arrays into other files, such as {wrapper.filename}"
    raise LoadFailed(f"{message}, which --trust-pickle does not cover: load it and save it again by joblib.dump")


def _read_skops(spec: LoadSpec, own: Find) -> Any:
    try:
        from skops import io
        from skops.io import _general, _utils
    except ImportError:
        raise LoadFailed(f"files of skops need the sklearn extra: {install_command('sklearn')}") from None
    _general._import_obj = _utils._import_obj = partial(find_named, None)  # which would import `__main__`, too
    check_unpacked_memory(spec.path)
    content = spec.path.read_bytes()  # once: the types that are judged must be those that are loaded
    untrusted = io.get_untrusted_types(data=content)
    if unvetted := sorted(set(untrusted) - SKOPS_TYPES):
        what = f"types that are not known to be safe ({', '.join(unvetted)})"
        trusted = open_trusted(spec.path, spec.trusted_pickles, what, "save it in another format, such as ONNX")
        with trusted as file, finding(own, spec.path.name):
            return io.loads(file.read(), trusted=untrusted)
    estimator = Context().run(io.loads, content, trusted=untrusted)  # not by the lookup of another model that loads it
    _check_arrays(list(_parts(estimator)))
    return estimator


def _check_arrays(parts: list[Any]) -> None:
    """Raise ValueError for a tree whose indices lead out of its arrays or features: scikit-learn does not check them.

    Nor does libsvm for support vectors, whose numbers it is given by other arrays.
    Nor does it for trees that are more than the outputs they add to. Trees of neighbours are made again from their
    points, which takes as long as the fit.
    """
    from sklearn.neighbors import BallTree, KDTree

    for part in parts:
        if isinstance(part, (BallTree, KDTree)):
            state = part.__getstate__()
            new = type(part)(state[0], leaf_size=state[4], metric=state[-2], sample_weight=state[-1])
            part.__setstate__(new.__getstate__())
        elif type(part).__module__ in TREES:
            width = min([getattr(part, "n_features_in_", 0), *map(len, getattr(part, "estimators_features_", ()))])
            members = [*np.ravel(getattr(part, "estimators_", ())), *([part] if hasattr(part, "tree_") else [])]
            if not all(_is_sound(each.tree_, min(width, each.n_features_in_)) for each in members):
                raise ValueError(f"a tree of its {type(part).__name__} has indices that are out of range")
        elif type(part).__module__ == "sklearn.svm._classes" and hasattr(part, "support_") and not _fit_together(part):
            raise ValueError(f"arrays of its {type(part).__name__} do not fit each other")
    for part in parts:
        if hasattr(part, "_raw_predict_init") and hasattr(part, "estimators_"):  # last, since it runs other parts
            outputs = part._raw_predict_init(np.zeros((1, part.n_features_in_))).shape[1]
            if part.estimators_.shape[1] != outputs:
                raise ValueError(f"its {type(part).__name__} has other numbers of trees and of outputs")


def _is_sound(tree: Any, width: int) -> bool:
    """Whether all nodes of a tree are there, have children behind them, and split by one of the features."""
    from sklearn.tree._tree import Tree

    if not isinstance(tree, Tree) or not 0 < tree.node_count <= tree.capacity or not tree.value.size:
        return False
    inner = tree.children_left != -1
    children = np.stack([tree.children_left, tree.children_right])[:, inner]
    behind = (children > np.arange(tree.node_count)[inner]) & (children < tree.node_count)
    features = tree.feature[inner]
    return bool(behind.all() and (features >= 0).all() and (features < width).all())


def _fit_together(machine: Any) -> bool:
    """Whether the arrays of a support vector machine have the lengths that libsvm reads; those of scipy need a pin."""
    support, counts = machine.support_, machine._n_support
    pairs = len(counts) * (len(counts) - 1) // 2
    within = machine.support_vectors_.shape == (len(support), machine.n_features_in_)
    if callable(machine.kernel) or machine.kernel == "precomputed":  # rows of the kernel are read by their indices
        within = ((support >= 0) & (support < machine.shape_fit_[0])).all()
    if machine._impl in ("c_svc", "nu_svc"):
        within = within and counts.sum() == len(support) and counts.min() >= 0
    shapes = (len(machine._intercept_), machine._dual_coef_.shape) == (pairs, (len(counts) - 1, len(support)))
    return bool(within and shapes and {len(machine._probA), len(machine._probB)} <= {0, pairs} and not machine._sparse)


def _log_version_skew(spec: LoadSpec, skew: list[Any]) -> None:
    """Log one line for all estimators of a file that another version of scikit-learn saved."""
    versions = {w.original_sklearn_version: w.current_sklearn_version for w in skew if hasattr(w, "estimator_name")}
    for saved, current in versions.items():
        message = (
            f"{spec.path.name} was saved by scikit-learn {saved} and is read by {current}: predictions may differ or"
            f" fail; save it again, or install scikit-learn=={saved}"
        )
        log("model.version_skew", message, level="WARNING", model=spec.config.name)


def _parts(estimator: Any) -> Iterator[Any]:
    """Yield an estimator and all within it: steps of pipelines, columns' transformers, fitted ones, trees, lists."""
    pending, seen = [estimator], dict[int, Any]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part  # so that no other object gets its id
        yield part
        values: Iterable[Any] = ()
        if isinstance(part, dict):
            values = (*part, *part.values())
        elif isinstance(part, (list, tuple, set, frozenset)):
            values = part
        elif isinstance(part, np.ndarray):
            values = part.ravel().tolist() if part.dtype.hasobject else ()
        elif hasattr(part, "get_params") or type(part).__module__.startswith("sklearn."):
            values = getattr(part, "__dict__", {}).values()
        pending += [value for value in values if type(value) not in PLAIN]


def _features(model: str, estimator: Any, parts: list[Any]) -> Features:
    first = estimator
    while hasattr(first, "steps"):
        first = first.steps[0][1]
    if type(first).__name__.endswith("Vectorizer") and type(first).__name__ != "DictVectorizer":
        return Texts(model, 1)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    categories = _categories(estimator, names)
    if any(categories.values()):
        return CategoricalFeatures(model, names, categories, unknown=hasattr(estimator, "booster_"))
    width = int(getattr(estimator, "n_features_in_", None) or len(names) or -1)
    choosers = [part for part in parts if hasattr(part, "transformers_")] if names else []
    texts = {names[column] if type(column) is int else column for part in choosers for column in _text_columns(part)}
    return Features(model, width, names, [name for name in names if name in texts], framed=bool(choosers))


def _categories(estimator: Any, names: list[str]) -> Categories:
    """Return the categories of an estimator of XGBoost or LightGBM, which takes their codes in a matrix."""
    if hasattr(estimator, "get_booster"):
        from xgboost.core import _LIB

        return xgboost.read_categories(_LIB, estimator.get_booster().handle, names)
    if hasattr(estimator, "booster_"):
        return lightgbm.read_categories(estimator.booster_.model_to_string(num_iteration=1).encode(), names)
    return {}


def _text_columns(chooser: Any) -> Iterator[Any]:
    """Yield the columns of a ColumnTransformer whose fitted categories or vocabulary are strings."""
    for _, transformer, columns in chooser.transformers_:
        listed = list(columns) if isinstance(columns, (list, tuple, np.ndarray)) else [columns]
        for part in _parts(transformer):
            if hasattr(part, "vocabulary_"):
                yield from listed
            for column, values in zip(listed, getattr(part, "categories_", ()), strict=False):
                if values.dtype.kind in "OUS":
                    yield column


def _methods(estimator: Any) -> Methods:
    methods = {name: partial(_dense, getattr(estimator, name)) for name in METHODS if hasattr(estimator, name)}
    steps = getattr(estimator, "steps", None)
    forest = steps[-1][1] if steps else estimator
    if type(forest).__name__ not in FORESTS or type(forest).__module__ != FOREST_MODULE or forest.n_outputs_ != 1:
        return methods
    before = partial(_dense, estimator[:-1].transform) if steps and len(steps) > 1 else None

    def mean(table: Any) -> Any:
        """Return the mean of the trees, or None for what only the forest's own checks can judge."""
        rows = np.ascontiguousarray(before(table) if before else table, np.float32)
        valid = rows.shape[1:] == (forest.n_features_in_,) and np.isfinite(rows).all()
        return sum(tree.tree_.predict(rows) for tree in trees) / len(trees) if valid else None

    def predict(table: Any) -> Array:
        result = mean(table)
        if result is None:
            return methods["predict"](table)
        return classes.take(result.argmax(axis=1)) if classes is not None else result[:, 0]  # type: ignore[no-any-return]

    def predict_proba(table: Any) -> Array:
        result = mean(table)
        return methods["predict_proba"](table) if result is None else result

    trees, classes = forest.estimators_, getattr(forest, "classes_", None)
    return {"predict": predict, **({"predict_proba": predict_proba} if classes is not None else {})}


def _dense(method: Any, table: Any) -> Array:
    result = method(table)
    if hasattr(result, "toarray"):
        result = result.toarray()
    return result.to_numpy() if hasattr(result, "to_numpy") else result  # type: ignore[no-any-return]


def _outputs(estimator: Any) -> dict[str, TensorSpec]:
    """Return the outputs of a classifier by its classes; none if it has no array of them."""
    classes = getattr(estimator, "classes_", None)
    if classes is None or not hasattr(classes, "dtype"):
        return {}
    return {
        "predict": TensorSpec("predict", datatype_of(classes), (-1,)),
        "predict_proba": TensorSpec("predict_proba", "FP64", (-1, len(classes))),
    }
