"""Files of torch that hold weights without the class of their module, and what is missing beside them.

Read by `deploy` before a start and by the predictor's torch backend. Executes nothing and needs no torch.
"""

from collections.abc import Iterator
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
    import zipfile
    import zlib

    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                head = file.read(_MAX_PICKLE)
            return _names_tensors_alone(head, _LEGACY_PICKLES)
        with zipfile.ZipFile(path) as archive:
            name = next((each for each in archive.namelist() if each.endswith("/data.pkl")), None)
            return name is not None and _names_tensors_alone(archive.open(name).read(_MAX_PICKLE), 1)
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):  # damaged, or encrypted
        return False


def _names_tensors_alone(content: bytes, pickles: int) -> bool:
    found = list(_modules_named(content, pickles))
    return bool(found) and _OF_TENSORS.issuperset(found)


def _modules_named(content: bytes, pickles: int) -> Iterator[str]:
    """Yield the module of each global of pickles that follow each other; "" for one that protocol 4 computes."""
    import io
    import pickletools

    stream = io.BytesIO(content)
    try:
        for _ in range(pickles):
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL"):
                    yield str(argument or "").partition(" ")[0]
    except ValueError:  # the content ends here: it was cut, or is damaged
        return


def missing_module(folder: Path) -> str:
    """Return what to do about weights whose folder has no model.py; a class of a module in another file is named."""
    for file in sorted(folder.glob("*.py")):
        if names := _module_classes(file):
            fix = f"write `from {file.stem} import {names[0]}` into a model.py beside it"
            return f"{file.name} defines {', '.join(names)}: if it is that class, {fix}"
    return (
        "put a model.py next to it with the class of the module, or with build() -> torch.nn.Module, or save the whole "
        "model by torch.export.save"
    )


def _module_classes(file: Path) -> list[str]:
    """Return the classes of a file whose bases are named as modules are, by its text; [] if it cannot be parsed."""
    import ast

    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return [node.name for node in classes if any(ast.unparse(base).endswith("Module") for base in node.bases)]
