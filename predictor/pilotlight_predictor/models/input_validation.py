"""Validation of requests against the model's inputs and outputs, and the operator's optional limits on values. Pure.

The limits are `safeguards.input_validation`, for requests of clients; tensors between the steps of an ensemble are not
checked.
"""

from typing import Any, NamedTuple

import numpy as np

from pilotlight.wire.messages import quoted
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import Shape, Tensor, bf16_to_float
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig
from pilotlight_predictor.scheduling.batching import signature_of


class BatchInfo(NamedTuple):
    """Batching data of a valid request: `rows` in the batch dimension; equal `signature`s may share a batch."""

    rows: int
    signature: Any


class InputValidator:
    """Declared inputs and outputs of a model, prepared for cheap checks.

    Of a model with open inputs only the rows and the requested outputs are checked: it reads other names, datatypes and
    shapes than those it declares, and refuses what it cannot read itself.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._max_rows = config.max_batch_size
        self._backend = config.backend
        self._inputs = {tensor.name: tensor for tensor in config.inputs}
        self._names = frozenset(self._inputs)  # not the keys: the helper process gets this by a pickle
        self._required = frozenset(tensor.name for tensor in config.inputs if not tensor.optional)
        self._outputs = frozenset(tensor.name for tensor in config.outputs)
        self.reshapes = any(tensor.reshape is not None for tensor in config.inputs)
        # With every dimension fixed and no input optional, all valid requests have the same signature.
        self._open = config.open_inputs
        self._aliases = dict.fromkeys(config.input_aliases if config.inputs else (), next(iter(self._inputs), ""))
        self._uniform = all(-1 not in t.dims and not t.optional for t in config.inputs)

    def check(self, request: InferRequest) -> BatchInfo:
        """Validate a request; reshape its inputs if configured. Raises BadRequest with the invalid field."""
        if self._inputs and not self._open and request.inputs.keys() != self._names:
            if not self._required & request.inputs.keys() and self._aliases.keys() & request.inputs.keys():
                request.inputs = {
                    self._aliases.get(name, name): Tensor(datatype, array.reshape(self._shape(name, array.shape)))
                    for name, (datatype, array) in request.inputs.items()
                }
            self._check_names(request)
        if request.batch_first and self._max_rows:
            request.inputs = {n: Tensor(t.datatype, t.array[None]) for n, t in request.inputs.items()}
        rows = self._check_tensors(request)
        for output in request.outputs:
            if self._outputs and output.name not in self._outputs:
                known = ", ".join(f"'{name}'" for name in sorted(self._outputs))
                raise BadRequest(
                    f"unexpected inference output '{output.name}' for model '{self._model}'; its outputs are {known}"
                )
        if self.reshapes:
            self._reshape(request, rows)
        if self._open:
            kinds = tuple((name, datatype, array.shape[1:]) for name, (datatype, array) in request.inputs.items())
            return BatchInfo(rows, (kinds, tuple(output.name for output in request.outputs)))
        if self._uniform or not self._max_rows:
            return BatchInfo(rows, None)
        return BatchInfo(rows, signature_of({name: tensor.array.shape for name, tensor in request.inputs.items()}))

    def _shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape that an input is taken with: [n] for [n, 1] under an alias, as MLServer's codecs send it."""
        flat = name in self._aliases and shape[1:] == (1,) and not self._inputs[self._aliases[name]].dims
        return shape[:1] if flat else shape

    def _check_names(self, request: InferRequest) -> None:
        inputs = request.inputs
        for name in inputs:
            if name not in self._inputs:
                raise self._unexpected(name)
        if not self._required <= inputs.keys():
            missing = quoted(name for name in self._inputs if name in self._required - inputs.keys())
            expected = f"expected {len(self._required)} inputs but got {len(inputs)} inputs for model '{self._model}'"
            raise BadRequest(f"{expected}: missing {missing}")

    def _unexpected(self, name: str) -> BadRequest:
        takes = f"its inputs are {quoted(self._inputs)}"
        return BadRequest(f"unexpected inference input '{name}' for model '{self._model}'; {takes}")

    def _check_tensors(self, request: InferRequest) -> int:
        rows = 0
        for name, (datatype, array) in request.inputs.items():
            declared = self._inputs.get(name)
            shape = array.shape
            if declared is not None and not self._open:
                self._check_declared(declared, datatype, shape)
            if self._max_rows and not rows:
                rows = self._rows(name, shape)
            elif self._max_rows and (not shape or shape[0] != rows):
                raise BadRequest(f"input '{name}' has shape {list(shape)}, but the request's batch size is {rows}")
        return rows or 1

    def check_input(self, name: str, datatype: str, shape: Shape) -> None:
        """Raise BadRequest for an input that `check` would reject, before its elements are read."""
        declared, shape = self._inputs.get(self._aliases.get(name, name)), self._shape(name, shape)
        if declared is not None and not self._open:
            self._check_declared(declared, datatype, shape)
        elif self._inputs and not self._open:
            raise self._unexpected(name)
        if self._max_rows:
            self._rows(name, shape)

    def _check_declared(self, declared: TensorConfig, datatype: str, shape: Shape) -> None:
        if datatype != declared.datatype:
            raise BadRequest(
                f"inference input '{declared.name}' data-type is '{datatype}', but model '{self._model}' expects"
                f" '{declared.datatype}'"
            )
        dims = declared.dims
        actual = shape[1:] if self._max_rows else shape
        if actual == dims:
            return
        if len(actual) == len(dims) and (not self._max_rows or shape):
            for want, got in zip(dims, actual, strict=True):
                if want != got and want != -1:
                    break
            else:
                return
        expected = [-1, *dims] if self._max_rows else list(dims)
        raise BadRequest(
            f"unexpected shape for input '{declared.name}' for model '{self._model}':"
            f" expected {expected}, got {list(shape)}{self._fix(declared, shape)}"
        )

    def _fix(self, declared: TensorConfig, shape: Shape) -> str:
        """Return how a model takes other numbers of rows than the one of its export, or values than an argument's."""
        if self._backend in ("torch", "pytorch") and not self._max_rows and shape[1:] == declared.dims[1:] != ():
            return "; its batch size was fixed at the export: use dynamic_shapes of torch.export.export"
        kind = {"BYTES": "str", "INT64": "int", "FP64": "float", "BOOL": "bool"}.get(declared.datatype)
        if self._backend != "python" or self._max_rows or not kind or (declared.dims, len(shape)) != ((1,), 1):
            return ""
        return f"; a request has one {declared.name}: annotate it list[{kind}], or declare it [-1], for several"

    def _rows(self, name: str, shape: Shape) -> int:
        rows = shape[0] if shape else 0
        if rows < 1:
            raise BadRequest(f"input '{name}' has shape {list(shape)}: the batch dimension must be at least 1")
        if rows > self._max_rows:
            raise BadRequest(
                f"inference request batch-size must be <= {self._max_rows} for '{self._model}',"
                f" input '{name}' has {rows}; send fewer rows, or raise max_batch_size of its config.pbtxt, without one"
                " the setting INFERENCE_MAX_BATCH_SIZE"
            )
        return rows

    def _reshape(self, request: InferRequest, rows: int) -> None:
        for name, tensor in request.inputs.items():
            target = self._inputs[name].reshape
            if target is not None:
                shape = (rows, *target) if self._max_rows else target
                try:
                    request.inputs[name] = Tensor(tensor.datatype, tensor.array.reshape(shape))
                except ValueError:
                    raise BadRequest(
                        f"input '{name}' of shape {list(tensor.array.shape)} does not fit the model's {list(shape)}"
                    ) from None


def check_values(
    request: InferRequest, max_sequence_length: int, batched: bool, fixed: frozenset[str] = frozenset()
) -> None:
    """Raise BadRequest with the rejected input. `batched`: the first dimension is the batch.

    Inputs in `fixed` have the one length that the model accepts: their length is not checked.
    """
    for name, tensor in request.inputs.items():
        if name not in fixed:
            length = sequence_length(tensor.array.shape, batched)
            if length > max_sequence_length:
                raise BadRequest(
                    f"input '{name}' has a sequence of {length}, the limit is {max_sequence_length}"
                    " (safeguards.input_validation.max_sequence_length)"
                )
        array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BadRequest(
                f"input '{name}' has NaN or an infinity, which this server rejects (safeguards.input_validation)"
            )


def sequence_length(shape: Shape, batched: bool) -> int:
    """Return the sequence length: the last dimension of a vector or of rows of vectors. An image has none (0)."""
    return shape[-1] if len(shape) == 2 or (len(shape) == 1 and not batched) else 0
