"""Many requests as one: inputs joined along the first dimension, outputs cut apart again. Pure."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.inference import InferRequest, Inputs, Outputs
from pilotlight_predictor.tensors import Array, Tensor, tensor_of


class Shares(Sequence[Outputs]):
    """The outputs of a batch as what each of its requests gets: its own rows of every output, as views.

    They are cut when somebody asks for them: whoever answers a whole batch takes `outputs` as they are.
    """

    __slots__ = ("outputs", "rows")

    def __init__(self, outputs: Outputs, rows: Sequence[int]) -> None:
        self.outputs = outputs
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Outputs]:
        start = 0
        for count in self.rows:
            yield self._rows(start, start + count)
            start += count

    @overload
    def __getitem__(self, index: int) -> Outputs: ...
    @overload
    def __getitem__(self, index: slice) -> list[Outputs]: ...
    def __getitem__(self, index: int | slice) -> Outputs | list[Outputs]:
        return list(self)[index]

    def _rows(self, start: int, end: int) -> Outputs:
        return {name: tensor_of((datatype, array[start:end])) for name, (datatype, array) in self.outputs.items()}


def rows_of(inputs: Inputs) -> int:
    """The size of the batch dimension: that of the first input (all agree, see validation)."""
    for tensor in inputs.values():
        return len(tensor.array)
    return 1


def merge(batch: Sequence[InferRequest]) -> tuple[Inputs, Sequence[int]]:
    """One set of inputs for the whole batch, and how many rows each request brought."""
    form = batch[0].form
    if form is not None and (array := _in_one_form(batch)) is not None:
        return {form.name: Tensor(form.datatype, array)}, [form.shape[0]] * len(batch)
    parts = [request.inputs for request in batch]
    return join(parts), [rows_of(inputs) for inputs in parts]


def _in_one_form(batch: Sequence[InferRequest]) -> Array | None:
    """Requests in one form lie in its blocks in the order in which they came, so most batches are a part of a block
    already. None where the batch has others."""
    form, block, start, end = batch[0].form, batch[0].block, batch[0].at, batch[0].at
    parts: list[Array] = []
    for request in batch:
        if request.form is not form or request.tensors is not None:
            return None
        if request.at != end or request.block is not block:
            parts.append(block[start:end])
            block, start, end = request.block, request.at, request.at
        end += 1
    parts.append(block[start:end])
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(-1, *form.shape[1:])


def join(parts: Sequence[Outputs]) -> Outputs:
    """The rows of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: Tensor(tensor.datatype, np.concatenate([part[name].array for part in parts]))
        for name, tensor in parts[0].items()
    }


def split(outputs: Outputs, rows: Sequence[int]) -> Shares:
    """The inverse of merge."""
    total = sum(rows)
    for name, tensor in outputs.items():
        if tensor.array.ndim == 0 or tensor.array.shape[0] != total:
            raise BackendFailed(
                f"output '{name}' has shape {list(tensor.array.shape)} for a batch of {total} rows: its first dimension"
                " is no batch dimension; set max_batch_size: 0 for this model"
            )
    return Shares(outputs, rows)
