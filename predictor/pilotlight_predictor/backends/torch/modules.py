"""Loading of torch model files of any kind into one callable module on one device. Used by backend.py.

TorchScript        a zip with code/            torch.jit.load
exported program   a zip with models/*.json    torch.export.load          (safe_load.py)
safetensors        with a model.py             weights assigned to the module that model.py builds
state dict         with a model.py             the same, read with weights_only=True
pickled module     only if pinned by its hash  torch.load in full, classes of model.py included (safe_load.py)

A checkpoint is a state dict under one of the keys of _NESTED, its names perhaps with a prefix (`model.`, `module.`).
"""

import inspect
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pilotlight.wire.model_formats import is_exported_program
from pilotlight_predictor.backends.base import LoadSpec, check_unpacked_memory
from pilotlight_predictor.backends.python.functions import declared
from pilotlight_predictor.backends.python.source import UserModule
from pilotlight_predictor.backends.torch import safe_load
from pilotlight_predictor.backends.torch.derived_signature import Signature, derive, sample_config
from pilotlight_predictor.backends.torch.forward_signature import Argument
from pilotlight_predictor.backends.torch.module_factory import build_early, build_module
from pilotlight_predictor.backends.torch.tensors import PRECISIONS, device_tensors
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.safetensors_header import weight_files
from pilotlight_predictor.observability.logs import log

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.gpu.parked_weights import ParkedWeights
    from pilotlight_predictor.gpu.safetensors_header import TensorInfo
    from pilotlight_predictor.gpu.safetensors_upload import Block

Weights = dict[str, Any]
Kind = Literal["torchscript", "export", "safetensors", "pickle"]
Blocks: TypeAlias = "Sequence[tuple[Block, Mapping[str, TensorInfo]]]"
_SCALARS: Final = ("int", "float", "bool", "number")
_NESTED: Final = ("model_state_dict", "state_dict", "model")  # keys of checkpoints, by torch's tutorials and Lightning
MISFITS: Final = 4  # problems of weights that a reason names


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A module on its device, and the signature of its `forward`."""

    module: Any
    arguments: Sequence[Argument]
    signature: Signature
    batchable: bool = False  # all tensors of the file share a dynamic first dimension
    compute: "torch.dtype | None" = None  # dtype to cast floating inputs to; None: no cast
    source: UserModule | None = None
    parking: "ParkedWeights | None" = None  # of parkable weights on a GPU

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return self.signature.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        return self.signature.outputs


def load_module(spec: LoadSpec) -> LoadedModule:
    kind = file_kind(spec.path)
    if kind == "torchscript":
        return _torchscript(spec)
    if kind == "export":
        return _exported(spec)
    source = UserModule(spec.folder / "model.py", spec.model_dir)
    try:
        return _load_weights_file(spec, kind, source)
    except BaseException:
        source.close()
        raise


def file_kind(path: Path) -> Kind:
    """Kind of a file, by content if the suffix is ambiguous: .pt is TorchScript, a state dict or a pickled module."""
    if path.is_dir() or path.suffix == ".safetensors":
        return "safetensors"
    if not zipfile.is_zipfile(path):
        return "pickle"
    check_unpacked_memory(path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/code/" in name or name.endswith("/constants.pkl") for name in names):
        return "torchscript"
    if any(map(is_exported_program, names)):
        return "export"
    if any("/aotinductor/" in name for name in names):
        why = f"{path.name} is compiled by AOTInductor for one machine type"
        raise LoadFailed(f"{why}: save it by torch.export.save")
    return "pickle"


def precision_dtype(precision: str) -> "torch.dtype | None":
    import torch

    return getattr(torch, PRECISIONS[precision]) if precision in PRECISIONS else None


def _torchscript(spec: LoadSpec) -> LoadedModule:
    import torch

    # Triton's users have TorchScript; its deprecation warning at each load is noise.
    warnings.filterwarnings("ignore", message="`torch.jit.load`", category=FutureWarning)
    try:
        module = torch.jit.load(str(spec.path), map_location=str(spec.device)).eval()
    except RuntimeError as error:
        raise LoadFailed(f"{spec.path.name} is not TorchScript that this torch can read: {error}") from error
    compute = precision_dtype(spec.precision)
    if compute is not None:
        module = module.to(compute)
    arguments = [_script_argument(argument) for argument in module.forward.schema.arguments[1:]]
    signature = _signature(spec, module, arguments, compute)
    return LoadedModule(module, arguments, signature, compute=compute)


def _signature(
    spec: LoadSpec, module: Any, arguments: Sequence[Argument], compute: Any, source: UserModule | None = None
) -> Signature:
    """Return the tensors that model.py declares, else those that can be derived, with a warning if none run."""
    import torch

    inputs, outputs = declared(source.path) if source and source.path.is_file() else ((), ())
    if inputs or spec.config.inputs:
        return Signature(inputs, outputs)

    def on_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        moved = value.to(str(spec.device))
        return moved.to(compute) if compute is not None and value.is_floating_point() else moved

    def call(values: Mapping[str, Any]) -> Any:
        with torch.no_grad():
            return module(**{name: on_device(value) for name, value in values.items()})

    derived = derive(module, arguments, call)
    if not derived.sample:
        message = (
            f"model '{spec.config.name}': the shapes of its inputs are not known, so they are not validated: forward "
            f"takes {', '.join(a.name for a in arguments) or 'nothing'}; to declare them, put a config.pbtxt into the "
            f"folder of the model file and deploy that folder. config.pbtxt: {sample_config(derived.inputs)}"
        )
        log("model.undeclared", message, level="WARNING", model=spec.config.name)
    return derived._replace(outputs=() if spec.config.outputs else outputs or derived.outputs)


def _script_argument(argument: Any) -> Argument:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]").removesuffix("?")
    takes = "scalar" if kind in _SCALARS else "tensor"
    if kind.startswith("Dict(str, Tensor"):
        takes = "dict"
    elif kind in {"List[Tensor", "Tensor["}:
        takes = "list"
    return Argument(argument.name, takes, required=not argument.has_default_value())


def _exported(spec: LoadSpec) -> LoadedModule:
    from torch.export.passes import move_to_device_pass

    if spec.precision in {"fp16", "bf16"}:
        raise LoadFailed(
            f"precision = {spec.precision}, but {spec.path.name} was exported with its types fixed: "
            f"export the module in {spec.precision}, or set precision: auto"
        )
    program = safe_load.load_exported(spec)
    if spec.device.kind == "cuda":
        program = move_to_device_pass(program, str(spec.device))
    signature = safe_load.read_program(spec.path)
    tensors = Signature(signature.inputs, signature.outputs)
    return LoadedModule(program.module(), signature.arguments, tensors, signature.batchable)


def _load_weights_file(spec: LoadSpec, kind: Kind, source: UserModule) -> LoadedModule:
    """Load safetensors, a state dict or a pickled module; the first two with the module that model.py builds."""
    import torch

    empty = build_early(source, spec) if kind == "safetensors" else None
    blocks = spec.prefetched.wait() if spec.prefetched is not None else []
    content = _safetensors(spec, blocks) if kind == "safetensors" else safe_load.load(spec, source.pickled)
    content = unwrap_checkpoint(content)
    if isinstance(content, torch.nn.Module):
        module = content.to(str(spec.device))
    else:
        weights = _state_dict(content, spec.path, precision_dtype(spec.precision))
        empty = empty if empty is not None else build_module(source, spec, weights)
        module = load_weights(empty, weights, str(spec.device), spec.path.name)
    compute = precision_dtype(spec.precision)
    if compute is None:  # float32 inputs are cast if all weights are half precision
        dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
        compute = dtypes.pop() if dtypes in ({torch.float16}, {torch.bfloat16}) else None
    if compute is not None:
        module = module.to(compute)
    module, arguments, parking = module.eval(), _forward_arguments(module), _parking(blocks)
    signature = _signature(spec, module, arguments, compute, source)
    return LoadedModule(module, arguments, signature, compute=compute, source=source, parking=parking)


def unwrap_checkpoint(content: Any) -> Any:
    """Return the state dict or module that a checkpoint has beside its epoch, optimizer and so on."""
    import torch

    if isinstance(content, Mapping):
        for key in _NESTED:
            if isinstance(content.get(key), (Mapping, torch.nn.Module)):
                return content[key]
        mappings = [value for value in content.values() if isinstance(value, Mapping)]
        found = [each for each in mappings if any(isinstance(value, torch.Tensor) for value in each.values())]
        if len(found) == 1:  # under a name of its author's
            return found[0]
    return content


def _parking(blocks: "Blocks") -> "ParkedWeights | None":
    """Parkable weights; torch's cache, as large as the largest request, is freed with them."""
    if not blocks:
        return None
    import torch

    from pilotlight_predictor.gpu.parked_weights import create_parked_weights

    return create_parked_weights([block for block, _ in blocks], torch.cuda.empty_cache)


def _safetensors(spec: LoadSpec, blocks: "Blocks") -> Weights:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if blocks:
        return device_tensors(blocks)
    weights: Weights = {}
    for file in weight_files(spec.path):
        try:
            weights.update(load_file(file, device=str(spec.device)))
        except SafetensorError as error:
            raise LoadFailed(f"{file.name} is damaged or not a safetensors file: {error}") from error
    return weights


def _state_dict(content: object, path: Path, dtype: "torch.dtype | None") -> Weights:
    """Weights of a file; floating ones cast to `dtype`."""
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise LoadFailed(f"{path.name} holds {type(content).__name__}, must be a state dict: name → tensor")
    weights = dict(content)
    if dtype is not None:
        for name, value in weights.items():  # one at a time: the peak is one tensor above the larger of the two sizes
            if value.is_floating_point():
                weights[name] = value.to(dtype)
    return weights


def _without_prefix(weights: Weights, names: Collection[str]) -> Weights:
    """Remove the one prefix, such as Lightning's `model.`, under which all `names` of the module are."""
    first = next(iter(names), "")
    prefixes = {name.removesuffix(first) for name in weights if name.endswith(first)}
    fitting = [prefix for prefix in prefixes if all(prefix + name in weights for name in names)]
    return {name: weights[fitting[0] + name] for name in names} if len(fitting) == 1 and fitting[0] else weights


def _forward_arguments(module: "torch.nn.Module") -> list[Argument]:
    arguments = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            continue
        required = parameter.default is parameter.empty
        arguments.append(Argument(parameter.name, "tensor", required, parameter.kind is parameter.KEYWORD_ONLY))
    return arguments


def load_weights(module: "torch.nn.Module", weights: Weights, device: str, file: str) -> "torch.nn.Module":
    try:
        weights = _without_prefix(weights, module.state_dict())
        module.load_state_dict(_with_tied(module, weights), strict=True, assign=True)
    except RuntimeError as error:
        heading, *lines = (line.strip().rstrip(".") for line in str(error).splitlines() or [""])
        more = f"; and {len(lines) - MISFITS} more" if len(lines) > MISFITS else ""
        problem = "; ".join(lines[:MISFITS]) or heading
        if "size mismatch for" in problem:
            name = type(module).__name__
            more += f": define build() in model.py that returns {name}(…) with the arguments it was trained with"
        raise LoadFailed(f"{file} does not fit the module of model.py: {problem}{more}") from None
    return module.to(device)


def _with_tied(module: "torch.nn.Module", weights: Weights) -> Weights:
    """Add the names of tied tensors, of which safetensors stores only one; a strict load requires all."""
    first: dict[int, str] = {}
    tied: Weights = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        original = first.setdefault(id(parameter), name)
        for missing, present in ((name, original), (original, name)):
            if missing not in weights and present in weights:
                tied[missing] = weights[present]
    return {**weights, **tied}
