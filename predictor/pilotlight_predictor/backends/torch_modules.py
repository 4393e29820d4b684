"""Reads a torch model file in any of its forms into one callable on one device. torch.py calls `read` at load.

TorchScript        a zip with code/            torch.jit.load
exported program   a zip with models/*.json    torch.export.load          (torch_export.py)
safetensors        beside a model.py           weights assigned to the module that model.py builds
state dict         beside a model.py           the same, read with weights_only=True
pickled module     only if pinned by its hash  torch.load in full         (torch_pickle.py)
"""

import inspect
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pilotlight_predictor.backends import torch_export, torch_pickle
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.declared_tensors import declared
from pilotlight_predictor.backends.model_source import Source
from pilotlight_predictor.backends.torch_assemble import Weights, built, filled
from pilotlight_predictor.backends.torch_signature import Argument
from pilotlight_predictor.backends.torch_tensors import PRECISIONS, adopt
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.tensors import TensorSpec
from pilotlight_predictor.weights.safetensors_file import files_of

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.weights.moving import Block
    from pilotlight_predictor.weights.parked_weights import ParkedWeights
    from pilotlight_predictor.weights.safetensors_file import Place

Kind = Literal["torchscript", "export", "safetensors", "pickle"]
Blocks: TypeAlias = "Sequence[tuple[Block, Mapping[str, Place]]]"
_SCALARS = ("int", "float", "bool", "number")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module on its device, and what is known of its `forward`."""

    module: Any
    arguments: Sequence[Argument]
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    batchable: bool = False  # the file says that all tensors share a first dimension of variable size
    compute: "torch.dtype | None" = None  # floating inputs are cast to it; None leaves them as they come
    source: Source | None = None
    parking: "ParkedWeights | None" = None  # of weights that may leave the GPU


def read(spec: LoadSpec) -> Loaded:
    kind = kind_of(spec.path)
    if kind == "torchscript":
        return _torchscript(spec)
    if kind == "export":
        return _exported(spec)
    return _built(spec, kind)


def kind_of(path: Path) -> Kind:
    """By content where the ending does not decide: a .pt may be TorchScript, a state dict or a pickled module."""
    if path.is_dir() or path.suffix == ".safetensors":
        return "safetensors"
    if not zipfile.is_zipfile(path):
        return "pickle"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/code/" in name or name.endswith("/constants.pkl") for name in names):
        return "torchscript"
    if torch_export.is_exported(names):
        return "export"
    if any("/aotinductor/" in name for name in names):
        raise LoadFailed(
            f"{path.name} is compiled by AOTInductor for one kind of machine: save it by torch.export.save"
        )
    return "pickle"


def precision_dtype(precision: str) -> "torch.dtype | None":
    import torch

    found: torch.dtype | None = getattr(torch, PRECISIONS[precision]) if precision in PRECISIONS else None
    return found


def _torchscript(spec: LoadSpec) -> Loaded:
    import torch

    # TorchScript is what Triton's users have; that torch would rather have them export is not news at each load.
    warnings.filterwarnings("ignore", message="`torch.jit.load`", category=FutureWarning)
    try:
        module = torch.jit.load(str(spec.path), map_location=str(spec.device)).eval()
    except RuntimeError as error:
        raise LoadFailed(f"{spec.path.name} is no TorchScript that this torch can read: {error}") from error
    compute = precision_dtype(spec.precision)
    if compute is not None:
        module = module.to(compute)
    arguments = [_script_argument(argument) for argument in module.forward.schema.arguments[1:]]
    if not (spec.config.inputs and spec.config.outputs):
        raise LoadFailed(
            f"{spec.path.name} is TorchScript, which does not tell the datatypes and shapes of its tensors: give it a "
            f"config.pbtxt with input and output; forward takes {', '.join(a.name for a in arguments) or 'nothing'}"
        )
    return Loaded(module, arguments, compute=compute)


def _script_argument(argument: Any) -> Argument:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]").removesuffix("?")
    takes = "scalar" if kind in _SCALARS else "tensor"
    if kind.startswith("Dict(str, Tensor"):
        takes = "dict"
    elif kind in {"List[Tensor", "Tensor["}:
        takes = "list"
    return Argument(argument.name, takes, required=not argument.has_default_value())


def _exported(spec: LoadSpec) -> Loaded:
    from torch.export.passes import move_to_device_pass

    if spec.precision in {"fp16", "bf16"}:
        raise LoadFailed(
            f"precision = {spec.precision}, but {spec.path.name} was exported with its types fixed: "
            f"export the module in {spec.precision}, or set precision: auto"
        )
    program = torch_pickle.load_exported(spec)
    if spec.device.kind == "cuda":
        program = move_to_device_pass(program, str(spec.device))
    found = torch_export.read(spec.path)
    return Loaded(program.module(), found.arguments, found.inputs, found.outputs, found.batchable)


def _built(spec: LoadSpec, kind: Kind) -> Loaded:
    """safetensors, a state dict or a pickled module, with the module that model.py builds."""
    import torch

    source = Source(_module_file(spec), spec.model_dir) if kind == "safetensors" else None
    empty = _empty(source, spec) if source is not None else None
    blocks = spec.ahead.wait() if spec.ahead is not None else []
    content = _safetensors(spec, blocks) if kind == "safetensors" else torch_pickle.load(spec)
    if isinstance(content, torch.nn.Module):
        module = content.to(str(spec.device))
    else:
        source = source or Source(_module_file(spec), spec.model_dir)
        weights = _cast(_state_dict(content, spec.path), precision_dtype(spec.precision))
        empty = empty if empty is not None else built(_factory(source, spec))
        module = filled(empty, weights, str(spec.device), spec.path.name)
    compute = precision_dtype(spec.precision) or _half(module.parameters())
    if compute is not None:
        module = module.to(compute)
    inputs, outputs = declared(source.path) if source else ((), ())
    arguments, parking = _forward_arguments(module), _parking(blocks)
    return Loaded(module.eval(), arguments, inputs, outputs, compute=compute, source=source, parking=parking)


def _empty(source: Source, spec: LoadSpec) -> "torch.nn.Module":
    """The module, built while its weights are on their way. Where that fails they have come before it is told, and go:
    whoever loads it again finds room."""
    try:
        return built(_factory(source, spec))
    except BaseException:
        if spec.ahead is not None:
            with suppress(Exception):
                spec.ahead.wait()
        raise


def _parking(blocks: "Blocks") -> "ParkedWeights | None":
    """torch's cache leaves with the weights: between requests it is empty, and as large as the largest of them."""
    if not blocks:
        return None
    import torch

    from pilotlight_predictor.weights.parked_weights import parkable

    return parkable([block for block, _ in blocks], torch.cuda.empty_cache)


def _safetensors(spec: LoadSpec, blocks: "Blocks") -> Weights:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if blocks:
        return adopt(blocks)
    weights: Weights = {}
    for file in files_of(spec.path):
        try:
            weights.update(load_file(file, device=str(spec.device)))
        except SafetensorError as error:
            raise LoadFailed(f"{file.name} is damaged or no safetensors file: {error}") from error
    return weights


def _state_dict(content: object, path: Path) -> Weights:
    """The weights themselves, out of a checkpoint that has them under `state_dict` if need be."""
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise LoadFailed(f"{path.name} holds {type(content).__name__}, must be a state dict: name → tensor")
    return dict(content)


def _cast(weights: Weights, dtype: "torch.dtype | None") -> Weights:
    """One tensor at a time, so that the peak is one tensor above the larger of the two sizes."""
    if dtype is not None:
        for name, value in weights.items():
            if value.is_floating_point():
                weights[name] = value.to(dtype)
    return weights


def _half(parameters: Iterable["torch.Tensor"]) -> "torch.dtype | None":
    """The weights' type where all are half precision: float32 inputs would not multiply with them."""
    import torch

    found = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    return found.pop() if found in ({torch.float16}, {torch.bfloat16}) else None


def _module_file(spec: LoadSpec) -> Path:
    folder = spec.path if spec.path.is_dir() else spec.path.parent
    file = folder / "model.py"
    if not file.is_file():
        raise LoadFailed(
            f"{spec.path.name} holds weights alone: put a model.py beside it that defines build() -> torch.nn.Module, "
            f"or save the whole model by torch.export.save"
        )
    return file


def _factory(source: Source, spec: LoadSpec) -> "Callable[[], torch.nn.Module]":
    name = spec.config.parameters.get("MODULE", "build")
    factory: Callable[[], torch.nn.Module] | None = getattr(source.module, name, None)
    if not callable(factory):
        raise LoadFailed(
            f"model.py of {spec.config.name!r} has no {name}: define build() -> torch.nn.Module, or set the parameter "
            f"MODULE to the name of a class or function in it"
        )
    return factory


def _forward_arguments(module: "torch.nn.Module") -> list[Argument]:
    found = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            continue
        required = parameter.default is parameter.empty
        found.append(Argument(parameter.name, "tensor", required, parameter.kind is parameter.KEYWORD_ONLY))
    return found
