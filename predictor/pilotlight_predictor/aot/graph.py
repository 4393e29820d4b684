"""The module as it is exported: tensors in, tensors out, types as the model declares them. Used by compiling.py."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.aot.package import Port
from pilotlight_predictor.backends.torch_modules import Loaded
from pilotlight_predictor.backends.torch_signature import bind, name_outputs
from pilotlight_predictor.backends.torch_tensors import TORCH_NAMES, dtype_of
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

BATCH: Final = 2  # of the example: torch takes 0 and 1 for sizes that never change
VARIES: Final = 8  # of an example's other dimensions that vary


def Wrapped(loaded: Loaded) -> "torch.nn.Module":  # noqa: N802 - a class that needs torch to be made
    """Casts on the way in and out, as the torch backend does around the module that it runs."""
    import torch

    if not loaded.inputs:
        hint = 'INPUTS = {"x": ("FP32", [-1, 4])}'
        raise LoadFailed(f"model.py does not say what it takes: add {hint} and OUTPUTS likewise, then compile again")
    calling = bind(loaded.arguments, [tensor.name for tensor in loaded.inputs])
    names = [tensor.name for tensor in loaded.inputs]
    out_names = [tensor.name for tensor in loaded.outputs]
    declared = [dtype_of(tensor.datatype) for tensor in loaded.outputs]

    class Outer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = loaded.module

        def forward(self, *given: Any) -> Any:
            cast = {name: _cast(value, loaded.compute) for name, value in zip(names, given, strict=True)}
            made = list(name_outputs(calling.call(self.model, cast), out_names).values())
            return tuple(
                value.to(dtype) if dtype is not None and value.is_floating_point() else value
                for value, dtype in zip(made, declared or [None] * len(made), strict=True)
            )

    return Outer()


def _cast(value: Any, compute: "torch.dtype | None") -> Any:
    return value.to(compute) if compute is not None and value.is_floating_point() else value


def examples(loaded: Loaded, shapes: Mapping[str, tuple[int, ...]], device: str) -> "list[torch.Tensor]":
    """One tensor for each input: of the given shape, else of small sizes where they vary."""
    import torch

    unknown = sorted(set(shapes) - {tensor.name for tensor in loaded.inputs})
    if unknown:
        raise LoadFailed(f"--shape {unknown[0]}: the model takes {', '.join(t.name for t in loaded.inputs)}")
    found = []
    for tensor in loaded.inputs:
        if tensor.datatype not in TORCH_NAMES:
            raise LoadFailed(f"input {tensor.name!r} is {tensor.datatype}, but a torch model takes numbers only")
        shape = shapes.get(tensor.name) or tuple(_size(place, dim) for place, dim in enumerate(tensor.shape))
        found.append(torch.zeros(shape, dtype=dtype_of(tensor.datatype), device=device))
    return found


def _size(place: int, dim: int) -> int:
    return dim if dim >= 0 else BATCH if place == 0 else VARIES


def dynamic_shapes(inputs: Sequence[TensorSpec], largest: int) -> "tuple[dict[int, Any], ...]":
    """The first dimension, where it varies, is one batch for all inputs; others vary by themselves."""
    from torch.export import Dim

    batch = Dim("batch", min=1, max=largest) if largest > 1 else None
    found = []
    for tensor in inputs:
        dims: dict[int, Any] = {place: Dim.AUTO for place, dim in enumerate(tensor.shape) if dim < 0 and place > 0}
        if batch is not None and tensor.shape[:1] == (-1,):
            dims[0] = batch
        found.append(dims)
    return tuple(found)


def ports_of(
    declared: Sequence[TensorSpec], values: "Sequence[torch.Tensor]", inputs: Sequence[TensorSpec], given: Sequence[Any]
) -> list[Port]:
    """As declared; where nothing is, as the example shows it, the first dimension varying as that of the inputs."""
    if declared:
        return [Port(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in declared]
    batched = all(tensor.shape[:1] == (-1,) for tensor in inputs)
    kinds = {name: datatype for datatype, name in TORCH_NAMES.items()}
    return [
        Port(
            f"OUTPUT__{place}",
            kinds[str(value.dtype).removeprefix("torch.")],
            (-1, *value.shape[1:]) if batched and value.shape[:1] == given[0].shape[:1] else tuple(value.shape),
        )
        for place, value in enumerate(values)
    ]


def exported_ports(inputs: Sequence[TensorSpec], exported: Any) -> list[Port]:
    """As exported: a dimension that the declaration lets vary may have turned out to be one size for good."""
    given = set(exported.graph_signature.user_inputs)
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in given]
    return [
        Port(tensor.name, tensor.datatype, tuple(dim if type(dim) is int else -1 for dim in node.meta["val"].shape))
        for tensor, node in zip(inputs, nodes, strict=True)
    ]
