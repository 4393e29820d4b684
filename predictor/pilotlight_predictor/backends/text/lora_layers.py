"""Low-rank updates of LoRA adapters beside the linear layers of one model, for rows of different adapters in one pass.

The weights of all adapters of a layer are concatenated along their ranks: [columns, inputs] and [columns, outputs].
A pass multiplies by both and sets to zero what is not of a row's own adapter, so that no weights are copied per row.
Each adapter has its own columns. Layers without an active adapter compute nothing. Used by the engine's thread only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.text.lora_adapter import LinearShape, LoraAdapter, LowRank

if TYPE_CHECKING:
    import torch

NO_ADAPTER: Final = 0  # id of rows of the base model
FREE: Final = -1  # id of unused columns
MIN_COLUMNS: Final = 16


class LoraLayers:
    """Updates of all layers. `version` changes with the tensors: CUDA graphs of an older one are invalid."""

    def __init__(self, module: Any) -> None:
        from torch.nn import Linear
        from transformers.pytorch_utils import Conv1D

        self._modules = dict(module.named_modules())
        self.shapes: dict[str, LinearShape | None] = dict.fromkeys(self._modules)
        for name, each in self._modules.items():
            if isinstance(each, Linear):
                self.shapes[name] = LinearShape(each.in_features, each.out_features)
            elif isinstance(each, Conv1D):
                self.shapes[name] = LinearShape(*each.weight.shape)
        self._device = next(module.parameters()).device
        self.version = 0
        self._layers: dict[str, LowRank] = {}
        self._hooks: dict[str, Any] = {}
        self._owners: list[int] = []  # adapter of each column
        self._owner_ids: Any = None  # the same as a tensor
        # Of a pass: the columns of all its rows, or a mask of those a row must not use, [rows, 1, columns].
        self._active: slice | torch.Tensor | None = None

    def add(self, identity: int, adapter: LoraAdapter) -> None:
        """Add an adapter, whose `identity` is positive and new."""
        begin = self._reserve(adapter.rank)
        for name in adapter.modules.keys() - self._layers.keys():
            self._layers[name] = self._zeros(name, len(self._owners))
            self._hooks[name] = self._modules[name].register_forward_hook(partial(self._update, name))
            self.version += 1
        for name, layer in self._layers.items():
            for number, buffer in enumerate(layer):
                buffer[begin : begin + adapter.rank] = 0
                if (update := adapter.modules.get(name)) is not None:
                    buffer[begin : begin + len(update.down)] = update[number].to(buffer)
        self._own(slice(begin, begin + adapter.rank), identity)

    def remove(self, identity: int) -> None:
        """Free the columns of an adapter, and all memory with the last one."""
        self._own(self._columns_of(identity), FREE)
        if set(self._owners) == {FREE}:
            for hook in self._hooks.values():
                hook.remove()
            self._layers, self._hooks, self._owners = {}, {}, []
            self.version += 1

    def free(self) -> None:
        """Drop all references to weights."""
        self._modules, self._layers, self._hooks = {}, {}, {}

    @contextmanager
    def rows(self, identities: "Sequence[int] | torch.Tensor") -> Iterator[None]:
        """Let a pass use the adapters of its rows. A tensor, for CUDA graphs, may change between their replays."""
        self._active = self._columns(identities)
        try:
            yield
        finally:
            self._active = None

    def _columns(self, identities: "Sequence[int] | torch.Tensor") -> "slice | torch.Tensor | None":
        import torch

        if not isinstance(identities, torch.Tensor):
            first, *others = set(identities)
            if not others and first == NO_ADAPTER:
                return None
            if not others:
                return self._columns_of(first)
            identities = torch.tensor(identities, device=self._owner_ids.device)
        return (identities[:, None] != self._owner_ids)[:, None]

    def _columns_of(self, identity: int) -> slice:
        begin = self._owners.index(identity)
        return slice(begin, begin + self._owners.count(identity))

    def _update(self, name: str, _: Any, arguments: tuple[Any, ...], output: "torch.Tensor") -> None:
        """Add the update to the output of a layer, in place: nothing else has it yet."""
        active = self._active
        if active is None:
            return
        down, up = self._layers[name]
        if isinstance(active, slice):
            down, up = down[active], up[active]
        hidden = arguments[0] @ down.T
        if not isinstance(active, slice):
            # By row: some models flatten rows and tokens to one dimension.
            hidden = hidden.reshape(len(active), -1, hidden.shape[-1]).masked_fill(active, 0)
        output.view(-1, output.shape[-1]).addmm_(hidden.reshape(-1, hidden.shape[-1]), up)

    def _reserve(self, rank: int) -> int:
        """Return the first of `rank` adjacent free columns, of larger buffers if there are none."""
        for begin in range(len(self._owners) - rank + 1):
            if set(self._owners[begin : begin + rank]) == {FREE}:
                return begin
        used = max((column + 1 for column, owner in enumerate(self._owners) if owner != FREE), default=0)
        size = max(MIN_COLUMNS, 1 << (used + rank - 1).bit_length())
        grown = {name: self._zeros(name, size) for name in self._layers}
        for name, layer in grown.items():
            for buffer, before in zip(layer, self._layers[name], strict=True):
                buffer[:used] = before[:used]
        self._layers, self.version = grown, self.version + 1
        self._own(slice(used, size), FREE)
        return used

    def _zeros(self, name: str, columns: int) -> LowRank:
        weight, shape = self._modules[name].weight, self.shapes[name]
        assert shape is not None
        return LowRank(*(weight.new_zeros((columns, size)) for size in shape))

    def _own(self, columns: slice, identity: int) -> None:
        import torch

        self._owners[columns] = [identity] * (columns.stop - columns.start)
        values = torch.tensor(self._owners)
        if self._owner_ids is not None and len(self._owner_ids) == len(values):
            self._owner_ids.copy_(values)  # in place, for CUDA graphs
        else:
            self._owner_ids = values.to(self._device)
