"""Inputs and outputs of a module whose file declares none: guessed from its layers, kept if zeros run through.

Used by modules.py for TorchScript and for modules of model.py, when neither a configuration nor INPUTS describes them.
Two runs, of two and three rows, show which sizes of the outputs vary. The sizes of images are tried, see image_size.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.backends.torch.forward_signature import Argument, name_outputs
from pilotlight_predictor.backends.torch.image_size import Fit, common_sizes, compare_sizes, find_size, rows_fit
from pilotlight_predictor.backends.torch.index_arguments import index_arguments
from pilotlight_predictor.backends.torch.tensors import dtype_of, from_torch
from pilotlight_predictor.core.tensors import Shape, TensorSpec

if TYPE_CHECKING:
    import torch

Specs = Sequence[TensorSpec]
_Type = tuple[str, Shape]
Call = Callable[[Mapping[str, Any]], Any]  # runs the module with CPU tensors, on its device and in its precision
_LENGTHS: Final = (8, 12)
_CANDIDATES: Final = 6  # layers' shapes per argument
_COMBINATIONS: Final = 64  # of candidates, for several arguments
_LIMIT_S: Final = 5.0  # of all runs; a load that takes longer is worse than shapes that are not known
_SCALAR: Final = ("INT64", (1,))
_ROWS: Final = ("FP32", (-1, -1))  # of numbers, as /predict sends them
_INDICES: Final = (("INT64", (-1, -1)), ("INT64", (-1,)))


class Signature(NamedTuple):
    """`sample`: shapes of zeros that ran, empty if none did; None: the tensors are declared, not derived."""

    inputs: Specs = ()
    outputs: Specs = ()
    sample: Mapping[str, Shape] | None = None


class _Run(NamedTuple):
    size: int
    outputs: Mapping[str, Any]


def derive(module: Any, arguments: Sequence[Argument], call: Call) -> Signature:
    """Return the signature that runs, else the likeliest one without a sample; an empty one for lists and dicts."""
    required = [argument for argument in arguments if argument.required]
    if not required or {argument.takes for argument in required} - {"tensor", "scalar"}:
        return Signature(sample={})
    likely, indices = list(islice(dict.fromkeys(_layer_shapes(module)), _CANDIDATES)), index_arguments(module)
    choices = [_choices(argument, likely, indices) for argument in required]
    deadline, partial = monotonic() + _LIMIT_S, None
    for shapes in islice(product(*choices), _COMBINATIONS):
        if monotonic() < deadline:
            inputs = [TensorSpec(argument.name, *shape) for argument, shape in zip(required, shapes, strict=True)]
            found = _verify(inputs, call, deadline)
            # Beside indices, one length that happens to fit a layer is not yet the length that they must have.
            if found is not None and (not indices or found.inputs == inputs):
                return found
            partial = partial or found
    if partial is not None:
        return partial
    known = [len(required) == 1 or each.takes == "scalar" or each.name in (indices or ()) for each in required]
    guess = [choice[0] if choice and sure else _ROWS for choice, sure in zip(choices, known, strict=True)]
    inputs = [TensorSpec(argument.name, *shape) for argument, shape in zip(required, guess, strict=True)]
    rows = _verify(inputs, call, deadline) if _ROWS in guess else None
    return rows or Signature(inputs, sample={})


def _choices(argument: Argument, likely: Sequence[_Type], indices: frozenset[str] | None) -> Sequence[_Type]:
    """Return what an argument may take, the likeliest first; `indices` are the arguments known to be integers."""
    if argument.takes == "scalar":
        return [_SCALAR]
    if indices is None:
        return likely
    if argument.name in indices:
        return _INDICES
    numbers = sorted(likely, key=lambda each: each[0] == "INT64")
    return [_ROWS, *numbers] if indices else numbers


def sample_config(inputs: Specs) -> str:
    """Return a config.pbtxt for inputs, in which shapes and types are to be corrected."""
    lines = [
        f'input [ {{ name: "{each.name}" data_type: TYPE_{each.datatype} dims: {list(each.shape)} }} ]'
        for each in inputs
    ]
    return " ".join((*lines, 'output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]'))


def _layer_shapes(module: Any) -> Iterator[tuple[str, Shape]]:
    """Yield shapes that the layers with weights would take: of all the likeliest first, then their alternatives."""
    alternatives: list[tuple[str, Shape]] = []
    for layer in module.modules():
        own = dict(layer.named_parameters(recurse=False))
        if own:
            first, *others = _layer_inputs(getattr(layer, "original_name", type(layer).__name__), layer, own)
            yield first
            alternatives += others
    yield from alternatives


def _layer_inputs(kind: str, layer: Any, own: "Mapping[str, torch.Tensor]") -> list[tuple[str, Shape]]:
    weight = own.get("weight", own.get("weight_ih_l0", next(iter(own.values()))))
    datatype, size = "FP64" if str(weight.dtype) == "torch.float64" else "FP32", tuple(weight.shape)
    shapes: list[Shape] = [(-1, *size)]
    if "Embedding" in kind:
        return list(_INDICES)
    if kind.startswith("Conv") and len(size) > 2:
        channels = size[0] if "Transpose" in kind else size[1] * getattr(layer, "groups", 1)
        free = (-1,) * (len(size) - 2)
        shapes = [(-1, channels, *free), (-1, *free, channels), (-1, *free)]  # or channels last, or none
    elif kind.startswith(("BatchNorm", "InstanceNorm")) and kind[-2:] in {"1d", "2d", "3d"}:
        free = (-1,) * int(kind[-2])
        shapes = [(-1, *size), (-1, *size, -1)] if kind[-2:] == "1d" else [(-1, *size, *free)]
    elif kind in {"LSTM", "GRU", "RNN"}:
        shapes = [(-1, -1, size[1])]
    elif len(size) == 2:
        shapes = [(-1, size[1]), (-1, size[0])]  # the second is a product x @ weight
    return [(datatype, shape) for shape in shapes]


def _verify(inputs: Specs, call: Call, deadline: float) -> Signature | None:
    """Return the signature, with sizes fixed that only run so, and the outputs; None if zeros of it do not run."""
    varies = any(-1 in each.shape[1:] for each in inputs)
    searched = any(_is_image(each) for each in inputs)
    sizes = (common_sizes(max(len(each.shape) for each in inputs)) if searched else _LENGTHS) if varies else (1,)
    runs: list[_Run] = []
    fits: dict[int, Fit] = {}
    for size in sizes:
        if len(runs) < 2:
            _try(inputs, 2 + len(runs), size, call, runs, fits)
    if not runs and searched:
        find_size(fits, lambda size: _try(inputs, 2, size, call, runs, fits), lambda: monotonic() > deadline)
        runs[:] = [min(runs, key=lambda run: run.size)] if runs else []
    if not runs:
        return None
    sizes_run = {run.size for run in runs}
    if len(runs) == 1:
        size = runs[0].size
        several = searched and size not in sizes and _try(inputs, 3, size + 1, call, runs, fits) == "fits"
        if varies and not several:
            inputs = [each._replace(shape=(each.shape[0], *_sized(each.shape, size))) for each in inputs]
        if len(runs) == 1 and _try(inputs, 3, size, call, runs, fits) != "fits":
            runs.append(runs[0])
    sample = {each.name: (1, *_sized(each.shape, min(sizes_run))) for each in inputs}
    return Signature(inputs, _compare(runs[0].outputs, runs[1].outputs), sample)


def _is_image(spec: TensorSpec) -> bool:
    return len(spec.shape) > 3 or (len(spec.shape) == 3 and spec.shape[-1] == -1)


def _sized(shape: Shape, size: int) -> Shape:
    return tuple(size if dim == -1 else dim for dim in shape[1:])


def _try(inputs: Specs, rows: int, size: int, call: Call, runs: list[_Run], fits: dict[int, Fit]) -> Fit:
    """Run zeros of a size; add the outputs to `runs` if they run, and to `fits` whether the size is right."""
    import torch

    def zeros(each: TensorSpec) -> Any:
        if each.shape == (1,):
            return 1
        return torch.zeros((rows, *_sized(each.shape, size)), dtype=dtype_of(each.datatype))

    try:
        result = name_outputs(call({each.name: zeros(each) for each in inputs}), ())
        outputs = {name: from_torch(value.cpu()) for name, value in result.items()}
    except Exception as error:  # of any type: the guess is wrong, or the module's own code is
        fits[size] = compare_sizes(str(error), rows)
        return fits[size]
    shapes = [tensor.array.shape for tensor in outputs.values()]
    fits[size] = rows_fit(shapes[0], rows) if shapes and any(_is_image(each) for each in inputs) else "fits"
    if fits[size] == "fits":
        runs.append(_Run(size, outputs))
    return fits[size]


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
