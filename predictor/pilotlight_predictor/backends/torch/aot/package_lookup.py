"""Package of a compiled model, next to its weights: `aot/KEY/package.json`, a library, and extra constants.

It runs only with the torch, CUDA, GPU generation, CPU vector instructions and C library it was compiled for, and while
the tensors' names, dtypes and shapes, the module, and the values of small tensors that the compiler inlined are the
same. torch is not imported: its version is read.
"""

import hashlib
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.safetensors_header import read_header, read_tensor, weight_files

# CPU flags (/proc/cpuinfo) required by the vector ISAs of inductor.
ISAS: Final[dict[str, frozenset[str]]] = {
    "avx512": frozenset({"avx512f", "avx512dq", "avx512vl", "avx512bw"}),
    "avx2": frozenset({"avx2", "fma"}),
    "": frozenset(),
}
FOLDER: Final = "aot"
MANIFEST: Final = "package.json"
LIBRARY: Final = "model.so"
CONSTANTS: Final = "constants.safetensors"


class Machine(Struct, frozen=True):
    """Machine that a package was compiled for. `sm` is empty for the CPU, `isa` for a GPU."""

    device: str  # cpu | cuda
    torch: str
    cuda: str
    arch: str
    glibc: str
    sm: str = ""
    isa: str = ""


def torch_root() -> Path | None:
    """Folder of the installed torch, without importing it; None if there is none."""
    spec = find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def torch_version() -> tuple[str, str]:
    """Versions of torch and of the CUDA it was built with; empty if there is none."""
    root = torch_root()
    if root is None:
        return "", ""
    text = (root / "version.py").read_text()
    return _assigned("__version__", text), _assigned("cuda", text)


def _assigned(name: str, text: str) -> str:
    match = re.search(rf"^{name}\b[^=\n]*= *'([^']*)'", text, re.MULTILINE)
    return match[1] if match else ""


def glibc() -> str:
    return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2] if hasattr(os, "confstr") else ""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        line = next(line for line in cpuinfo.read_text().splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def current_machine(device: str, index: int) -> Machine:
    """This machine with one device."""
    from pilotlight_predictor.gpu.cuda_driver import compute_capability

    version, cuda = torch_version()
    sm = (compute_capability(index) or "") if device == "cuda" else ""
    return Machine(device, version, cuda, platform.machine(), glibc(), sm, "")


def incompatibility(required: Machine, ours: Machine, flags: frozenset[str]) -> str:
    """Return in one sentence why a package cannot run here; empty if it can."""
    for name, needed, present in (
        ("device", required.device, ours.device),
        ("processor", required.arch, ours.arch),
        ("torch", required.torch, ours.torch),
        ("CUDA", required.cuda, ours.cuda),
        ("compute capability", required.sm, ours.sm),
    ):
        if needed != present:
            return f"it was compiled for {name} {needed or 'none'}, this machine has {present or 'none'}"
    if _numbers(required.glibc) > _numbers(ours.glibc):
        return f"it was compiled with glibc {required.glibc}, this machine has {ours.glibc or 'another C library'}"
    missing = sorted(ISAS.get(required.isa, frozenset({required.isa})) - flags)
    return f"it was compiled for {required.isa}, and this processor has no {', '.join(missing)}" if missing else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


class Port(Struct, frozen=True):
    """An input or output: its V2 datatype, and -1 where a dimension varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Package(Struct, frozen=True):
    machine: Machine
    weights: str  # fingerprint of the weights' tensors
    module: str  # SHA-256 of model.py
    library: str  # SHA-256 of model.so
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    largest_batch: int = 0
    inlined: Mapping[str, str] = {}  # small tensors whose values are part of the code → SHA-256 of them
    constants: Mapping[str, str] = {}  # the container's name of a constant → the tensor's in the weights or constants
    made_with: str = ""


def fingerprint(weights: Path) -> str:
    """Hash of all tensors' names, dtypes and shapes, not of their values."""
    tensors = [item for file in weight_files(weights) for item in read_header(file).tensors.items()]
    entries = sorted((name, info.dtype, list(info.shape)) for name, info in tensors)
    return hashlib.sha256(msgspec.json.encode(entries)).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def module_file(weights: Path) -> Path:
    return (weights if weights.is_dir() else weights.parent) / "model.py"


def packages(weights: Path) -> Iterator[tuple[Path, Package]]:
    """Packages next to the weights. Raises LoadFailed for one that cannot be read."""
    folder = (weights if weights.is_dir() else weights.parent) / FOLDER
    for file in sorted(folder.glob(f"*/{MANIFEST}")):
        try:
            yield file.parent, msgspec.json.decode(file.read_bytes(), type=Package)
        except (msgspec.DecodeError, OSError) as error:
            raise LoadFailed(f"{file.parent.name}/{MANIFEST} cannot be read: {error}") from None


def find_package(weights: Path, device: str, index: int, trusted: Sequence[str]) -> tuple[Path, Package] | str | None:
    """Return the package that runs here, None without packages, or a sentence why none of them fits."""
    candidates = list(packages(weights))
    if not candidates:
        return None
    ours, flags = current_machine(device, index), cpu_flags()
    tensors, module = fingerprint(weights), sha256(module_file(weights))
    why = ""
    for folder, package in candidates:
        why = (
            incompatibility(package.machine, ours, flags)
            or _changed(package, weights, tensors, module)
            or untrusted_reason(folder, package, trusted)
        )
        if not why:
            return folder, package
        why = f"{FOLDER}/{folder.name} is not used: {why}"
    return why


def _changed(package: Package, weights: Path, tensors: str, module: str) -> str:
    """Return which source of a package has changed since its compilation; empty if none has."""
    if package.weights != tensors:
        return "the weights' tensors differ from those it was compiled from"
    if package.module != module:
        return "model.py differs from the one it was compiled from"
    values = tensor_hashes(weights, package.inlined) if package.inlined else {}
    other = sorted(name for name, known in package.inlined.items() if values.get(name) != known)
    return f"the values of {other[0]} differ, and they are part of the code: compile it again" if other else ""


def tensor_hashes(weights: Path, names: Collection[str]) -> dict[str, str]:
    """SHA-256 of the values of some tensors."""
    return {
        name: hashlib.sha256(read_tensor(file, info)).hexdigest()
        for file in map(read_header, weight_files(weights))
        for name, info in file.tensors.items()
        if name in names
    }


def untrusted_reason(folder: Path, package: Package, trusted: Sequence[str]) -> str:
    """Return why a package is not trusted; empty if it is. A package is native code.

    It is trusted if its folder is below a path in `trusted`, or its library file has a hash in it.
    """
    path = folder.resolve()
    for each in trusted:
        if each.startswith(("/", "./", "../", "~")):
            if path.is_relative_to(Path(each).expanduser().resolve()):
                return ""
        elif each.lower() == package.library:
            return "" if sha256(folder / LIBRARY) == package.library else f"{LIBRARY} differs from its manifest"
    return f"it is native code that is not trusted; to trust it: --trust-compiled {path}"
