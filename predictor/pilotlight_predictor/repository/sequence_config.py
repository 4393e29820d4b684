"""Typed view of `sequence_batching` for scheduler and instances: strategy, slots, control tensors, states. Pure.

The block has been validated with the rest of the configuration.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from msgspec import Struct

from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.schema import datatype_of
from pilotlight_predictor.tensors import Shape

IDLE_US: Final = 1_000_000  # Triton's default
_PAIRS: Final = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}


class SequenceControl(Struct, frozen=True):
    """Tensor that the server adds: `kind` START, END, READY with its two values, or CORRID with a datatype."""

    name: str
    kind: str
    datatype: str
    values: tuple[Any, ...] = ()


class SequenceState(Struct, frozen=True):
    """State tensor: `output_name` of a request becomes `input_name` of the next one; the first request gets the initial
    state."""

    input_name: str
    output_name: str
    datatype: str
    dims: Shape
    initial_dims: Shape
    initial_file: str = ""  # in <model>/initial_state; empty: zeros


class SequenceBatching(Struct, frozen=True):
    """Sequence batcher; `slots` is the number of concurrent sequences of an instance. Direct: each slot is a row of the
    batch."""

    oldest: bool
    slots: int
    idle_us: int
    delay_us: int = 0
    min_rows: int = 0  # direct: rows that are executed without waiting for more
    preferred: frozenset[int] = frozenset()
    preserve_ordering: bool = False
    controls: tuple[SequenceControl, ...] = ()
    states: tuple[SequenceState, ...] = ()


def sequence_batching(config: ModelConfig) -> SequenceBatching:
    """Return the typed view of a configuration. The default strategy is direct."""
    raw = config.sequence_batching or {}
    strategy: Mapping[str, Any] = raw.get("oldest") or raw.get("direct") or {}
    rows = max(1, config.max_batch_size)
    utilization = strategy.get("minimum_slot_utilization", 0.0)
    return SequenceBatching(
        oldest="oldest" in raw,
        slots=strategy.get("max_candidate_sequences", 0) or rows,
        idle_us=raw.get("max_sequence_idle_microseconds", 0) or IDLE_US,
        delay_us=strategy.get("max_queue_delay_microseconds", 0) if "oldest" in raw or utilization else 0,
        min_rows=0 if "oldest" in raw else ceil(utilization * rows),
        preferred=frozenset(strategy.get("preferred_batch_size", ())),
        preserve_ordering=strategy.get("preserve_ordering", False),
        controls=tuple(
            _control(tensor["name"], control)
            for tensor in raw.get("control_input", [])
            for control in tensor["control"]
        ),
        states=tuple(map(_state, raw.get("state", []))),
    )


def server_tensors(config: ModelConfig) -> tuple[frozenset[str], frozenset[str]]:
    """Return inputs and outputs of the model file that clients never see."""
    raw = config.sequence_batching or {}
    controls = [tensor["name"] for tensor in raw.get("control_input", [])]
    states = raw.get("state", [])
    inputs = frozenset([*controls, *(state["input_name"] for state in states)])
    return inputs, frozenset(state["output_name"] for state in states)


def _control(name: str, raw: Mapping[str, Any]) -> SequenceControl:
    kind = raw.get("kind", "CONTROL_SEQUENCE_START").removeprefix("CONTROL_SEQUENCE_")
    if kind == "CORRID":
        return SequenceControl(name, kind, datatype_of(raw["data_type"]))
    field = next(field for field in _PAIRS if raw.get(field))
    return SequenceControl(name, kind, _PAIRS[field], tuple(raw[field]))


def _state(raw: Mapping[str, Any]) -> SequenceState:
    dims, initial = tuple(raw["dims"]), (raw.get("initial_state") or [{}])[0]
    initial_dims = tuple(initial.get("dims", ())) or dims
    shape = tuple(1 if dim < 0 else dim for dim in initial_dims)
    datatype = datatype_of(raw["data_type"])
    return SequenceState(raw["input_name"], raw["output_name"], datatype, dims, shape, initial.get("data_file", ""))
