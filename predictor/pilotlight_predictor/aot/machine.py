"""What a compiled model needs of a machine, and what this one is. Nothing here imports torch: its version is read.

A package runs where torch, CUDA, the GPU's generation, the processor's vector instructions and the C library are those
that it was made for; `misfit` says which of them is another.
"""

import os
import platform
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

# Instructions that code for an ISA of inductor's takes for granted, by their names in /proc/cpuinfo.
ISAS: Final[dict[str, frozenset[str]]] = {
    "avx512": frozenset({"avx512f", "avx512dq", "avx512vl", "avx512bw"}),
    "avx2": frozenset({"avx2", "fma"}),
    "": frozenset(),
}


class Machine(Struct, frozen=True):
    """Of a package: what it was made on and for. `sm` is empty for the CPU, `isa` for a GPU."""

    device: str  # cpu | cuda
    torch: str
    cuda: str
    arch: str
    glibc: str
    sm: str = ""
    isa: str = ""


def torch_root() -> Path | None:
    """Where torch is installed, found and not imported."""
    found = find_spec("torch")
    return Path(found.origin).parent if found is not None and found.origin else None


@cache
def torch_version() -> tuple[str, str]:
    """Of torch and of the CUDA that it was built with; empty where there is none."""
    root = torch_root()
    if root is None:
        return "", ""
    text = (root / "version.py").read_text()
    return _assigned("__version__", text), _assigned("cuda", text)


def _assigned(name: str, text: str) -> str:
    found = re.search(rf"^{name}\b[^=\n]*= *'([^']*)'", text, re.MULTILINE)
    return found[1] if found else ""


def glibc() -> str:
    return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2] if hasattr(os, "confstr") else ""


def flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        line = next(line for line in cpuinfo.read_text().splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def here(device: str, index: int) -> Machine:
    """This machine as a package for the device would name it."""
    from pilotlight_predictor.weights.cuda_driver import compute_capability

    version, cuda = torch_version()
    sm = (compute_capability(index) or "") if device == "cuda" else ""
    return Machine(device, version, cuda, platform.machine(), glibc(), sm, "")


def misfit(wanted: Machine, ours: Machine, offered: frozenset[str]) -> str:
    """Why a package cannot run here, in one sentence; empty: it can. `offered` are the processor's instructions."""
    for name, made, present in (
        ("device", wanted.device, ours.device),
        ("processor", wanted.arch, ours.arch),
        ("torch", wanted.torch, ours.torch),
        ("CUDA", wanted.cuda, ours.cuda),
        ("compute capability", wanted.sm, ours.sm),
    ):
        if made != present:
            return f"it was compiled for {name} {made or 'none'}, and here is {present or 'none'}"
    if _numbers(wanted.glibc) > _numbers(ours.glibc):
        return f"it was compiled with glibc {wanted.glibc}, and here is {ours.glibc or 'another C library'}"
    missing = sorted(ISAS.get(wanted.isa, frozenset({wanted.isa})) - offered)
    return f"it was compiled for {wanted.isa}, and this processor has no {', '.join(missing)}" if missing else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
