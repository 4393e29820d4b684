"""Tables: the base of backends whose models take rows of features, as one matrix or as columns by name.

Requests are those of MLServer and KServe: one 2-D tensor under any name and of any numeric datatype, or one tensor per
column. Outputs are methods of the model (`predict`, `predict_proba`, `transform`); a request without outputs gets the
first of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.backends.base import Answer, LoadSpec, TensorInstance, first_line
from pilotlight_predictor.core.batch import merge, split
from pilotlight_predictor.core.requests import InferRequest, Inputs, Outputs
from pilotlight_predictor.core.tensors import Array, Tensor, TensorSpec, tensor, zeros
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.observability.logs import log

MATRIX: Final = "input-0"  # as KServe calls it; clients may use any other name
Methods = Mapping[str, Callable[[Any], Array]]
Categories = Mapping[str, Sequence[Any]]  # by name of their column, in order of their codes
_LISTED: Final = 10  # categories that an error names


class Features:
    """Features of a model: their number (-1: unknown), and their names if it has any.

    `texts`: names of columns that hold strings. `framed`: the model takes a DataFrame, else a matrix.
    """

    def __init__(
        self, model: str, width: int, names: Sequence[str] = (), texts: Sequence[str] = (), *, framed: bool = False,
        datatype: str = "FP64",
    ) -> None:  # fmt: skip
        self._model, self._width, self._names, self._texts = model, width, tuple(names), frozenset(texts)
        self._framed, self._datatype = framed, datatype

    @property
    def sample(self) -> Inputs | None:
        """A row that the model takes; None: zeros do."""
        return None

    @property
    def specs(self) -> list[TensorSpec]:
        if not self._texts and not self._framed:
            return [TensorSpec(MATRIX, self._datatype, (-1, self._width), columns=self._names)]
        return [TensorSpec(name, "BYTES" if name in self._texts else self._datatype, (-1, 1)) for name in self._names]

    def read(self, inputs: Inputs) -> Any:
        """Return the matrix or DataFrame of a request. Raise BadRequest with the input that does not fit."""
        if len(inputs) == 1:
            ((name, value),) = inputs.items()
            if name not in self._names or self._width == 1:
                return self._matrix(name, value)
        return self._columns(inputs)

    def _matrix(self, name: str, value: Tensor) -> Any:
        datatype, array = value
        if array.ndim == 1 and self._width == 1:
            array = array.reshape(-1, 1)
        if array.ndim != 2 or self._width not in {-1, array.shape[1]}:
            raise BadRequest(
                f"model '{self._model}': input '{name}' has shape {list(array.shape)}, expected [-1, {self._width}]"
            )
        if self._framed:
            columns = {name: Tensor(datatype, array[:, index]) for index, name in enumerate(self._names)}
            return self._frame(columns)
        if datatype == "BYTES":
            raise BadRequest(f"model '{self._model}': input '{name}' is BYTES, expected numbers")
        return array

    def _columns(self, inputs: Inputs) -> Any:
        if not self._names or inputs.keys() != set(self._names):
            raise self._misfit(inputs)
        columns = {}
        for name in self._names:
            datatype, array = inputs[name]
            if array.size != len(array):
                raise BadRequest(
                    f"model '{self._model}': column '{name}' has shape {list(array.shape)}, expected [-1, 1]"
                )
            if (datatype == "BYTES") != (name in self._texts) and not (self._framed and datatype == "BYTES"):
                expected = "BYTES" if name in self._texts else "numbers"
                raise BadRequest(f"model '{self._model}': column '{name}' is {datatype}, expected {expected}")
            columns[name] = Tensor(datatype, array.reshape(-1))
        if self._framed:
            return self._frame(columns)
        import numpy as np

        return np.column_stack([array for _, array in columns.values()])

    def _misfit(self, inputs: Inputs) -> BadRequest:
        if not self._names:
            return BadRequest(
                f"model '{self._model}' takes one tensor of shape [-1, {self._width}], got {', '.join(inputs)}"
            )
        missing = [name for name in self._names if name not in inputs]
        unknown = [name for name in inputs if name not in self._names]
        reason = f"column '{missing[0]}' is missing" if missing else f"there is no column '{unknown[0]}'"
        return BadRequest(f"model '{self._model}': {reason}; its columns are {', '.join(self._names)}")

    def _frame(self, columns: Inputs) -> Any:
        import pandas

        return pandas.DataFrame({name: _values(value) for name, value in columns.items()}, columns=list(self._names))


class CategoricalFeatures(Features):
    """Features of which some are categories, by name: the model gets a matrix, with their positions as codes.

    A column of strings may have codes instead, as a matrix has. Missing values are NaN, or empty strings; so is a value
    that is no category, if `unknown` are taken.
    """

    def __init__(
        self, model: str, names: Sequence[str], categories: Categories, *, datatype: str = "FP64", unknown: bool = False
    ) -> None:
        super().__init__(model, len(names), names, datatype=datatype)
        self._unknown, self._categories = unknown, {name: values for name, values in categories.items() if values}
        self._named = {name for name, values in self._categories.items() if any(isinstance(v, str) for v in values)}
        self._codes = {name: self._code_table(name) for name in self._categories}

    @property
    def sample(self) -> Inputs | None:
        import numpy as np

        first = {name: np.array([[values[0]]]) for name, values in self._categories.items()}
        known = {name: tensor(each.astype(str) if name in self._named else each) for name, each in first.items()}
        return {spec.name: known.get(spec.name) or zeros(spec.datatype, (1, 1)) for spec in self.specs}

    @property
    def specs(self) -> list[TensorSpec]:
        types = {name: "BYTES" if name in self._named else "FP64" for name in self._categories}
        return [TensorSpec(name, types.get(name, self._datatype), (-1, 1)) for name in self._names]

    def read(self, inputs: Inputs) -> Any:
        return super().read({name: self._coded(name, value) for name, value in inputs.items()})

    def _code_table(self, name: str) -> Mapping[Any, float]:
        """Return the codes of a column's categories, and that of the empty string, which is missing."""
        codes = {str(each) if name in self._named else each: code for code, each in enumerate(self._categories[name])}
        return {"": float("nan"), **codes}

    def _coded(self, name: str, value: Tensor) -> Tensor:
        if name not in self._categories or (value.datatype == "BYTES") != (name in self._named):
            return value
        import numpy as np

        codes, nan = self._codes[name], float("nan")
        values = list(_values(Tensor(value.datatype, value.array.reshape(-1))))
        for each in values:
            if not self._unknown and each not in codes and each == each:  # NaN is not
                raise self._no_category(name, each)
        coded = np.array([codes.get(each, nan) for each in values], np.float64)
        return Tensor("FP64", coded.reshape(value.array.shape))

    def _no_category(self, name: str, value: Any) -> BadRequest:
        categories, named = self._categories[name], name in self._named
        first = [repr(str(each) if named else each) for each in categories[:_LISTED]]
        listed = ", ".join(first) + (", …" if len(categories) > _LISTED else "")
        shown = repr(value) if named else f"{value:g}"
        return BadRequest(f"model '{self._model}': column '{name}' has {shown}, expected one of {listed}")


def check_categories(columns: Any) -> None:
    """Raise ValueError unless each column of a file has a list of what requests can send: strings, numbers, bools."""
    if not isinstance(columns, list) or not all(isinstance(values, list) for values in columns):
        raise ValueError("its categories are no lists")
    for each in chain.from_iterable(columns):
        if not isinstance(each, str | int | float):
            raise ValueError("a category is no string, number or bool")
        str(each).encode()  # UnicodeEncodeError: half of a surrogate pair


def warn_of_codes(file: str, model: str, columns: Sequence[str], fix: str) -> None:
    """Log that a file has columns of categories, but not their values."""
    message = (
        f"{file} does not have the categories of {', '.join(columns) or 'its features'}, so they are read as codes:"
        f" to send values, {fix}"
    )
    log("model.no_categories", message, level="WARNING", model=model)


class Texts(Features):
    """Input of a model of texts, such as a pipeline that begins with a vectorizer: one string per row."""

    @property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(MATRIX, "BYTES", (-1, 1))]

    def read(self, inputs: Inputs) -> Any:
        ((name, (datatype, array)), *others) = inputs.items()
        if others or datatype != "BYTES" or array.size != len(array):
            raise BadRequest(
                f"model '{self._model}': input '{name}' is {datatype} {list(array.shape)}, expected BYTES [-1, 1]"
            )
        return _values(Tensor(datatype, array.reshape(-1)))


def _values(value: Tensor) -> Any:
    """Return the values of a column, strings as str."""
    if value.datatype != "BYTES":
        return value.array
    try:
        return [item.decode() for item in value.array]
    except UnicodeDecodeError:
        raise BadRequest("a BYTES input is not UTF-8, which strings of a table must be") from None


class TableInstance(TensorInstance):
    """A model of tables. Thread-safe if the methods are: clones share it.

    `known`: outputs by name, for methods that reject a row of zeros.
    """

    open_inputs = True
    labels: Mapping[str, Sequence[str]] = {}  # of the classes of an output

    def __init__(
        self, features: Features, methods: Methods, known: Mapping[str, TensorSpec] | None = None, *, quick: bool = True
    ) -> None:
        self._features, self._methods, self._default = features, methods, (next(iter(methods)),)
        self.inputs, self.outputs, self.quick = features.specs, _probe(features, methods, known or {}), quick
        self.sample = features.sample

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        # Requests of one batch name the same outputs (models/input_validation.py).
        names = tuple(output.name for output in batch[0].outputs) or self._default
        if len(batch) == 1:
            return [self._call(names, batch[0].inputs)]
        merged, rows = merge(batch)
        return split(self._call(names, merged), rows)

    def _call(self, names: Sequence[str], inputs: Inputs) -> Outputs:
        table = self._features.read(inputs)
        try:
            return {name: tensor(self._methods[name](table)) for name in names}
        except (ValueError, TypeError) as error:  # how libraries refuse a table
            raise BadRequest(f"the model rejects the input: {first_line(error)}") from error


def _probe(features: Features, methods: Methods, known: Mapping[str, TensorSpec]) -> list[TensorSpec]:
    """Return the outputs of the methods by calling them with a row of zeros; `known` where they reject it."""
    row = features.sample or {
        spec.name: zeros(spec.datatype, tuple(max(dim, 1) for dim in spec.shape)) for spec in features.specs
    }
    specs = []
    for name, method in methods.items():
        try:
            datatype, array = tensor(method(features.read(row)))
            specs.append(TensorSpec(name, datatype, (-1, *array.shape[1:])))
        except Exception:  # of many types; the warm-up reports it
            specs.append(known.get(name) or TensorSpec(name, "FP64", (-1,)))
    return specs


def thread_count(spec: LoadSpec) -> int:
    """Return the threads of a model: one by default, since libraries would take all cores for a few rows."""
    return spec.threads or 1


@contextmanager
def openmp_threads(count: int) -> Iterator[None]:
    """Limit the threads of OpenMP libraries that are imported within: they read the variable when they are loaded."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = before or str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


def open_library(package: str, filename: str, title: str, threads: int) -> Any:
    """Open the shared library of an installed package without importing the package. Raise LoadFailed."""
    from ctypes import CDLL
    from importlib.util import find_spec

    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise LoadFailed(f"{title} models need the {package} extra: {install_command(package)}")
    try:
        with openmp_threads(threads):
            return CDLL(os.path.join(found.submodule_search_locations[0], "lib", filename))
    except OSError as error:
        hint = "; install libgomp (Debian: libgomp1)" if "libgomp" in str(error) else ""
        raise LoadFailed(f"{title} models need {filename}, which cannot be opened: {error}{hint}") from None


def numbers(table: Array) -> Array:
    """Return the table as libraries in C read it: rows one after the other, of float32 or float64."""
    import numpy as np

    return np.ascontiguousarray(table, None if table.dtype in (np.float32, np.float64) else np.float64)
