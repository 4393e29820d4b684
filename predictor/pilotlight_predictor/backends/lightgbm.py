"""LightGBM models in its text format. `predict` gives the booster's output: values, or probabilities of classes.

Models run by the library's C API: the Python package imports pandas, SciPy and scikit-learn, which takes longer than
all the rest of a cold start.
"""

import ctypes
import json
import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec, first_line
from pilotlight_predictor.backends.tabular import (
    CategoricalFeatures,
    Categories,
    Features,
    TableInstance,
    check_categories,
    numbers,
    open_library,
    thread_count,
    warn_of_codes,
)
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.errors import LoadFailed

_NAME_LENGTH: Final = 1024
_PARAMETERS: Final = b"\nparameters:"
_COLUMNS: Final = re.compile(rb"^\[categorical_feature: ([\d,]+)\]", re.MULTILINE)
_CATEGORIES: Final = re.compile(rb"^pandas_categorical:(\[.*)", re.MULTILINE)
# Instead of a log on stdout; failures are raised.
_SILENT: Final = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda line: None)


class Booster:
    """A booster of lib_lightgbm. Threads may share it. Errors of the library are ValueErrors."""

    def __init__(self, library: Any, path: str, threads: int) -> None:
        self._library, self._handle, self._options = library, ctypes.c_void_p(), f"num_threads={threads}".encode()
        library.LGBM_GetLastError.restype = ctypes.c_char_p
        count = ctypes.c_int()
        self._call("LGBM_BoosterCreateFromModelfile", path.encode(), ctypes.byref(count), ctypes.byref(self._handle))
        self._call("LGBM_BoosterGetNumFeature", self._handle, ctypes.byref(count))
        self.width = count.value
        self._call("LGBM_BoosterGetNumClasses", self._handle, ctypes.byref(count))
        self._classes = count.value
        self._call("LGBM_BoosterNumModelPerIteration", self._handle, ctypes.byref(count))
        if count.value != self._classes:  # it would write as many results, past the end of ours
            raise ValueError(f"it has {count.value} trees per iteration for num_class={self._classes}")

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            raise ValueError(self._library.LGBM_GetLastError().decode(errors="replace"))

    @property
    def names(self) -> list[str]:
        buffers = [ctypes.create_string_buffer(_NAME_LENGTH) for _ in range(self.width)]
        pointers = (ctypes.c_void_p * self.width)(*map(ctypes.addressof, buffers))
        count, longest = ctypes.c_int(), ctypes.c_size_t()
        self._call(
            "LGBM_BoosterGetFeatureNames", self._handle, self.width, ctypes.byref(count), ctypes.c_size_t(_NAME_LENGTH),
            ctypes.byref(longest), pointers,
        )  # fmt: skip
        return [buffer.value.decode(errors="replace") for buffer in buffers]  # longer ones are cut

    def predict(self, table: Array) -> Array:
        table = numbers(table)
        rows, width = table.shape
        result, length = np.empty(rows * self._classes), ctypes.c_int64()
        source, target = (ctypes.c_void_p(array.ctypes.data) for array in (table, result))
        # Row-major; a normal prediction, from the first iteration to the last.
        self._call(
            "LGBM_BoosterPredictForMat", self._handle, source, int(table.itemsize == 8), ctypes.c_int32(rows),
            ctypes.c_int32(width), 1, 0, 0, -1, self._options, ctypes.byref(length), target,
        )  # fmt: skip
        return result.reshape(rows, self._classes) if self._classes > 1 else result


def prepare() -> None:
    _open(1)


def load(spec: LoadSpec) -> TableInstance:
    try:
        check_complete(spec.path)
        booster = Booster(_open(thread_count(spec)), str(spec.path), thread_count(spec))
    except ValueError as error:
        raise LoadFailed(f"{spec.path.name} is not a LightGBM model: {first_line(error)}") from None
    with spec.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        categories = read_categories(content[max(content.rfind(_PARAMETERS), 0) :], booster.names)
    return TableInstance(_features(spec, booster, categories), {"predict": booster.predict})


def read_categories(parameters: bytes, names: Sequence[str]) -> Categories:
    """Return the categories of a model that was trained with a DataFrame, from the parameters at its end.

    Columns have none if the values do not fit them: the file was edited, or has columns of codes, too.
    """
    indices, values = _COLUMNS.search(parameters), _CATEGORIES.search(parameters)
    if indices is None or values is None:
        return {}
    columns: list[str] = []
    try:
        columns += [names[int(index)] for index in indices[1].split(b",")]
        categories = json.loads(values[1])
        check_categories(categories)
        return dict(zip(columns, categories, strict=True)) if categories else {}
    except (IndexError, RecursionError, ValueError):
        return dict.fromkeys(columns, ())


def _features(spec: LoadSpec, booster: Booster, categories: Categories) -> Features:
    model, names = spec.config.name, booster.names
    if any(categories.values()):
        return CategoricalFeatures(model, names, categories, unknown=True)
    if categories:
        fix = "train the model with a DataFrame whose categorical columns all have the dtype category"
        warn_of_codes(spec.path.name, model, [*categories], fix)
    return Features(model, booster.width, names)


def check_complete(path: Path) -> None:
    """Raise ValueError for a model that is cut off: the library would end the process, in threads of its own."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"\nTree=") >= 0 and content.rfind(b"\nend of trees") < 0:
            raise ValueError("it is cut off, the line 'end of trees' is missing; copy the file again")


def _open(threads: int) -> Any:
    library = open_library("lightgbm", "lib_lightgbm.so", "LightGBM", threads)
    library.LGBM_RegisterLogCallback(_SILENT)
    return library
