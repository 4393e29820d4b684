"""Machine requirements of a compiled model, and those of this machine. torch is not imported: its version is read.

A package runs only with the torch, CUDA, GPU generation, CPU vector instructions and C library it was compiled for;
`incompatibility` names the one that differs.
"""

import os
import platform
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

# CPU flags (/proc/cpuinfo) required by the vector ISAs of inductor.
ISAS: Final[dict[str, frozenset[str]]] = {
    "avx512": frozenset({"avx512f", "avx512dq", "avx512vl", "avx512bw"}),
    "avx2": frozenset({"avx2", "fma"}),
    "": frozenset(),
}


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
    from pilotlight_predictor.weights.cuda_driver import compute_capability

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
            return f"it was compiled for {name} {needed or 'none'}, and here is {present or 'none'}"
    if _numbers(required.glibc) > _numbers(ours.glibc):
        return f"it was compiled with glibc {required.glibc}, and here is {ours.glibc or 'another C library'}"
    missing = sorted(ISAS.get(required.isa, frozenset({required.isa})) - flags)
    return f"it was compiled for {required.isa}, and this processor has no {', '.join(missing)}" if missing else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
