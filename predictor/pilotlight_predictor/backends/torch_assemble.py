"""Assembly of a module from its code and weights, at the cost of the weights alone. Used by torch_modules.py.

The module is built with uninitialised parameters, which touches no memory, and the weights of the file are assigned.
torch's meta device is not used: there an `nn.Embedding` or a product with a number makes torch import 906 modules (9 s
on two cores), and buffers that are not in the file would have no values.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.errors import LoadFailed

if TYPE_CHECKING:
    import torch

Weights = dict[str, Any]
_IN_PLACE: Final = frozenset({"normal_", "uniform_", "random_", "fill_", "zero_"})


def build_module(factory: "Callable[[], torch.nn.Module]") -> "torch.nn.Module":
    """Build the module with uninitialised parameters, while weights are still being transferred."""
    import torch

    with _without_initialisation():
        module = factory()
    if not isinstance(module, torch.nn.Module):
        raise LoadFailed(f"model.py built {type(module).__name__}, must be a torch.nn.Module")
    return module


def load_weights(module: "torch.nn.Module", weights: Weights, device: str, file: str) -> "torch.nn.Module":
    try:
        module.load_state_dict(_with_tied(module, weights), strict=True, assign=True)
    except RuntimeError as error:
        raise LoadFailed(f"{file} does not fit the module of model.py: {error}") from error
    return module.to(device)


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

    skip: AbstractContextManager[object] = Skip()
    return skip


def _with_tied(module: "torch.nn.Module", weights: Weights) -> Weights:
    """Add the names of tied tensors, of which safetensors stores only one; a strict load requires all."""
    first: dict[int, str] = {}
    tied: Weights = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        original = first.setdefault(id(parameter), name)
        for missing, present in ((name, original), (original, name)):
            if missing not in weights and present in weights:
                tied[missing] = weights[present]
    return {**weights, **tied}
