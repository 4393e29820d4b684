"""Compilation of a model: export its module, compile it by AOTInductor, store the package next to the weights.

The only part of this folder that imports torch. Takes a minute or more and must run on the kind of machine that will
serve the model: the code is specific to this GPU and CPU.
"""

import hashlib
import os
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pilotlight_predictor.backends.base import Device, LoadSpec
from pilotlight_predictor.backends.torch.aot.libtorch import Container, libtorch
from pilotlight_predictor.backends.torch.aot.package_lookup import (
    CONSTANTS,
    FOLDER,
    ISAS,
    LIBRARY,
    MANIFEST,
    Package,
    Port,
    current_machine,
    fingerprint,
    glibc,
    module_file,
    sha256,
    tensor_hashes,
)
from pilotlight_predictor.backends.torch.forward_signature import bind, name_outputs
from pilotlight_predictor.backends.torch.modules import LoadedModule, file_kind, load_module
from pilotlight_predictor.backends.torch.tensors import TORCH_NAMES, dtype_of
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.safetensors_header import weight_files
from pilotlight_predictor.repository.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

BATCH: Final = 2  # rows of the example: torch specialises sizes 0 and 1
DYNAMIC_SIZE: Final = 8  # size of an example's other dynamic dimensions
PREFIX: Final = "model."  # of the module's names inside the export wrapper
PACKAGED_SUFFIXES: Final = (".so", ".cubin")
MAX_INLINED: Final = 64  # items; inductor writes up to 8 into the code


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """Weights to compile, device and sizes; `shapes` are example shapes of inputs with further dynamic dimensions."""

    weights: Path
    device: Device
    largest_batch: int = 64
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def wrap_module(loaded: LoadedModule) -> "torch.nn.Module":
    """Wrap a module for export with the casts that the torch backend makes around it."""
    import torch

    if not loaded.inputs or loaded.signature.sample == {}:
        hint = 'INPUTS = {"x": ("FP32", [-1, 4])}'
        raise LoadFailed(f"model.py does not declare its inputs: add {hint} and OUTPUTS likewise, then compile again")
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


def compile_model(request: CompileRequest) -> Path:
    """Compile and return the package's folder. A failed compilation leaves nothing behind."""
    import torch
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if file_kind(request.weights) != "safetensors":
        raise LoadFailed(f"{request.weights.name} is not a safetensors model with a model.py, which is required")
    spec = LoadSpec(ModelConfig(name="model"), 1, request.weights, request.weights.parent, request.device)
    loaded = load_module(spec)
    wrapped = wrap_module(loaded).eval()
    inputs = example_inputs(loaded, request.shapes, str(request.device))
    with torch.no_grad():
        results = wrapped(*inputs)
        shapes = dynamic_shapes(loaded.inputs, request.largest_batch)
        exported = torch.export.export(wrapped, tuple(inputs), dynamic_shapes=(shapes,))
    outputs = output_ports(loaded.outputs, results, loaded.inputs, inputs)
    folder = (request.weights if request.weights.is_dir() else request.weights.parent) / FOLDER
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
        _compile_library(exported, Path(scratch))
        names = _store_constants(exported, request.weights, Path(scratch), _tied_names(loaded.module))
        machine = current_machine(request.device.kind, request.device.index)
        if request.device.kind != "cuda":
            isa = str(pick_vec_isa()).lower()
            machine = msgspec.structs.replace(machine, isa=next((name for name in ISAS if name in isa), ""))
        package = Package(
            machine=machine,
            weights=fingerprint(request.weights),
            module=sha256(module_file(request.weights)),
            library=sha256(Path(scratch) / LIBRARY),
            inputs=tuple(input_ports(loaded.inputs, exported)),
            outputs=tuple(outputs),
            largest_batch=request.largest_batch,
            inlined=_inlined(exported, request, Path(scratch)),
            constants=names,
            made_with=f"torch {torch.__version__}",
        )
        return _install(package, Path(scratch), folder)


def _compile_library(exported: Any, scratch: Path) -> None:
    """Compile, and extract the library and the cubins it loads from torch's package."""
    from torch._inductor import aoti_compile_and_package

    archive = scratch / "package.pt2"
    options = {"aot_inductor.package_constants_in_so": False}
    aoti_compile_and_package(exported, package_path=str(archive), inductor_configs=options)
    with zipfile.ZipFile(archive) as packed:
        _reject_python_operators(packed)
        for name in packed.namelist():
            if name.endswith(PACKAGED_SUFFIXES):
                target = LIBRARY if name.endswith(".so") else os.path.basename(name)
                (scratch / target).write_bytes(packed.read(name))
    archive.unlink()
    if not (scratch / LIBRARY).exists():
        raise LoadFailed("torch made a package without a library: is a C++ compiler (g++) installed?")


def _reject_python_operators(packed: zipfile.ZipFile) -> None:
    """Raise LoadFailed if the package lists operators that only Python's torch can run."""
    for name in packed.namelist():
        if name.endswith(".json") and "metadata" not in name:
            nodes = msgspec.json.decode(packed.read(name)).get("nodes") or ()
            if nodes:
                called = sorted({str(node.get("node", {}).get("target", "?")) for node in nodes})
                raise LoadFailed(f"the model calls {', '.join(called)}, which compiled code cannot; torch runs it")


def _tied_names(module: "torch.nn.Module") -> dict[str, list[str]]:
    """Map each tensor's name to all names that share its memory: safetensors stores only one of them."""
    groups: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault((tensor.data_ptr(), tuple(tensor.shape)), []).append(name)
    return {name: group for group in groups.values() for name in group}


def _store_constants(
    exported: Any, weights: Path, scratch: Path, tied_names: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Map each constant to its name in the weights; store those that are not there in a file of the package."""
    from safetensors.torch import load_file, save_file

    stored = {name: tensor for file in weight_files(weights) for name, tensor in load_file(file).items()}
    names: dict[str, str] = {}
    own: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(exported).items():
        plain = name.removeprefix(PREFIX)
        candidates = (plain, *tied_names.get(plain, ()))
        names[name] = next((each for each in candidates if _same(stored.get(each), tensor)), f"constant:{name}")
        if names[name] == f"constant:{name}":
            own[names[name]] = tensor.detach().cpu().contiguous().clone()
    if own:
        save_file(own, scratch / CONSTANTS)
    return names


def _inlined(exported: Any, request: CompileRequest, scratch: Path) -> dict[str, str]:
    """Hashes of small tensors that the library does not load: their values are in its code and must not change."""
    container = Container(scratch, libtorch(request.device.kind == "cuda"), request.device.kind, request.device.index)
    loaded = {name for _, name in container.constants()}
    container.close()
    small = [name for name, each in _tensors(exported).items() if name not in loaded and each.numel() <= MAX_INLINED]
    return tensor_hashes(request.weights, [name.removeprefix(PREFIX) for name in small])


def _tensors(exported: Any) -> "dict[str, torch.Tensor]":
    import torch

    values = {**exported.state_dict, **exported.constants}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _same(stored: "torch.Tensor | None", tensor: "torch.Tensor") -> bool:
    import torch

    if stored is None or stored.dtype != tensor.dtype or stored.shape != tensor.shape:
        return False
    return bool(torch.equal(stored, tensor.detach().cpu()))


def _install(package: Package, scratch: Path, folder: Path) -> Path:
    """Replace the package by a rename, so that readers find the old or the new one."""
    (scratch / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(package), indent=2))
    final = folder / package_key(package)
    ready = folder / f".{final.name}.new"
    shutil.rmtree(ready, ignore_errors=True)
    shutil.copytree(scratch, ready)
    shutil.rmtree(final, ignore_errors=True)
    ready.rename(final)
    return final


def package_key(package: Package) -> str:
    """Readable key of a package's target, such as cuda-sm90-torch2.11.0-1f3a9c07."""
    machine = package.machine
    kind = f"cpu-{machine.isa or platform.machine()}"
    if machine.device == "cuda":
        kind = f"cuda-sm{machine.sm.replace('.', '')}"
    content = msgspec.json.encode((machine, package.weights, package.module, glibc()))
    return f"{kind}-torch{machine.torch.partition('+')[0]}-{hashlib.sha256(content).hexdigest()[:8]}"


def parse_shapes(arguments: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse arguments such as `tokens=1,77`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for argument in arguments:
        name, mark, dims = argument.partition("=")
        try:
            shapes[name] = tuple(int(dim) for dim in dims.split(","))
        except ValueError:
            mark = ""
        if not mark or not name:
            raise LoadFailed(f"--shape {argument}: write NAME=1,77")
    return shapes
