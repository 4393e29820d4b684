"""Weights and the code of a module become a module, at the cost of the weights alone. torch_modules.py calls it.

The module is built with its parameters left uninitialised, which reserves memory and touches none of it, and then the
weights of the file are assigned in their place. Not on torch's meta device: there an `nn.Embedding` or a product with a
number makes torch import 906 modules, 9 s on two cores, and buffers that no file holds would have no values.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.errors import LoadFailed

if TYPE_CHECKING:
    import torch

Weights = dict[str, Any]
_IN_PLACE: Final = frozenset({"normal_", "uniform_", "random_", "fill_", "zero_"})


def built(factory: "Callable[[], torch.nn.Module]") -> "torch.nn.Module":
    """Needs no weights: they may still be on their way."""
    import torch

    with _without_initialisation():
        module = factory()
    if not isinstance(module, torch.nn.Module):
        raise LoadFailed(f"model.py built {type(module).__name__}, must be a torch.nn.Module")
    return module


def filled(module: "torch.nn.Module", weights: Weights, device: str, file: str) -> "torch.nn.Module":
    try:
        module.load_state_dict(_with_tied(module, weights), strict=True, assign=True)
    except RuntimeError as error:
        raise LoadFailed(f"{file} does not fit the module of model.py: {error}") from error
    return module.to(device)


def _without_initialisation() -> AbstractContextManager[object]:
    """Only parameters are left out: each of them must be in the file, or the strict load fails."""
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

    found: AbstractContextManager[object] = Skip()
    return found


def _with_tied(module: "torch.nn.Module", weights: Weights) -> Weights:
    """safetensors leaves out all but one name of a tensor that has several; a strict load wants each."""
    first: dict[int, str] = {}
    tied: Weights = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        original = first.setdefault(id(parameter), name)
        for wanted, present in ((name, original), (original, name)):
            if wanted not in weights and present in weights:
                tied[wanted] = weights[present]
    return {**weights, **tied}
