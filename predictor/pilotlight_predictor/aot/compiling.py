"""Makes the package of a model: its module is exported, compiled by AOTInductor, and laid beside the weights.

The only part of this folder that imports torch. It takes a minute or more, and runs where the model shall run: the code
is made for this GPU and this processor.
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

from pilotlight_predictor.aot.container import Container
from pilotlight_predictor.aot.graph import Wrapped, dynamic_shapes, examples, exported_ports, ports_of
from pilotlight_predictor.aot.libtorch import libtorch
from pilotlight_predictor.aot.machine import Machine, glibc, here
from pilotlight_predictor.aot.package import (
    CONSTANTS,
    FOLDER,
    LIBRARY,
    MANIFEST,
    Package,
    fingerprint,
    hashes,
    module_file,
    sha256,
)
from pilotlight_predictor.backends.base import Device, LoadSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

PREFIX: Final = "model."  # of the module's own names within the wrapped one
KEPT: Final = (".so", ".cubin")
LARGEST_INLINED: Final = 64  # items; inductor writes up to 8 into the code
ISA_NAMES: Final = {"avx512": "avx512", "avx2": "avx2"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What to compile, and for which sizes; `shapes` gives examples of dimensions that vary beside the batch."""

    weights: Path
    device: Device
    largest_batch: int = 64
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def compile_model(wish: Wish) -> Path:
    """The folder of the package. Nothing is left behind by a compilation that fails."""
    import torch

    from pilotlight_predictor.backends.torch_modules import kind_of, read

    if kind_of(wish.weights) != "safetensors":
        raise LoadFailed(f"{wish.weights.name} is no safetensors model: only those, with a model.py, are compiled")
    spec = LoadSpec(ModelConfig(name="model"), 1, wish.weights, wish.weights.parent, wish.device)
    loaded = read(spec)
    wrapped = Wrapped(loaded).eval()
    given = examples(loaded, wish.shapes, str(wish.device))
    with torch.no_grad():
        answered = wrapped(*given)
        shapes = dynamic_shapes(loaded.inputs, wish.largest_batch)
        exported = torch.export.export(wrapped, tuple(given), dynamic_shapes=(shapes,))
    outputs = ports_of(loaded.outputs, answered, loaded.inputs, given)
    folder = (wish.weights if wish.weights.is_dir() else wish.weights.parent) / FOLDER
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
        _compiled(exported, Path(scratch))
        names = _constants(exported, wish.weights, Path(scratch), _twins(loaded.module))
        package = Package(
            machine=_machine(wish.device),
            weights=fingerprint(wish.weights),
            module=sha256(module_file(wish.weights)),
            library=sha256(Path(scratch) / LIBRARY),
            inputs=tuple(exported_ports(loaded.inputs, exported)),
            outputs=tuple(outputs),
            largest_batch=wish.largest_batch,
            inlined=_inlined(exported, wish, Path(scratch)),
            constants=names,
            made_with=f"torch {torch.__version__}",
        )
        return _laid_down(package, Path(scratch), folder)


def _compiled(exported: Any, scratch: Path) -> None:
    """The library and what it loads itself, out of torch's own package."""
    from torch._inductor import aoti_compile_and_package

    archive = scratch / "made.pt2"
    aoti_compile_and_package(
        exported,
        package_path=str(archive),
        inductor_configs={"aot_inductor.package_constants_in_so": False},
    )
    with zipfile.ZipFile(archive) as packed:
        _refuse_foreign_calls(packed)
        for name in packed.namelist():
            if name.endswith(KEPT):
                own = LIBRARY if name.endswith(".so") else os.path.basename(name)
                (scratch / own).write_bytes(packed.read(name))
    archive.unlink()
    if not (scratch / LIBRARY).exists():
        raise LoadFailed("torch made a package without a library: is a C++ compiler (g++) installed?")


def _refuse_foreign_calls(packed: zipfile.ZipFile) -> None:
    """Operators that only Python's torch can call are listed in the package; without Python nobody answers them."""
    for name in packed.namelist():
        if name.endswith(".json") and "metadata" not in name:
            nodes = msgspec.json.decode(packed.read(name)).get("nodes") or ()
            if nodes:
                called = sorted({str(node.get("node", {}).get("target", "?")) for node in nodes})
                raise LoadFailed(f"the model calls {', '.join(called)}, which compiled code cannot; torch runs it")


def _twins(module: "torch.nn.Module") -> dict[str, list[str]]:
    """By each name of a stored tensor the names that share its memory: safetensors keeps only one of them."""
    groups: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault((tensor.data_ptr(), tuple(tensor.shape)), []).append(name)
    return {name: group for group in groups.values() for name in group}


def _constants(exported: Any, weights: Path, scratch: Path, twins: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Where each constant of the compiled model is: under another name in the weights, or in a file of the package."""
    from safetensors.torch import save_file

    stored = _stored(weights)
    names: dict[str, str] = {}
    own: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(exported).items():
        plain = name.removeprefix(PREFIX)
        if _same(stored.get(plain), tensor):
            names[name] = plain
            continue
        tied = next((twin for twin in twins.get(plain, ()) if _same(stored.get(twin), tensor)), None)
        if tied is not None:
            names[name] = tied
            continue
        names[name] = f"constant:{name}"
        own[f"constant:{name}"] = tensor.detach().cpu().contiguous().clone()
    if own:
        save_file(own, scratch / CONSTANTS)
    return names


def _inlined(exported: Any, wish: Wish, scratch: Path) -> dict[str, str]:
    """Small tensors that the library does not ask for: their values are in its code, so they must stay."""
    container = Container(scratch, libtorch(wish.device.kind == "cuda"), wish.device.kind, wish.device.index)
    asked = {name for _, name in container.constants()}
    container.close()
    small = [name for name, each in _tensors(exported).items() if name not in asked and each.numel() <= LARGEST_INLINED]
    return hashes(wish.weights, [name.removeprefix(PREFIX) for name in small])


def _tensors(exported: Any) -> "dict[str, torch.Tensor]":
    import torch

    found = {**exported.state_dict, **exported.constants}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _stored(weights: Path) -> "dict[str, torch.Tensor]":
    from safetensors.torch import load_file

    from pilotlight_predictor.weights.safetensors_file import files_of

    return {name: tensor for file in files_of(weights) for name, tensor in load_file(file).items()}


def _same(stored: "torch.Tensor | None", tensor: "torch.Tensor") -> bool:
    import torch

    if stored is None or stored.dtype != tensor.dtype or stored.shape != tensor.shape:
        return False
    return bool(torch.equal(stored, tensor.detach().cpu()))


def _machine(device: Device) -> Machine:
    ours = here(device.kind, device.index)
    return ours if device.kind == "cuda" else msgspec.structs.replace(ours, isa=_isa())


def _isa() -> str:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    told = str(pick_vec_isa()).lower()
    return next((name for text, name in ISA_NAMES.items() if text in told), "")


def _laid_down(package: Package, scratch: Path, folder: Path) -> Path:
    """All at once: who looks meanwhile finds the old package or the new one."""
    (scratch / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(package), indent=2))
    final = folder / key_of(package)
    ready = folder / f".{final.name}.new"
    shutil.rmtree(ready, ignore_errors=True)
    shutil.copytree(scratch, ready)
    shutil.rmtree(final, ignore_errors=True)
    ready.rename(final)
    return final


def key_of(package: Package) -> str:
    """What it was made for, readable: cuda-sm90-torch2.11.0-1f3a9c07."""
    made = package.machine
    kind = f"cuda-sm{made.sm.replace('.', '')}" if made.device == "cuda" else f"cpu-{made.isa or platform.machine()}"
    whole = msgspec.json.encode((made, package.weights, package.module, glibc()))
    return f"{kind}-torch{made.torch.partition('+')[0]}-{hashlib.sha256(whole).hexdigest()[:8]}"


def shapes_of(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`tokens=1,77` by name."""
    found: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, mark, dims = word.partition("=")
        try:
            found[name] = tuple(int(dim) for dim in dims.split(","))
        except ValueError:
            mark = ""
        if not mark or not name:
            raise LoadFailed(f"--shape {word}: write NAME=1,77")
    return found
