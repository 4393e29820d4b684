"""Batches of requests: inputs concatenated along the first dimension, outputs split again. Pure."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from pilotlight_predictor.core.requests import InferRequest, Inputs, Outputs, with_tensors
from pilotlight_predictor.core.tensors import Array, Tensor, tensor_of
from pilotlight_predictor.errors import BackendFailed


class SplitOutputs(Sequence[Outputs]):
    """Outputs of a batch, per request: its rows of every output, as views.

    Split lazily: a BatchReply uses the joint `outputs` as they are.
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
            end = start + count
            part = {name: tensor_of((datatype, array[start:end])) for name, (datatype, array) in self.outputs.items()}
            yield with_tensors(self.outputs, part)
            start = end

    @overload
    def __getitem__(self, index: int) -> Outputs: ...
    @overload
    def __getitem__(self, index: slice) -> list[Outputs]: ...
    def __getitem__(self, index: int | slice) -> Outputs | list[Outputs]:
        return list(self)[index]


def rows_of(inputs: Inputs) -> int:
    """Return the batch size: the first dimension of the first input (validation ensures that all agree)."""
    for tensor in inputs.values():
        return len(tensor.array)
    return 1


def merge(batch: Sequence[InferRequest]) -> tuple[Inputs, Sequence[int]]:
    """Return one set of inputs for the whole batch, and the number of rows of each request."""
    template = batch[0].template
    if template is not None and (array := _merge_blocks(batch)) is not None:
        return {template.name: Tensor(template.datatype, array)}, [template.shape[0]] * len(batch)
    parts = [request.inputs for request in batch]
    return join(parts), [rows_of(inputs) for inputs in parts]


def _merge_blocks(batch: Sequence[InferRequest]) -> Array | None:
    """Merge requests of one template without copying where possible: their inputs lie in the template's blocks in
    order of arrival, so most batches are a slice of one block. None if the batch has other requests."""
    template, block, start, end = batch[0].template, batch[0].block, batch[0].row, batch[0].row
    parts: list[Array] = []
    for request in batch:
        if request.template is not template or request.tensors is not None:
            return None
        if request.row != end or request.block is not block:
            parts.append(block[start:end])
            block, start, end = request.block, request.row, request.row
        end += 1
    parts.append(block[start:end])
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(-1, *template.shape[1:])


def join(parts: Sequence[Outputs]) -> Outputs:
    if len(parts) == 1:
        return parts[0]
    return {
        name: Tensor(tensor.datatype, np.concatenate([part[name].array for part in parts]))
        for name, tensor in parts[0].items()
    }


def split(outputs: Outputs, rows: Sequence[int]) -> SplitOutputs:
    """Split the outputs of a merged batch. Raises BackendFailed where the first dimension is not the batch's."""
    total = sum(rows)
    for name, tensor in outputs.items():
        if tensor.array.ndim == 0 or tensor.array.shape[0] != total:
            raise BackendFailed(
                f"output '{name}' has shape {list(tensor.array.shape)} for a batch of {total} rows: its first"
                " dimension is not a batch dimension; set max_batch_size: 0 for this model"
            )
    return SplitOutputs(outputs, rows)
