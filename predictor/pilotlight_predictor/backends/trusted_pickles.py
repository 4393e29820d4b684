"""Pickles, which can run any code when they are read: opened only if pinned by `--trust-pickle FILE=SHA256`.

Shared by the backends whose files are, or may be, pickles, and by Python models that read some themselves. What a
pickle names is in sys.modules for Python, where a model's own modules are not and `__main__` is the server's.
"""

import hashlib
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final, TypeAlias

from pilotlight.contract import trust_pickle_setting
from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.errors import LoadFailed, PredictorError

Find: TypeAlias = Callable[[str, str], Any]  # module, name → class or function; raises ImportError or AttributeError


class UnknownObject(LoadFailed, ImportError):
    """A pickle names what is nowhere. pandas reads an older kind of pickle after an ImportError."""


_lookup: Final[ContextVar[tuple[Find, str] | None]] = ContextVar("lookup", default=None)


@contextmanager
def finding(own: Find, pinned: str = "") -> Iterator[None]:
    """Let pickles that are read within find their classes and functions by `own`, too.

    Of a `pinned` file, installed modules come first: no pin covers the files that would replace them.
    """
    previous = _lookup.set((own, pinned))
    try:
        yield
    finally:
        _lookup.reset(previous)


def _find_class(installed: Callable[[Any, str, str], Any]) -> Callable[[Any, str, str], Any]:
    def find_class(unpickler: Any, module: str, name: str) -> Any:
        lookup, find, problem = _lookup.get(), partial(installed, unpickler), ""
        if lookup is None:
            return find(module, name)
        own, pinned = lookup
        for each in (find, own) if pinned else (own, find):
            if each is find and module == "__main__":  # ours is another one
                continue
            try:
                return each(module, name)
            except PredictorError:
                raise
            except (ImportError, AttributeError) as error:
                problem = first_line(error) if each is find else problem
        file = pinned or Path(str(getattr(unpickler, "filename", ""))).name or "a pickle"
        raise UnknownObject(f"{file} needs {module}.{name}, {_fix(pinned, module, name, problem)}") from None

    return find_class


def _fix(pinned: str, module: str, name: str, problem: str) -> str:
    """Return what to do about a class or function that a pickle names and that is nowhere."""
    folder, top, path = f"the folder of {pinned or 'the model'}", module.partition(".")[0], module.replace(".", "/")
    if module == "__main__":
        fix = f"define or import {name} in a model.py in {folder} and deploy {pinned or 'that folder'}"
        return f"of the script that saved it: {fix}"
    if find_spec(top) is not None:
        return f"which is not in the {top} here ({problem}): install the {top} that it was saved with"
    fix = f"put the {path}.py that defines it into {folder} and deploy that folder"
    return f"which is not here: {fix}, or install the package {top}"


# For files that are no pickles and name classes too.
find_named: Final = _find_class(lambda _, module, name: getattr(import_module(module), name))


class _Unpickler(pickle.Unpickler):
    find_class = _find_class(pickle.Unpickler.find_class)

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self.filename = getattr(file, "name", "")


_c_load, _c_loads = pickle.load, pickle.loads


def _load(file: Any, **options: Any) -> Any:
    return _c_load(file, **options) if _lookup.get() is None else _Unpickler(file, **options).load()


def _loads(data: Any, /, **options: Any) -> Any:
    return _c_loads(data, **options) if _lookup.get() is None else _Unpickler(io.BytesIO(data), **options).load()


# joblib and dill derive theirs from the one that is written in Python; libraries take the others from the module.
pickle._Unpickler.find_class = _find_class(pickle._Unpickler.find_class)  # type: ignore[method-assign, assignment]
pickle.Unpickler, pickle.load, pickle.loads = _Unpickler, _load, _loads  # type: ignore[misc]


def open_trusted(path: Path, trusted: Mapping[str, str], what: str, instead: str) -> IO[bytes]:
    """Open a pinned file. Raise LoadFailed unless `trusted` has its name and SHA-256.

    Read the copy that is returned: the name may point to another file by now, or the file be written to. `what` the
    file holds and what to do `instead` are parts of the message.
    """
    if path.name not in trusted:
        raise refusal(path, what, instead)
    file = SpooledTemporaryFile(256 << 20)  # noqa: SIM115 - the caller closes it; a larger one is on disk
    with path.open("rb") as source:
        copyfileobj(source, file)
    file.seek(0)
    digest, pinned = hashlib.file_digest(file, "sha256").hexdigest(), trusted[path.name].lower()
    if digest == pinned:
        file.seek(0)
        return file
    file.close()
    raise _refusal(path, f"has changed since it was pinned: its SHA-256 was {pinned} and is {digest};", digest)


def refusal(path: Path, what: str, instead: str) -> LoadFailed:
    """Return the error for a file that is not pinned, with the option that would pin it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _refusal(path, f"holds {what}, which can run arbitrary code when loaded: {instead}, or,", digest)


def _refusal(path: Path, why: str, digest: str) -> LoadFailed:
    pin = f"{path.name}={digest}"  # `deploy` replaces what to set by its own form
    advice = f"set --trust-pickle {pin} (for a manifest: {trust_pickle_setting(pin)})"
    return LoadFailed(f"{path.name} {why} if you trust its author, {advice}")
