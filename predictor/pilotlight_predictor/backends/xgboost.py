"""XGBoost models in its own formats: JSON and UBJSON, whatever the file is called.

A file saved by XGBClassifier is served as one: `predict` gives classes and `predict_proba` their probabilities. Any
other gives what its booster predicts. Models run by the library's C API: the Python package imports pandas, SciPy and
scikit-learn, which takes longer than all the rest of a cold start.
"""

import ctypes
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec, first_line
from pilotlight_predictor.backends.tabular import (
    CategoricalFeatures,
    Categories,
    Features,
    Methods,
    TableInstance,
    numbers,
    open_library,
    thread_count,
    warn_of_codes,
)
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.errors import LoadFailed

_SOURCE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: ")  # time, file and line before a message
_MATRIX: Final = b'{"missing": NaN, "nthread": 1}'
_PREDICTION: Final = (
    b'{"type": 0, "training": false, "iteration_begin": 0, "iteration_end": %d, "missing": NaN, "strict_shape": false,'
    b' "cache_id": 0}'
)


class Booster:
    """A booster of libxgboost. Threads may share it. Errors of the library are ValueErrors."""

    def __init__(self, library: Any, content: bytes, threads: int) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        library.XGBGetLastError.restype = ctypes.c_char_p
        self._call("XGBoosterCreate", None, ctypes.c_uint64(0), ctypes.byref(self._handle))
        self._call("XGBoosterLoadModelFromBuffer", self._handle, content, ctypes.c_uint64(len(content)))
        self._call("XGBoosterSetParam", self._handle, b"nthread", str(threads).encode())  # the file has the training's
        width = ctypes.c_uint64()
        self._call("XGBoosterGetNumFeature", self._handle, ctypes.byref(width))
        self.width = width.value
        best = int(self.attribute("best_iteration") or -1) + 1
        self._options = _PREDICTION % best
        text, length = ctypes.c_char_p(), ctypes.c_uint64()
        self._call("XGBoosterSaveJsonConfig", self._handle, ctypes.byref(length), ctypes.byref(text))
        self._linear = json.loads(text.value or b"")["learner"]["gradient_booster"]["name"] == "gblinear"

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            message = self._library.XGBGetLastError().decode(errors="replace")
            raise ValueError(_SOURCE.sub("", message.partition("\nStack trace:")[0]))

    def attribute(self, name: str) -> str:
        value, success = ctypes.c_char_p(), ctypes.c_int()
        self._call("XGBoosterGetAttr", self._handle, name.encode(), ctypes.byref(value), ctypes.byref(success))
        return (value.value or b"").decode() if success.value else ""

    @property
    def names(self) -> list[str]:
        return self._feature_info(b"feature_name")

    @property
    def types(self) -> list[str]:
        """Types of the features; `c` is a category. Empty if the file has none."""
        return self._feature_info(b"feature_type")

    @property
    def categories(self) -> Categories:
        return read_categories(self._library, self._handle, self.names)

    def _feature_info(self, field: bytes) -> list[str]:
        count, texts = ctypes.c_uint64(), ctypes.POINTER(ctypes.c_char_p)()
        self._call("XGBoosterGetStrFeatureInfo", self._handle, field, ctypes.byref(count), ctypes.byref(texts))
        return [texts[index].decode() for index in range(count.value)]

    def predict(self, table: Array) -> Array:
        table = numbers(table)
        interface = b'{"data": [%d, true], "shape": [%d, %d], "typestr": "%b", "version": 3}' % (
            table.__array_interface__["data"][0], *table.shape, table.dtype.str.encode(),
        )  # fmt: skip
        shape, dims, values = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64(), ctypes.POINTER(ctypes.c_float)()
        results = (ctypes.byref(shape), ctypes.byref(dims), ctypes.byref(values))
        if self._linear:  # gblinear has no prediction in place
            matrix = ctypes.c_void_p()
            self._call("XGDMatrixCreateFromDense", interface, _MATRIX, ctypes.byref(matrix))
            self._call("XGBoosterPredictFromDMatrix", self._handle, matrix, self._options, *results)
            self._call("XGDMatrixFree", matrix)
        else:
            self._call("XGBoosterPredictFromDense", self._handle, interface, self._options, None, *results)
        sizes = shape[: dims.value]
        # A copy: the next call of this thread overwrites the library's own.
        return np.frombuffer(ctypes.string_at(values, 4 * int(np.prod(sizes))), np.float32).reshape(sizes)


def prepare() -> None:
    _open(1)


def load(spec: LoadSpec) -> TableInstance:
    try:
        booster = Booster(_open(thread_count(spec)), spec.path.read_bytes(), thread_count(spec))
    except ValueError as error:
        raise LoadFailed(f"{spec.path.name} is not an XGBoost model for this version: {first_line(error)}") from None
    instance = TableInstance(_features(spec, booster), _methods(booster))
    if len(instance.outputs) > 1:  # of a classifier; its file has the number of classes, which are 0, 1, …
        instance.labels = {"predict_proba": [str(label) for label in range(instance.outputs[1].shape[-1])]}
    return instance


def read_categories(library: Any, booster: ctypes.c_void_p, names: Sequence[str]) -> Categories:
    """Return the categories of a booster's features; none if XGBoost before 3.1 is here or has saved the model.

    Raise LoadFailed for strings that are not UTF-8.
    """
    categories, text, width = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_uint64()
    library.XGBoosterGetNumFeature(booster, ctypes.byref(width))  # completes a booster that was unpickled
    export = getattr(library, "XGBoosterGetCategoriesExportToArrow", None)
    if export is None or export(booster, None, ctypes.byref(categories), ctypes.byref(text)):
        return {}
    try:
        features = json.loads(text.value or b"[]") or []
        return {name: _read_values(each) for name, each in zip(names, features, strict=False) if each}
    finally:
        library.XGBCategoriesFree(categories)


def _read_values(feature: Mapping[str, Any]) -> list[Any]:
    """Copy categories out of memory of the library: numbers, or strings as Arrow has them, joined, with offsets."""
    if "offsets" not in feature:
        return list(_copy(feature).tolist())
    text, ends = _copy(feature["values"]).tobytes(), _copy(feature["offsets"]).tolist()
    try:
        return [text[start:end].decode() for start, end in pairwise(ends)]
    except UnicodeDecodeError:
        raise LoadFailed("the XGBoost model has categories that are not UTF-8") from None


def _copy(interface: Mapping[str, Any]) -> Array:
    """Return a copy of the memory that an `__array_interface__` describes."""
    dtype, (size,) = np.dtype(interface["typestr"]), interface["shape"]
    return np.frombuffer(ctypes.string_at(interface["data"][0], size * dtype.itemsize), dtype)


def _features(spec: LoadSpec, booster: Booster) -> Features:
    names, categories = booster.names, booster.categories
    if categories:
        return CategoricalFeatures(spec.config.name, names, categories, datatype="FP32")
    if "c" in booster.types:
        columns = [name for name, kind in zip(names, booster.types, strict=False) if kind == "c"]
        fix = "train the model with a DataFrame and save it by XGBoost 3.1 or newer"
        warn_of_codes(spec.path.name, spec.config.name, columns, fix)
    return Features(spec.config.name, booster.width, names, datatype="FP32")


def _open(threads: int) -> Any:
    library = open_library("xgboost", "libxgboost.so", "XGBoost", threads)
    library.XGBSetGlobalConfig(b'{"verbosity": 0}')  # failures are raised
    return library


def _methods(booster: Booster) -> Methods:
    def probabilities(table: Array) -> Array:
        result = booster.predict(table)
        return np.column_stack((1 - result, result)) if result.ndim == 1 else result

    def classes(table: Array) -> Array:
        result = booster.predict(table)
        return (result > 0.5).astype(np.int64) if result.ndim == 1 else result.argmax(axis=1)

    saved = json.loads(booster.attribute("scikit_learn") or "{}")
    if saved.get("_estimator_type") == "classifier":
        return {"predict": classes, "predict_proba": probabilities}
    return {"predict": booster.predict}
