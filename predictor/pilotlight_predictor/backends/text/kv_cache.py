"""KV cache of a batch whose rows are added and removed between two steps of the model.

Rows are right-aligned, so that a step writes one column for all of them; the padding on the left is masked. Capacity
grows by halves and is reused, so a step copies nothing but the new column.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import torch

MIN_SPARE: Final = 64  # columns


class CapturedStep(NamedTuple):
    """Rows and columns that a CUDA graph computes, and the column it writes, which a replay may move."""

    rows: int
    columns: int
    column: "torch.Tensor"


class ColumnFrame:
    """Columns in use, shared by all layers. `lengths` has one number per row."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.end = 0
        self.captured: CapturedStep | None = None

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def width(self) -> int:
        return max(self.lengths, default=0)

    @property
    def start(self) -> int:
        return self.end - self.width


class BatchCacheLayer:
    """One layer, [rows, heads, columns, head size], with the interface of a transformers cache layer."""

    is_sliding = False
    is_compileable = False
    is_croppable = False
    is_initialized = True

    def __init__(self, frame: ColumnFrame) -> None:
        self.frame = frame
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def update(self, keys: "torch.Tensor", values: "torch.Tensor", *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write the column of this step; return all keys and values that the model attends to."""
        assert self.keys is not None
        assert self.values is not None
        if (step := self.frame.captured) is not None:
            for buffer, column in ((self.keys, keys), (self.values, values)):
                buffer[: step.rows].index_copy_(2, step.column, column)
            return self.keys[: step.rows, :, : step.columns], self.values[: step.rows, :, : step.columns]
        rows, start, end = self.frame.rows, self.frame.start, self.frame.end
        self.keys[:rows, :, end] = keys[:, :, 0]
        self.values[:rows, :, end] = values[:, :, 0]
        return self.keys[:rows, :, start : end + 1], self.values[:rows, :, start : end + 1]

    def lazy_initialization(self, *_: Any) -> None:
        return None

    def get_seq_length(self) -> int:
        return self.frame.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.frame.width + query_length, 0

    def get_max_length(self) -> int:
        return -1


@cache
def _layer() -> type[BatchCacheLayer]:
    """Layer class derived from transformers' own, which it requires."""
    from transformers.cache_utils import CacheLayerMixin

    return type("ColumnsLayer", (BatchCacheLayer, CacheLayerMixin), {})


class BatchKVCache:
    """Rows of a batch. `cache` is the argument of the model. `fixed`: slots and columns that stay, for CUDA graphs."""

    def __init__(self, layers: int, fixed: tuple[int, int] | None = None) -> None:
        from transformers import Cache

        self._frame = ColumnFrame()
        self._layers = [_layer()(self._frame) for _ in range(layers)]
        self.cache = Cache(layers=self._layers)
        self._slots = self.columns = 0
        self._fixed = fixed

    @property
    def end(self) -> int:
        """The column that the next step writes."""
        return self._frame.end

    @property
    def storage(self) -> Any:
        """A buffer that is replaced when all are."""
        return self._layers[0].keys

    @contextmanager
    def captured(self, step: CapturedStep) -> Iterator[None]:
        """Let the model's layers compute the rows and columns of a graph."""
        self._frame.captured = step
        try:
            yield
        finally:
            self._frame.captured = None

    @property
    def lengths(self) -> Sequence[int]:
        return self._frame.lengths

    def add_row(self, prompt: Any) -> None:
        """Add the row in a prompt's own cache (a DynamicCache of one row)."""
        length = prompt.get_seq_length()
        self._reserve(self._frame.rows + 1, max(self._frame.width, length), prompt)
        row, end = self._frame.rows, self._frame.end
        for layer, one in zip(self._layers, prompt.layers, strict=True):
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys[row, :, end - length : end] = one.keys[0]
            layer.values[row, :, end - length : end] = one.values[0]
        self._frame.lengths.append(length)

    def remove_row(self, row: int) -> None:
        """Remove a row; the last row moves to its index."""
        last = self._frame.rows - 1
        if row != last:
            for layer in self._layers:
                assert layer.keys is not None
                assert layer.values is not None
                layer.keys[row] = layer.keys[last]
                layer.values[row] = layer.values[last]
            self._frame.lengths[row] = self._frame.lengths[last]
        self._frame.lengths.pop()
        if not self._frame.rows:
            self._frame.end = 0
        if not self._frame.rows and self._fixed is None:  # free the memory of an empty batch
            for layer in self._layers:
                layer.keys = layer.values = None
            self._slots = self.columns = 0

    def before_step(self) -> None:
        self._reserve(self._frame.rows, self._frame.width, None)

    def after_step(self) -> None:
        """Advance by the column that was written: every row has one more token."""
        self._frame.end += 1
        self._frame.lengths[:] = [length + 1 for length in self._frame.lengths]

    def mask(self, device: Any) -> "torch.Tensor | None":
        """Attention mask of the next step; None if every row attends to all columns."""
        lengths, width = self._frame.lengths, self._frame.width
        if min(lengths) == width:
            return None
        import torch

        begins = torch.tensor([width - length for length in lengths], device=device)
        return torch.arange(width + 1, device=device)[None, :] >= begins[:, None]

    def _reserve(self, rows: int, width: int, like: Any) -> None:
        """Ensure capacity for `rows` of `width` and one more column; `like` gives shapes for new buffers."""
        frame = self._frame
        if rows <= self._slots and width <= frame.end < self.columns:
            return
        fixed_slots, fixed_columns = self._fixed or (0, 0)
        slots = 1 << (max(rows, self._slots, fixed_slots) - 1).bit_length()
        columns = max(width + max(MIN_SPARE, width // 2), fixed_columns)  # amortises the copy over width / 2 steps
        grown = [self._grow_layer(number, slots, columns, width, like) for number in range(len(self._layers))]
        for layer, (keys, values) in zip(self._layers, grown, strict=True):  # after all allocations: memory may run out
            layer.keys, layer.values = keys, values
        self._slots, self.columns, frame.end = slots, columns, width

    def _grow_layer(
        self, number: int, slots: int, columns: int, width: int, like: Any
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        frame, layer = self._frame, self._layers[number]
        old, taken = slice(frame.start, frame.end), slice(width - frame.width, width)
        shaped = like.layers[number] if like is not None else layer

        def grow(before: "torch.Tensor | None", example: "torch.Tensor") -> "torch.Tensor":
            shape = (slots, example.shape[1], columns, example.shape[3])
            stays = self._fixed is not None and before is not None and before.shape == shape
            buffer = before if stays and before is not None else example.new_zeros(shape)
            if frame.rows and before is not None:
                moved = before[: frame.rows, :, old]
                buffer[: frame.rows, :, taken] = moved.clone() if stays else moved
            return buffer

        return grow(layer.keys, shaped.keys), grow(layer.values, shaped.values)
