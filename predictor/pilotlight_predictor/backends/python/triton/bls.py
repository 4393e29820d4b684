"""Business logic scripting (BLS): calls of a Triton model to others; and the ModelConfig of `auto_complete_config`.

`BlsCaller` is the calling model, `BlsResponses` one call of requests.py, answered through models/bls.py.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

from pilotlight_predictor.backends.base import LoadSpec, VersionId
from pilotlight_predictor.backends.python.functions import array_of
from pilotlight_predictor.backends.python.triton.types import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.errors import BadRequest, Cancelled, NotFound, PredictorError, Unavailable, Unsupported

# Triton's codes → our errors. Also inverted, error → code, where the last entry of an error class wins.
ERRORS: Final[dict[int, type[PredictorError]]] = {
    TritonError.UNKNOWN: BadRequest,
    TritonError.ALREADY_EXISTS: BadRequest,
    TritonError.INTERNAL: PredictorError,
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: BadRequest,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.CANCELLED: Cancelled,
}
_TENSOR_FIELDS: Final = frozenset({"name", "data_type", "dims", "optional"})


class BlsCaller:
    """The calling model, shared by its instances: its BLS client, and which of its threads are in `execute`."""

    def __init__(self, spec: LoadSpec) -> None:
        self.calls = spec.calls
        self.caller = VersionId(spec.config.name, spec.version)
        self.decoupled = spec.config.decoupled
        self._executing: set[int] = set()

    def close(self) -> None:
        """Remove the metrics of the unloaded model."""
        if self.calls is not None:
            self.calls.forget_metrics(self)

    @contextmanager
    def executing(self) -> Iterator[None]:
        self._executing.add(get_ident())
        try:
            yield
        finally:
            self._executing.discard(get_ident())

    @property
    def blocks(self) -> bool:
        """Whether a call from this thread blocks an instance; for a decoupled model only inside `execute`."""
        return not self.decoupled or get_ident() in self._executing


class BlsResponses:
    """Responses of one call, iterable by `for` or `async for`. The last may have no tensors."""

    def __init__(
        self, caller: BlsCaller | None, request: InferRequest, decoupled: bool, on_response: Callable[[], Any] | None
    ) -> None:
        if caller is None or caller.calls is None:
            raise TritonModelException("models can be called only by a model.py that a server has loaded")
        self._answers = caller.calls.call(
            caller.caller, request, decoupled=decoupled, blocks=caller.blocks, on_response=on_response
        )
        self.arrived: asyncio.Event | None = None

    def __iter__(self) -> "BlsResponses":
        return self

    def __next__(self) -> InferenceResponse:
        if self._answers.ended:
            raise StopIteration
        return _response(self._answers.next()[0])

    def __aiter__(self) -> "BlsResponses":
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._answers.ended:
            raise StopAsyncIteration
        while self.arrived is not None and not self._answers.waiting:
            self.arrived.clear()
            if not self._answers.waiting:
                await self.arrived.wait()
        return _response(self._answers.next()[0])

    def cancel(self) -> None:
        self._answers.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_answers"):
            self._answers.cancel()


def _response(result: InferResponse | Exception) -> InferenceResponse:
    if isinstance(result, Exception):
        kinds = {kind: code for code, kind in ERRORS.items()}
        code = next((kinds[kind] for kind in type(result).__mro__ if kind in kinds), TritonError.INTERNAL)
        return InferenceResponse(error=TritonError(str(result), code))
    tensors = [Tensor(name, array_of(each)) for name, each in result.outputs.items()]
    return InferenceResponse(tensors, parameters=result.parameters)


class ModelConfig:
    """The configuration as Triton prints it. Values of the config file win: a model that sets others fails."""

    def __init__(self, model_config: str | Mapping[str, Any]) -> None:
        document = json.loads(model_config) if isinstance(model_config, str) else model_config
        self._model_config: dict[str, Any] = dict(document)

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raise ValueError if the configuration has a larger value."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(f"max_batch_size is {configured} in the configuration, must be at most {max_batch_size}")
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        other = next((name for name in ("sequence_batching", "ensemble_scheduling") if name in self._model_config), "")
        if other:
            raise ValueError(f"the configuration has {other}, which excludes dynamic_batching")
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, bool]) -> None:
        unknown = [name for name in transaction_policy_dict if name != "decoupled"]
        if unknown:
            raise ValueError(f"model transaction policy property {unknown[0]!r} is unknown, must be 'decoupled'")
        decoupled = bool(transaction_policy_dict.get("decoupled", False))
        configured = self._model_config.get("model_transaction_policy", {}).get("decoupled")
        if configured and not decoupled:
            raise ValueError("model_transaction_policy.decoupled is true in the configuration, must be false")
        self._model_config["model_transaction_policy"] = {"decoupled": decoupled}

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - models may name it
        self._add("input", input, _TENSOR_FIELDS)

    def add_output(self, output: Mapping[str, Any]) -> None:
        self._add("output", output, _TENSOR_FIELDS - {"optional"})

    def _add(self, kind: str, tensor: Mapping[str, Any], known: frozenset[str]) -> None:
        unknown = [name for name in tensor if name not in known]
        missing = [name for name in ("name", "data_type", "dims") if name not in tensor]
        if unknown or missing:
            wrong = f"has the unknown property {unknown[0]!r}" if unknown else f"lacks the property {missing[0]!r}"
            raise ValueError(f"{kind} {tensor.get('name', '')!r} {wrong}")
        tensors = self._model_config.setdefault(kind, [])
        configured = next((each for each in tensors if each.get("name") == tensor["name"]), None)
        if configured is None:
            tensors.append({**tensor, "dims": list(tensor["dims"])})
            return
        for field in ("data_type", "dims"):
            old, new = configured.get(field), tensor[field]
            old, new = (list(old or []), list(new)) if field == "dims" else (old, new)
            if old and old != new and old != "TYPE_INVALID":
                raise ValueError(f"{kind} {tensor['name']!r} has {field} {old} in the configuration, must be {new}")
            configured[field] = new


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((tensor for tensor in model_config.get("input", []) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((tensor for tensor in model_config.get("output", []) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))
