"""Imports of a pilot light before it forks: all modules that predictors of one family need, without any thread.

OpenBLAS (numpy) starts a thread pool at import, and onnxruntime a telemetry thread; environment variables, read only
then, prevent both. A forked predictor restores numpy's pool (core/threads.py); telemetry stays off.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

# Modules that every predictor imports until its first response or soon after.
_SERVER_MODULES: Final = (
    "pilotlight_predictor.config", "pilotlight_predictor.bootstrap.startup",
    "pilotlight_predictor.bootstrap.application", "pilotlight_predictor.frontends.http.aiohttp_server",
    "pilotlight_predictor.metrics.cpu_readings", "pilotlight_predictor.metrics.gpu_readings",
    "pilotlight_predictor.repository.config_reader", "pilotlight_predictor.repository.environment", "ctypes",
    "inspect", "numpy.random", "orjson", "pilotlight.wire.model_formats.python_code", "traceback", "uvloop",
)  # fmt: skip
_TORCH_MODULES: Final = (
    "pilotlight_predictor.backends.torch.backend", "pilotlight_predictor.backends.torch.aot.package_lookup",
    "pilotlight_predictor.gpu.cublas_warmup", "pilotlight_predictor.gpu.parked_weights",
)  # fmt: skip
_EXPORT_MODULES: Final = ("torch.export._trace", "torch.export.passes", "torch.export.pt2_archive._package")
_SKLEARN_MODULES: Final = tuple(
    f"sklearn.{name}" for name in ("compose", "ensemble", "linear_model", "pipeline", "preprocessing", "svm", "tree")
)
# Prefixes of variables read once, when the interpreter or a library starts; a fork cannot apply another value.
_STARTUP_PREFIXES: Final = ("GLIBC_", "LD_", "MALLOC_", "PYTHON")
_IGNORED_VARIABLES: Final = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"})
_THREADLESS_ENV: Final = {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
# An ONNX model of one Identity: x → y.
_IDENTITY_MODEL: Final = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)


class Family(NamedTuple):
    """Modules in import order, prefixes of the variables that its libraries read at import, and values of some."""

    modules: tuple[str, ...]
    variables: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}


_TORCH: Final = Family(
    (*_TORCH_MODULES, "torch", "torch.export", "safetensors.torch"),
    ("GOMP_", "KMP_", "MKL_", "OMP_", "PYTORCH_", "TORCH_"),
)
_SKLEARN: Final = Family(
    ("pilotlight_predictor.backends.sklearn", "joblib", *_SKLEARN_MODULES),
    ("GOMP_", "OMP_", "SKLEARN_"),
    {"OMP_NUM_THREADS": "1"},  # as its backend sets it
)
FAMILIES: Final[Mapping[str, Family]] = {
    "onnxruntime": Family(("pilotlight_predictor.backends.onnxruntime", "onnxruntime"), ("ORT_",)),
    "torch": _TORCH,
    # What reading these files imports besides: seconds, and 100 MB that other models do without.
    "torch-export": _TORCH._replace(modules=(*_TORCH.modules, *_EXPORT_MODULES)),
    "sklearn": _SKLEARN,
    "skops": _SKLEARN._replace(modules=(*_SKLEARN.modules, "skops.io")),
    "python": Family(
        tuple(f"pilotlight_predictor.backends.python.{name}" for name in ("backend", "functions", "triton.model"))
    ),
}


def preload(family: str) -> None:
    """Import the family's modules and fill caches; modules that are not installed are skipped."""
    with _import_environment({**_THREADLESS_ENV, **FAMILIES[family].environ}):
        for name in (*_SERVER_MODULES, *FAMILIES[family].modules):
            with suppress(ImportError):
                import_module(name)
    from pilotlight_predictor.config import parse
    from pilotlight_predictor.frontends.grpc.server import import_services
    from pilotlight_predictor.protocols import serving_protocols

    serving_protocols()
    import_services()
    parse(["--model-path", "model.onnx"], {})
    if family == "onnxruntime":
        with suppress(ImportError):
            import onnxruntime

            # The first session registers the operators (4 ms); with one thread it starts no pool.
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            onnxruntime.InferenceSession(_IDENTITY_MODEL, options, providers=["CPUExecutionProvider"])
    gc.collect()
    gc.freeze()  # otherwise a collection in a child writes to, and so copies, the pages of every object


@contextmanager
def _import_environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def source_mtimes() -> dict[str, int]:
    """Modification times of imported files: our own modules, and the top-level file of other packages."""
    mtimes = {}
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        path = str(getattr(module, "__file__", None) or "")
        ours = package.startswith("pilotlight")
        if (ours or (name == package and name not in sys.stdlib_module_names)) and os.path.isfile(path):
            mtimes[path] = os.stat(path).st_mtime_ns
    return mtimes


def changed_file(mtimes: Mapping[str, int]) -> str | None:
    """Return a file that changed since its import, for which a fork would run old code; None if none did."""
    for path, mtime in mtimes.items():
        try:
            if os.stat(path).st_mtime_ns != mtime:
                return path
        except OSError:
            return path
    return None


def thread_names() -> list[str]:
    """Names of this process's threads; a fork with more than one would leave the others' locks held forever."""
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def mismatched_variable(family: str, requested: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Return a variable read only at process start whose requested value differs from ours; None if none does."""
    prefixes = (*_STARTUP_PREFIXES, *FAMILIES[family].variables)
    ours = {**ours, **_THREADLESS_ENV}
    return next(
        (
            name
            for name, value in requested.items()
            if name.startswith(prefixes) and name not in _IGNORED_VARIABLES and ours.get(name) != value
        ),
        None,
    )
