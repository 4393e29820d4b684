"""What files of torch hold beside tensors: the class of their module, which weights lack, and types of others.

Read by `deploy` before a start and by the predictor's torch backend. Executes nothing and needs no torch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_MAX_PICKLE: Final = 1 << 20  # some 5,000 tensors; classes of a module are named before its first tensor
_LEGACY_PICKLES: Final = 4  # before torch 1.6: magic number, version, machine, object
# Modules whose globals `torch.load(weights_only=True)` reads: tensors, and the containers that hold them.
_OF_TENSORS: Final = frozenset(
    {"torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse", "torch._utils", "torch._tensor", "torch.storage",
     "torch.nn.parameter", "torch.serialization", "collections", "builtins", "__builtin__", "_codecs"}
)  # fmt: skip


def holds_only_weights(path: Path) -> bool:
    """Whether a file of torch.save names no class but those of tensors; also False if it cannot be read."""
    found = _named(path)
    return bool(found) and _OF_TENSORS.issuperset(module for module, _ in found)


def foreign_types(path: Path) -> list[str]:
    """Return classes and functions that a file of torch.save names from packages that `weights_only` reads none of."""
    packages = {module.partition(".")[0] for module in _OF_TENSORS}
    return sorted({f"{module}.{name}" for module, name in _named(path) if module.partition(".")[0] not in packages})


def _named(path: Path) -> Sequence[tuple[str, str]]:
    """Return what a file of torch.save names; none if it cannot be read."""
    import zipfile
    import zlib

    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return list(_globals(file.read(_MAX_PICKLE), _LEGACY_PICKLES))
        with zipfile.ZipFile(path) as archive:
            name = next((each for each in archive.namelist() if each.endswith("/data.pkl")), None)
            return list(_globals(archive.open(name).read(_MAX_PICKLE), 1)) if name else []
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):  # damaged, or encrypted
        return []


def _globals(content: bytes, pickles: int) -> Iterator[tuple[str, str]]:
    """Yield module and name of each global of pickles that follow each other; "" for one that protocol 4 computes."""
    import io
    import pickletools

    stream = io.BytesIO(content)
    try:
        for _ in range(pickles):
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL"):
                    module, _, name = str(argument or "").partition(" ")
                    yield module, name
    except ValueError:  # the content ends here: it was cut, or is damaged
        return


def missing_module(folder: Path) -> str:
    """Return what to do about weights whose folder has no model.py; a class of a module in another file is named."""
    from pilotlight.wire.model_formats.python_code import module_classes, names_in, parse, read_source

    files = [each for each in sorted(folder.glob("*.py")) if each.is_file()]
    classes = [(file.stem, each) for file in files for each in module_classes(parse(read_source(file)))]
    if classes:
        # A network names the classes of its blocks, and no class names the network.
        named = {name for _, each in classes for name in names_in(each) - {each.name}}
        whole = [(file, each.name) for file, each in classes if each.name not in named]
        file, name = (whole or [(file, each.name) for file, each in classes])[0]
        names = ", ".join(each.name for at, each in classes if at == file)
        saved = "" if len(whole) == 1 else ", or the class that you saved,"
        fix = f"write `from {file} import {name}`{saved} into a model.py beside it"
        return f"{file}.py defines {names}: {'if it is that class, ' if len(classes) == 1 else ''}{fix}"
    return (
        "put a model.py next to it with the class of the module, or with build() -> torch.nn.Module, or export the "
        "model by torch.export.export and torch.export.save"
    )
