"""Model of a class or function as files that `deploy` and the predictor take.

What stands in an importable file is served from there, with the modules beside it. What stands in a notebook, in a
script that runs, or in a function is written to a folder, named by its content.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple

from pilotlight.errors import PlatformError, UsageError
from pilotlight.sdk.model import ModelOptions, options_of
from pilotlight.sdk.model_source import check_library_object, definition, module_source

KEPT: Final = 32  # folders; a deploy has taken its snapshot of one, so that an old one is not needed
SHOWN: Final = 40  # characters of an object in a message
DEPLOYABLE: Final = "give a path or URI of a model, a class, a function made by def, or an instance of your own class"
BESIDE_A_FILE: Final = {"requirements": "write requirements.txt next to it", "files": "put them next to it"}


class ServedModel(NamedTuple):
    """A model.py, or the folder that has one, and the class or function in it."""

    path: Path
    name: str


def served_model(served: Any, folder: Path) -> ServedModel:
    """Return the model of a class, function or instance; where it stands in no file it is written below `folder`.

    Raise UsageError for a lambda, and for what is no model or cannot be written as source.
    """
    is_instance = not isinstance(served, type | FunctionType)
    kind = type(served) if is_instance else served
    check_library_object(served)
    if is_instance and kind.__module__ != "__main__":
        library = kind.__module__.partition(".")[0] in sys.stdlib_module_names
        if library or definition(kind) is None:
            subject = repr(served) if len(repr(served)) <= SHOWN else f"an object of type {kind.__name__}"
            raise UsageError(f"{subject} is no model", DEPLOYABLE)
    if not kind.__name__.isidentifier():
        raise UsageError("a lambda has no name", "define a function with def")
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    options = options_of(served)
    if kind.__module__ == "__main__" or "." in kind.__qualname__ or is_instance or not file:
        return ServedModel(_write(served, options, folder), kind.__name__)
    for option, fix in BESIDE_A_FILE.items():
        if getattr(options, option):
            problem = (
                f"model {kind.__name__!r} is served from {file}, where {option} of @pilotlight.model have no effect"
            )
            raise UsageError(problem, f"{fix}, and leave the option out")
    return ServedModel(Path(file), kind.__name__)


def with_hint(error: PlatformError) -> PlatformError:
    """Add the hint of an error as a note, which a traceback shows."""
    if error.hint:
        error.add_note(error.hint)
    return error


def _check_tensors(option: str, declaration: Mapping[str, Any]) -> None:
    for name, value in declaration.items():
        if not (isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str)):
            message = f"{option} of @pilotlight.model: {name!r} is {value!r}, must be a datatype and a shape"
            raise UsageError(message, f'such as {{{name!r}: ("FP32", [-1, 4])}}')


def _write(served: Any, options: ModelOptions, folder: Path) -> Path:
    """Write model.py, requirements.txt and links to the files; return their folder."""
    tensors: dict[str, Mapping[str, Any] | None] = {"INPUTS": options.inputs, "OUTPUTS": options.outputs}
    for option, declaration in tensors.items():
        _check_tensors(option.lower(), declaration or {})
    declared = "".join(f"{name} = {dict(value)!r}\n" for name, value in tensors.items() if value)
    texts = {"model.py": module_source(served) + (f"\n{declared}" if declared else "")}
    if options.requirements:
        texts["requirements.txt"] = "".join(f"{line}\n" for line in options.requirements)
    links = {Path(os.path.abspath(file)).name: Path(file).absolute() for file in options.files}
    if len(links) < len(options.files):
        raise UsageError("files: two have the same name, but all go into one folder", "rename one of them")
    for name, path in links.items():
        if not name or not path.exists() or name in texts:
            problem = f"would replace the model's own {name}; rename it" if name in texts else "does not exist"
            raise UsageError(f"files: {path} {problem}")
    digest = hashlib.sha256(repr((sorted(texts.items()), sorted(links.items()))).encode()).hexdigest()[:16]
    written = folder / digest
    if not written.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder))
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")
        for name, path in links.items():
            (part / name).symlink_to(path)
        with suppress(OSError):  # another call was faster
            part.rename(written)
    os.utime(written)
    for old in sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return written
