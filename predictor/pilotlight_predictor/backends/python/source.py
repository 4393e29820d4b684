"""Isolated import of a user's model.py and the modules next to it, so that two versions can coexist.

The file becomes `pilotlight_models.n7.model`; imports of siblings (`import tokens`, `from . import tokens`) resolve
inside that package through a private `__import__`. So sys.path does not change, siblings with the same name in two
models do not conflict, and imports inside functions work after the load.
"""

import builtins
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from operator import attrgetter
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from pilotlight.contract import MODEL_PACKAGE
from pilotlight_predictor.backends.trusted_pickles import finding
from pilotlight_predictor.errors import LoadFailed, PredictorError

_package_numbers = count(1)
_MODULES: Final[dict[str, "UserModule"]] = {}  # by private package


class UserModule:
    """One model.py and its siblings, shared by clones of an instance; the last `close` removes its modules."""

    def __init__(
        self,
        path: Path,
        model_dir: Path,
        extra_modules: Mapping[str, ModuleType] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """`extra_modules` can be imported by this model only, by name. `on_close` is called by the last `close`."""
        self.path, self._on_close = path, on_close
        self._extra_modules = extra_modules or {}
        self._folders = list(dict.fromkeys([str(path.parent), str(model_dir)]))
        self._package = f"{MODEL_PACKAGE}.n{next(_package_numbers)}"
        self._builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        self._siblings: dict[str, bool] = {}
        self._module: ModuleType | None = None
        self._users, self._lock = 1, threading.Lock()
        self._install()

    @property
    def folders(self) -> Sequence[str]:
        return self._folders

    @property
    def module(self) -> ModuleType:
        """The module of the file, imported with the first use. Raise LoadFailed if that fails."""
        # No cached_property: before Python 3.12 it has one lock for the imports of all models.
        self._module = self._module or self._imported(self.path.stem)
        return self._module

    def pickled(self, module: str, name: str) -> Any:
        """Return a class or function that a pickle names, of the script that saved it (`__main__`) the one of the file.

        Raise LoadFailed if its module fails, ImportError or AttributeError if neither the file nor a sibling has it.
        """
        wanted = self.path.stem if module == "__main__" else module
        if not self._is_sibling(wanted.partition(".")[0]):
            raise ModuleNotFoundError(name=wanted)
        return attrgetter(name)(self._imported(wanted))

    def _imported(self, name: str) -> ModuleType:
        try:
            with finding(self.pickled):
                return importlib.import_module(f"{self._package}.{name}")
        except PredictorError:
            raise
        except (Exception, SystemExit) as error:
            failed = LoadFailed(f"{name.replace('.', '/')}.py could not be imported: {import_reason(error, self.path)}")
            raise failed from trim_traceback(error, self._folders)

    def share(self) -> "UserModule":
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if self._on_close is not None:
                self._on_close()
            _MODULES.pop(self._package, None)
            for name in list(sys.modules):  # a copy: other threads import
                if name == self._package or name.startswith(f"{self._package}."):
                    sys.modules.pop(name, None)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, str(spec.origin), self._builtins)
        return spec

    def _install(self) -> None:
        parent = sys.modules.setdefault(MODEL_PACKAGE, ModuleType(MODEL_PACKAGE))
        parent.__path__ = []
        package = ModuleType(self._package)
        package.__path__ = self._folders
        sys.modules[self._package] = package
        _MODULES[self._package] = self
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
        if not level and name in self._extra_modules:
            return self._extra_modules[name]
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
            known = self._siblings[top] = any(_contains(Path(folder), top) for folder in self._folders)
        return known


class _Finder:
    """Meta path finder of the private packages, never removed.

    Removing it while another thread iterates sys.meta_path would make that thread skip the next finder.
    """

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        parent, number, module = (*fullname.split(".", 2), "", "")[:3]
        source = _MODULES.get(f"{parent}.{number}") if module else None
        return source.find_spec(fullname, path, target) if source is not None else None


class _Loader(SourceFileLoader):
    """Loader that sets the private `__import__` before a module runs."""

    def __init__(self, fullname: str, path: str, private: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._private = private

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._private
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile without cached bytecode, which is validated by size and second: a model may change within one.

        Nothing is written next to the model either, whose volume may be read-only.
        """
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _contains(folder: Path, top: str) -> bool:
    """Whether a folder has a module or package of that name; one without __init__.py counts if none is installed."""
    if (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file():
        return True
    bare = folder / top
    return bare.is_dir() and any(bare.glob("*.py")) and importlib.util.find_spec(top) is None


def own_classes(module: ModuleType) -> list[type]:
    """Return the classes that a module defines, without those that it imports."""
    return [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]


def import_reason(error: BaseException, code: Path) -> str:
    """Return the reason of a failed import or start of user code; of a missing package or file with the fix."""
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        without = not code.is_file()  # modules beside a pickle, whose requirements are not read
        fix = "install it where the predictor runs" if without else f"name it in requirements.txt beside {code.name}"
        return f"the package {error.name!r} is not installed; {fix}"
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error}); raise an exception with the reason"
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str) and not os.path.isabs(error.filename):
        fix = f'Path(__file__).parent / "{error.filename}" is the file beside {code.name}'
        if not (code.parent / error.filename).exists():
            fix = f"there is no {error.filename} beside {code.name} either"
        return f"{reason}; relative paths start at {os.getcwd()}: {fix}"
    return reason


def trim_traceback(error: BaseException, folders: Sequence[str]) -> BaseException:
    """Cut the traceback of an error to begin with the first frame of the user's code."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(tuple(folders)):
            return error.with_traceback(frame)
        frame = frame.tb_next
    return error
