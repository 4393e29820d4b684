"""A compiled model as it lies beside its weights: `aot/KEY/package.json`, a library, and constants of its own.

The weights are not in it: they are read from the model's own file. What must not differ are the tensors' names, types
and shapes, the module, and the values of tensors so small that the compiler wrote them into the code.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from pilotlight_predictor.aot.machine import Machine, flags, here, misfit
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.weights.safetensors_file import content, files_of, read

FOLDER: Final = "aot"
MANIFEST: Final = "package.json"
LIBRARY: Final = "model.so"
CONSTANTS: Final = "constants.safetensors"


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
    """Of names, types and shapes, over all files of the model; the values do not count."""
    tensors = [item for file in files_of(weights) for item in read(file).tensors.items()]
    told = sorted((name, place.dtype, list(place.shape)) for name, place in tensors)
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def module_file(weights: Path) -> Path:
    return (weights if weights.is_dir() else weights.parent) / "model.py"


def packages(weights: Path) -> Iterator[tuple[Path, Package]]:
    """Those beside the weights; one that cannot be read is an error, since somebody meant it to be used."""
    folder = (weights if weights.is_dir() else weights.parent) / FOLDER
    for file in sorted(folder.glob(f"*/{MANIFEST}")):
        try:
            yield file.parent, msgspec.json.decode(file.read_bytes(), type=Package)
        except (msgspec.DecodeError, OSError) as error:
            raise LoadFailed(f"{file.parent.name}/{MANIFEST} cannot be read: {error}") from None


def choose(weights: Path, device: str, index: int, trusted: Sequence[str]) -> tuple[Path, Package] | str | None:
    """The package that runs here; a sentence where there are some and none does; None where there is none."""
    found = list(packages(weights))
    if not found:
        return None
    ours, offered, print_, module = here(device, index), flags(), fingerprint(weights), sha256(module_file(weights))
    why = ""
    for folder, package in found:
        why = (
            misfit(package.machine, ours, offered)
            or _changed(package, weights, print_, module)
            or distrusted(folder, package, trusted)
        )
        if not why:
            return folder, package
        why = f"{FOLDER}/{folder.name} is not used: {why}"
    return why


def _changed(package: Package, weights: Path, fingerprint_: str, module: str) -> str:
    if package.weights != fingerprint_:
        return "the tensors of the weights are others than those it was compiled from"
    if package.module != module:
        return "model.py is another than the one it was compiled from"
    values = hashes(weights, package.inlined) if package.inlined else {}
    other = sorted(name for name, known in package.inlined.items() if values.get(name) != known)
    return f"the values of {other[0]} are others, and those are part of the code: compile it again" if other else ""


def hashes(weights: Path, names: Collection[str]) -> dict[str, str]:
    """Of the values of some tensors."""
    return {
        name: hashlib.sha256(content(file, place)).hexdigest()
        for file in map(read, files_of(weights))
        for name, place in file.tensors.items()
        if name in names
    }


def distrusted(folder: Path, package: Package, trusted: Sequence[str]) -> str:
    """A package is native code. It is run when its folder lies below a path, or its library has a hash, that was named.

    A hash is believed only of the file itself.
    """
    place = folder.resolve()
    for each in trusted:
        if each.startswith(("/", "./", "../", "~")):
            if place.is_relative_to(Path(each).expanduser().resolve()):
                return ""
        elif each.lower() == package.library:
            return "" if sha256(folder / LIBRARY) == package.library else f"{LIBRARY} is not the one of its manifest"
    return f"it is native code that nobody vouched for; if you do: --trust-compiled {place}"
