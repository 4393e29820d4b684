"""Export wrapper of a module, with tensors in the declared dtypes, and its ports. Used by compiling.py."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.aot.package import Port
from pilotlight_predictor.backends.torch_modules import LoadedModule
from pilotlight_predictor.backends.torch_signature import bind, name_outputs
from pilotlight_predictor.backends.torch_tensors import TORCH_NAMES, dtype_of
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

BATCH: Final = 2  # rows of the example: torch specialises sizes 0 and 1
DYNAMIC_SIZE: Final = 8  # size of an example's other dynamic dimensions


def wrap_module(loaded: LoadedModule) -> "torch.nn.Module":
    """Wrap a module with the casts that the torch backend makes around it."""
    import torch

    if not loaded.inputs:
        hint = 'INPUTS = {"x": ("FP32", [-1, 4])}'
        raise LoadFailed(f"model.py does not say what it takes: add {hint} and OUTPUTS likewise, then compile again")
    binding = bind(loaded.arguments, [tensor.name for tensor in loaded.inputs])
    names = [tensor.name for tensor in loaded.inputs]
    out_names = [tensor.name for tensor in loaded.outputs]
    declared = [dtype_of(tensor.datatype) for tensor in loaded.outputs]

    class ExportModule(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = loaded.module

        def forward(self, *values: Any) -> Any:
            inputs = {name: _cast(value, loaded.compute) for name, value in zip(names, values, strict=True)}
            outputs = list(name_outputs(binding.call(self.model, inputs), out_names).values())
            return tuple(
                _cast(value, dtype) for value, dtype in zip(outputs, declared or [None] * len(outputs), strict=True)
            )

    return ExportModule()


def _cast(value: Any, dtype: "torch.dtype | None") -> Any:
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def example_inputs(loaded: LoadedModule, shapes: Mapping[str, tuple[int, ...]], device: str) -> "list[torch.Tensor]":
    """One tensor per input: of the given shape, else with small sizes for dynamic dimensions."""
    import torch

    unknown = sorted(set(shapes) - {tensor.name for tensor in loaded.inputs})
    if unknown:
        raise LoadFailed(f"--shape {unknown[0]}: the model takes {', '.join(t.name for t in loaded.inputs)}")
    tensors = []
    for tensor in loaded.inputs:
        if tensor.datatype not in TORCH_NAMES:
            raise LoadFailed(f"input {tensor.name!r} is {tensor.datatype}, but a torch model takes numbers only")
        shape = shapes.get(tensor.name) or tuple(
            dim if dim >= 0 else BATCH if axis == 0 else DYNAMIC_SIZE for axis, dim in enumerate(tensor.shape)
        )
        tensors.append(torch.zeros(shape, dtype=dtype_of(tensor.datatype), device=device))
    return tensors


def dynamic_shapes(inputs: Sequence[TensorSpec], largest: int) -> "tuple[dict[int, Any], ...]":
    """Dynamic dimensions for torch.export: the first is one batch dimension for all inputs, others are independent."""
    from torch.export import Dim

    batch = Dim("batch", min=1, max=largest) if largest > 1 else None
    shapes = []
    for tensor in inputs:
        dims: dict[int, Any] = {axis: Dim.AUTO for axis, dim in enumerate(tensor.shape) if dim < 0 and axis > 0}
        if batch is not None and tensor.shape[:1] == (-1,):
            dims[0] = batch
        shapes.append(dims)
    return tuple(shapes)


def output_ports(
    declared: Sequence[TensorSpec],
    values: "Sequence[torch.Tensor]",
    inputs: Sequence[TensorSpec],
    examples: Sequence[Any],
) -> list[Port]:
    """Declared outputs, else those of the example run, with a batch dimension if the inputs have one."""
    if declared:
        return [Port(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in declared]
    batched = all(tensor.shape[:1] == (-1,) for tensor in inputs)
    kinds = {name: datatype for datatype, name in TORCH_NAMES.items()}
    return [
        Port(
            f"OUTPUT__{position}",
            kinds[str(value.dtype).removeprefix("torch.")],
            (-1, *value.shape[1:]) if batched and value.shape[:1] == examples[0].shape[:1] else tuple(value.shape),
        )
        for position, value in enumerate(values)
    ]


def input_ports(inputs: Sequence[TensorSpec], exported: Any) -> list[Port]:
    """Inputs as exported: torch may have specialised a dimension that is declared as dynamic."""
    names = set(exported.graph_signature.user_inputs)
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in names]
    return [
        Port(tensor.name, tensor.datatype, tuple(dim if type(dim) is int else -1 for dim in node.meta["val"].shape))
        for tensor, node in zip(inputs, nodes, strict=True)
    ]
