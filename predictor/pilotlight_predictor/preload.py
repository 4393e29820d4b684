"""What a pilot light has in memory before it forks: all that predictors of one family import, and not one thread.

Some libraries start threads as they are imported. Those are told not to by variables, which they read only then:
OpenBLAS (numpy) starts a pool, and onnxruntime a thread that sends telemetry. A forked predictor gives numpy back the
pool that it would have had (numpy_threads.py); telemetry stays off.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

# Whatever the model: the modules that a plain start imports one by one, on the way to its first answer and after it.
_SERVER: Final = (
    "pilotlight_predictor.__main__", "pilotlight_predictor.settings", "pilotlight_predictor.app",
    "pilotlight_predictor.assembly", "pilotlight_predictor.http", "pilotlight_predictor.cpu",
    "pilotlight_predictor.gpu", "pilotlight_predictor.repository.read_config", "ctypes", "inspect", "numpy.random",
    "orjson", "traceback", "uvloop",
)  # fmt: skip
_TORCH: Final = (
    "pilotlight_predictor.backends.torch", "pilotlight_predictor.aot.package",
    "pilotlight_predictor.weights.first_product", "pilotlight_predictor.weights.parked_weights",
)  # fmt: skip
# These are read once, when the interpreter or a library starts; a fork comes too late for another value.
_READ_AT_START: Final = ("GLIBC_", "LD_", "MALLOC_", "PYTHON")
_HARMLESS: Final = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"})
_QUIET: Final = {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
# An ONNX model of one Identity: x → y.
_SMALLEST: Final = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)


class Family(NamedTuple):
    """Modules in the order of their import, and what variables of its libraries begin with."""

    modules: tuple[str, ...]
    variables: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, Family]] = {
    "onnxruntime": Family(("pilotlight_predictor.backends.onnxruntime", "onnxruntime"), ("ORT_",)),
    "torch": Family(
        (*_TORCH, "torch", "torch.export", "safetensors.torch"),
        ("GOMP_", "KMP_", "MKL_", "OMP_", "PYTORCH_", "TORCH_"),
    ),
    "python": Family(
        tuple(f"pilotlight_predictor.backends.{name}" for name in ("python", "python_forms", "triton_model"))
    ),
}


def preload(family: str) -> None:
    """Imports the family's modules and calls what fills caches; what is not installed is left to the predictor."""
    with _quiet_imports():
        for name in (*_SERVER, *FAMILIES[family].modules):
            with suppress(ImportError):
                import_module(name)
    from pilotlight_predictor.routes import dialects
    from pilotlight_predictor.rpc.descriptors import descriptors
    from pilotlight_predictor.rpc.front import import_services
    from pilotlight_predictor.settings import parse

    dialects()
    import_services()
    descriptors()
    parse(["--model-path", "model.onnx"], {})
    if family == "onnxruntime":
        with suppress(ImportError):
            _first_session()
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise write to, and so copy, the pages of every object


def _first_session() -> None:
    """onnxruntime registers its operators with the first session, 4 ms of it; one of a single thread starts none."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    onnxruntime.InferenceSession(_SMALLEST, options, providers=["CPUExecutionProvider"])


@contextmanager
def _quiet_imports() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def sources() -> dict[str, int]:
    """Files that were imported and when each was written: our own modules, and the first file of other packages."""
    files = (
        str(getattr(module, "__file__", None) or "") for name, module in list(sys.modules.items()) if _counts(name)
    )
    return {path: os.stat(path).st_mtime_ns for path in files if os.path.isfile(path)}


def _counts(name: str) -> bool:
    package = name.partition(".")[0]
    return package.startswith("pilotlight") or (name == package and name not in sys.stdlib_module_names)


def replaced(before: Mapping[str, int]) -> str | None:
    """A file that is another than when it was imported: what is forked would be of yesterday."""
    for path, written in before.items():
        try:
            if os.stat(path).st_mtime_ns != written:
                return path
        except OSError:
            return path
    return None


def threads() -> list[str]:
    """The names of this process's threads; forking more than one would leave the others' locks held for ever."""
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def misfit(family: str, wanted: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """The variable that a fork could not follow, because it counted when the pilot light itself started."""
    prefixes = (*_READ_AT_START, *FAMILIES[family].variables)
    ours = {**ours, **_QUIET}
    return next(
        (
            name
            for name, value in wanted.items()
            if name.startswith(prefixes) and name not in _HARMLESS and ours.get(name) != value
        ),
        None,
    )
