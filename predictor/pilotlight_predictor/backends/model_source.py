"""A user's model.py in a namespace of its own, with the files beside it, so that two versions live side by side.

The file becomes `pilotlight_models.n7.model`, and its imports of neighbours (`import tokens`, `from . import tokens`)
resolve inside that package: the modules get an `__import__` of their own. So nothing is put on sys.path, neighbours
with the same name in two models never meet, and an import inside a function works long after the load.
"""

import builtins
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from pilotlight_predictor.errors import LoadFailed, PredictorError

_PARENT: Final = "pilotlight_models"
_numbers = count(1)
_SOURCES: Final[dict[str, "Source"]] = {}  # by private package


class Source:
    """One loaded model.py. Each clone of an instance shares it; the last `close` forgets its modules."""

    def __init__(
        self,
        path: Path,
        model_dir: Path,
        offered: Mapping[str, ModuleType] | None = None,
        forgotten: Callable[[], None] | None = None,
    ) -> None:
        """`offered` are modules that only this model's files find, by name. `forgotten` is called at the end."""
        self.path, self._forgotten = path, forgotten
        self._offered = offered or {}
        self._folders = list(dict.fromkeys([str(path.parent), str(model_dir)]))
        self._package = f"{_PARENT}.n{next(_numbers)}"
        self._builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        self._siblings: dict[str, bool] = {}
        self._users, self._lock = 1, threading.Lock()
        self._install()
        try:
            self.module = importlib.import_module(f"{self._package}.{path.stem}")
        except PredictorError:
            self.close()
            raise
        except Exception as error:
            self.close()
            reason = f"{type(error).__name__}: {error}"
            raise LoadFailed(f"{path.name} could not be imported: {reason}") from trimmed(error, self._folders)

    @property
    def folders(self) -> Sequence[str]:
        return self._folders

    def share(self) -> "Source":
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._forget()

    def _forget(self) -> None:
        if self._forgotten is not None:
            self._forgotten()
        _SOURCES.pop(self._package, None)
        for name in list(sys.modules):  # other threads import meanwhile
            if name == self._package or name.startswith(f"{self._package}."):
                sys.modules.pop(name, None)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, str(spec.origin), self._builtins)
        return spec

    def _install(self) -> None:
        parent = sys.modules.setdefault(_PARENT, ModuleType(_PARENT))
        parent.__path__ = []
        package = ModuleType(self._package)
        package.__path__ = self._folders
        sys.modules[self._package] = package
        _SOURCES[self._package] = self
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if not level and name in self._offered:
            return self._offered[name]
        if level or not self._is_sibling(top):
            return builtins.__import__(name, globals, locals, fromlist, level)
        private = f"{self._package}.{name}"
        if fromlist:
            return builtins.__import__(private, globals, locals, fromlist, 0)
        importlib.import_module(private)
        return sys.modules[f"{self._package}.{top}"]

    def _is_sibling(self, top: str) -> bool:
        known = self._siblings.get(top)
        if known is None:
            known = self._siblings[top] = any(_holds(Path(folder), top) for folder in self._folders)
        return known


class _Finder:
    """Asked by the import system for every module. It stays: who took itself out would let another thread, which asks
    one after the other, pass over the next."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        parent, number, module = (*fullname.split(".", 2), "", "")[:3]
        source = _SOURCES.get(f"{parent}.{number}") if module else None
        return source.find_spec(fullname, path, target) if source is not None else None


class _Loader(SourceFileLoader):
    """Gives a module the private `__import__` before its first line runs."""

    def __init__(self, fullname: str, path: str, private: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._private = private

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._private
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compiled anew each time: bytecode on disk is believed by size and second, and a model may change within one.

        Nothing is written beside the model either, which may lie on a read-only volume.
        """
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _holds(folder: Path, top: str) -> bool:
    """A file or package; a folder without __init__.py only if no installed module has the name."""
    if (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file():
        return True
    bare = folder / top
    return bare.is_dir() and any(bare.glob("*.py")) and importlib.util.find_spec(top) is None


def trimmed(error: BaseException, folders: Sequence[str]) -> BaseException:
    """The error with its traceback from the first frame of the user's own code on: ours above it says nothing."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(tuple(folders)):
            return error.with_traceback(frame)
        frame = frame.tb_next
    return error
