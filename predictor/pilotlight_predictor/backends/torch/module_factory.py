"""Building of the module that model.py defines, for weights without code. Used by modules.py.

The module is what `build()` returns, or what the parameter MODULE names, or the only class of torch.nn.Module. Of
several classes it is the one whose tensors have the names of the weights.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pilotlight.wire.model_formats import missing_module
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.python.source import UserModule, import_reason, trim_traceback
from pilotlight_predictor.errors import LoadFailed, PredictorError

if TYPE_CHECKING:
    import torch

Factory: TypeAlias = "Callable[[], torch.nn.Module]"
BUILD: Final = "build"
_IN_PLACE: Final = frozenset({"normal_", "uniform_", "random_", "fill_", "zero_"})


def build_early(source: UserModule, spec: LoadSpec) -> "torch.nn.Module | None":
    """Build the module while its weights are being transferred; None if their names are needed to choose its class.

    A failure is raised after the transfer has ended, so that its memory is free for the next load.
    """
    try:
        candidates = _candidates(source, spec)
        return _build(candidates[0], source) if len(candidates) == 1 else None
    except BaseException:
        if spec.prefetched is not None:
            with suppress(Exception):
                spec.prefetched.wait()
        raise


def build_module(source: UserModule, spec: LoadSpec, names: Collection[str]) -> "torch.nn.Module":
    """Build the module for weights of these names."""
    candidates = _candidates(source, spec)
    if len(candidates) == 1:
        return _build(candidates[0], source)
    fitting = []
    for each in candidates:
        with suppress(Exception):  # a class that cannot be built without arguments is not the one
            module = build_uninitialised(each)
            if module.state_dict().keys() == set(names):
                fitting.append(module)
    if len(fitting) != 1:
        classes = ", ".join(each.__name__ for each in candidates)
        raise LoadFailed(
            f"model.py has {len(candidates)} modules: {classes}; define {BUILD}() that returns the one to serve"
        )
    return fitting[0]


def _candidates(source: UserModule, spec: LoadSpec) -> Sequence[Factory]:
    """Return what may build the module: one function or class, or all classes of modules if none is named."""
    import torch

    if not source.path.is_file():
        raise LoadFailed(f"{spec.path.name} holds only weights: {missing_module(spec.folder)}")
    name = spec.config.parameters.get("MODULE", BUILD)
    factory: Factory | None = getattr(source.module, name, None)
    found = (each for each in vars(source.module).values() if isinstance(each, type))
    package = source.module.__name__.rpartition(".")[0] + "."  # also of the modules beside it
    modules = [cls for cls in found if issubclass(cls, torch.nn.Module) and cls.__module__.startswith(package)]
    if factory is None and name == BUILD and modules:
        return modules
    if not callable(factory):
        raise LoadFailed(
            f"model.py of {spec.config.name!r} has no {name}: define build() -> torch.nn.Module, or set the parameter "
            f"MODULE to the name of a class or function in it"
        )
    return [factory]


def _build(factory: Factory, source: UserModule) -> "torch.nn.Module":
    if needed := _required_arguments(factory):
        name, values = getattr(factory, "__name__", "MODULE"), ", ".join(f"{each}=…" for each in needed)
        fix = f"define {BUILD}() in model.py that returns {name}({values})"
        raise LoadFailed(
            f"{name} needs arguments ({', '.join(needed)}): {fix if name != BUILD else 'give them defaults'}"
        )
    try:
        return build_uninitialised(factory)
    except PredictorError:
        raise
    except (Exception, SystemExit) as error:
        failed = LoadFailed(f"model.py could not build its module: {import_reason(error, source.path)}")
        raise failed from trim_traceback(error, source.folders)


def _required_arguments(factory: Factory) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of native code
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def build_uninitialised(factory: Factory) -> "torch.nn.Module":
    """Build the module with uninitialised parameters, which touches no memory; the weights are assigned later.

    Not on torch's meta device: there an `nn.Embedding` or a product with a number makes torch import 906 modules (9 s
    on two cores), and buffers that are not in the file would have no values.
    """
    import torch

    with _without_initialisation():
        module = factory()
    if not isinstance(module, torch.nn.Module):
        raise LoadFailed(f"model.py built {type(module).__name__}, must be a torch.nn.Module")
    return module


def _without_initialisation() -> AbstractContextManager[object]:
    """Skip the initialisation of parameters, each of which must be in the file, or the strict load fails."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Skip(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if getattr(func, "__name__", "") in _IN_PLACE or getattr(func, "__module__", "") == "torch.nn.init":
                target = args[0] if args else kwargs.get("tensor")
                if isinstance(target, torch.nn.Parameter):
                    return target
            return func(*args, **kwargs)

    return Skip()
