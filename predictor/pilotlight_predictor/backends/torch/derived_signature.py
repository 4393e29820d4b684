"""Inputs and outputs of a module whose file declares none: guessed from its first layer, kept if zeros run through.

Used by modules.py for TorchScript and for modules of model.py, when neither a configuration nor INPUTS describes them.
Two runs, of two and three rows, show which sizes of the outputs vary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.torch.forward_signature import Argument, name_outputs
from pilotlight_predictor.backends.torch.tensors import dtype_of, from_torch
from pilotlight_predictor.core.tensors import Shape, TensorSpec

if TYPE_CHECKING:
    import torch

Specs = Sequence[TensorSpec]
_IMAGE_SIZES: Final = (32, 224, 28)  # CIFAR, ImageNet, MNIST: if only one of them runs, the size is fixed
_LENGTHS: Final = (8, 12)
_SAMPLE: Final = """config.pbtxt: {inputs} output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ]"""


def derive(module: Any, arguments: Sequence[Argument], call: Callable[[Any], Any]) -> tuple[Specs, Specs] | None:
    """Return the input and outputs of a forward with one required tensor; None if no guess runs.

    `call` runs the module, on its device and in its precision, with a CPU tensor.
    """
    required = [argument for argument in arguments if argument.required]
    if [argument.takes for argument in required] != ["tensor"]:
        return None
    for datatype, shape in _first_layer_inputs(module):
        if (found := _verify(datatype, shape, call)) is not None:
            dims, outputs = found
            return [TensorSpec(required[0].name, datatype, dims)], outputs
    return None


def sample_config(arguments: Sequence[Argument]) -> str:
    """Return a config.pbtxt for the arguments, in which shapes and types are to be corrected."""
    kinds = {"tensor": ("TYPE_FP32", "-1, -1"), "scalar": ("TYPE_INT64", "1")}
    lines = [
        f'input [ {{ name: "{a.name}" data_type: {kinds[a.takes][0]} dims: [ {kinds[a.takes][1]} ] }} ]'
        for a in arguments
        if a.takes in kinds and a.required
    ]
    return _SAMPLE.format(inputs=" ".join(lines))


def _first_layer_inputs(module: Any) -> Iterator[tuple[str, Shape]]:
    """Yield shapes that the first layer with weights would take, the likeliest first."""
    for layer in module.modules():
        own = dict(layer.named_parameters(recurse=False))
        if own:
            yield from _layer_inputs(getattr(layer, "original_name", type(layer).__name__), layer, own)
            return


def _layer_inputs(kind: str, layer: Any, own: "Mapping[str, torch.Tensor]") -> Iterator[tuple[str, Shape]]:
    weight = own.get("weight", own.get("weight_ih_l0", next(iter(own.values()))))
    datatype, size = "FP64" if str(weight.dtype) == "torch.float64" else "FP32", tuple(weight.shape)
    if "Embedding" in kind:
        yield "INT64", (-1, -1)
    elif kind.startswith("Conv") and len(size) > 2:
        yield datatype, (-1, size[1] * getattr(layer, "groups", 1), *(-1,) * (len(size) - 2))
    elif kind in {"LSTM", "GRU", "RNN"}:
        yield datatype, (-1, -1, size[1])
    elif len(size) == 2:
        yield datatype, (-1, size[1])
        yield datatype, (-1, size[0])  # a product x @ weight
    elif len(size) == 1:
        yield datatype, (-1, *size)


def _verify(datatype: str, shape: Shape, call: Callable[[Any], Any]) -> tuple[Shape, Specs] | None:
    """Return the shape, with sizes fixed that only run so, and the outputs; None if zeros of it do not run."""
    varies = -1 in shape[1:]
    sizes = (_IMAGE_SIZES if shape[-1] == -1 and len(shape) > 2 else _LENGTHS) if varies else (1,)
    runs: list[tuple[int, Mapping[str, Any]]] = []
    for size in sizes:
        if len(runs) < 2 and (result := _run(datatype, shape, 2 + len(runs), size, call)) is not None:
            runs.append((size, result))
    if not runs:
        return None
    if len(runs) == 1:
        size = runs[0][0]
        if varies:
            shape = (-1, *(size if dim == -1 else dim for dim in shape[1:]))
        again = _run(datatype, shape, 3, size, call)
        runs.append((size, again if again is not None else runs[0][1]))
    return shape, _compare(runs[0][1], runs[1][1])


def _run(datatype: str, shape: Shape, rows: int, size: int, call: Callable[[Any], Any]) -> Mapping[str, Any] | None:
    import torch

    zeros = torch.zeros((rows, *(size if dim == -1 else dim for dim in shape[1:])), dtype=dtype_of(datatype))
    try:
        return {name: from_torch(value.cpu()) for name, value in name_outputs(call(zeros), ()).items()}
    except Exception:  # of any type: the guess is wrong, or the module's own code is
        return None


def _compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Specs:
    """Return the outputs, with -1 for the sizes that differ; none if they cannot be compared."""
    specs = []
    for name, (datatype, array) in first.items():
        other = second[name].array.shape if name in second else ()
        if len(other) != array.ndim:
            return ()
        dims = tuple(one if one == two else -1 for one, two in zip(array.shape, other, strict=True))
        specs.append(TensorSpec(name, datatype, dims))
    return specs
