"""XGBoost models in its own formats: JSON and UBJSON, whatever the file is called.

A file saved by XGBClassifier is served as one: `predict` gives classes and `predict_proba` their probabilities. Any
other gives what its booster predicts. Models run by the library's C API: the Python package imports pandas, SciPy and
scikit-learn, which takes longer than all the rest of a cold start.
"""

import ctypes
import json
import re
from typing import Any, Final

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec, first_line
from pilotlight_predictor.backends.tabular import Features, Methods, TableInstance, numbers, open_library, thread_count
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
        count, texts = ctypes.c_uint64(), ctypes.POINTER(ctypes.c_char_p)()
        self._call(
            "XGBoosterGetStrFeatureInfo", self._handle, b"feature_name", ctypes.byref(count), ctypes.byref(texts)
        )
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
    features = Features(spec.config.name, booster.width, booster.names, datatype="FP32")
    instance = TableInstance(features, _methods(booster))
    if len(instance.outputs) > 1:  # of a classifier; its file has the number of classes, which are 0, 1, …
        instance.labels = {"predict_proba": [str(label) for label in range(instance.outputs[1].shape[-1])]}
    return instance


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
