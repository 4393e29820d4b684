"""`sequence_batching` as scheduler and instances use it: strategy, slots, control tensors, states. Pure.

The block was validated with the rest of the configuration; `sequence_batching` here only reads it.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from msgspec import Struct

from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.schema import datatype_of
from pilotlight_predictor.tensors import Shape

IDLE_US: Final = 1_000_000  # Triton's, where the configuration names none
_PAIRS: Final = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}


class Control(Struct, frozen=True):
    """A tensor that the server adds: `kind` START, END, READY with its two values, or CORRID with a datatype."""

    name: str
    kind: str
    datatype: str
    values: tuple[Any, ...] = ()


class State(Struct, frozen=True):
    """What `output_name` gives is what `input_name` gets with the next request; the first gets the initial one."""

    input_name: str
    output_name: str
    datatype: str
    dims: Shape
    initial_dims: Shape
    initial_file: str = ""  # in <model>/initial_state; empty: zeros


class SequenceBatching(Struct, frozen=True):
    """`slots` are the sequences that one instance has at a time. Direct: each is a place in the batch."""

    oldest: bool
    slots: int
    idle_us: int
    delay_us: int = 0
    enough: int = 0  # direct: requests that need not wait for others
    preferred: frozenset[int] = frozenset()
    preserve_ordering: bool = False
    controls: tuple[Control, ...] = ()
    states: tuple[State, ...] = ()


def sequence_batching(config: ModelConfig) -> SequenceBatching:
    """Direct is the strategy of a block that names none."""
    raw = config.sequence_batching or {}
    strategy: Mapping[str, Any] = raw.get("oldest") or raw.get("direct") or {}
    places = max(1, config.max_batch_size)
    fullness = strategy.get("minimum_slot_utilization", 0.0)
    return SequenceBatching(
        oldest="oldest" in raw,
        slots=strategy.get("max_candidate_sequences", 0) or places,
        idle_us=raw.get("max_sequence_idle_microseconds", 0) or IDLE_US,
        delay_us=strategy.get("max_queue_delay_microseconds", 0) if "oldest" in raw or fullness else 0,
        enough=0 if "oldest" in raw else ceil(fullness * places),
        preferred=frozenset(strategy.get("preferred_batch_size", ())),
        preserve_ordering=strategy.get("preserve_ordering", False),
        controls=tuple(
            _control(tensor["name"], control)
            for tensor in raw.get("control_input", [])
            for control in tensor["control"]
        ),
        states=tuple(map(_state, raw.get("state", []))),
    )


def tensors_made_here(config: ModelConfig) -> tuple[frozenset[str], frozenset[str]]:
    """The model file's inputs and outputs that no client sees."""
    raw = config.sequence_batching or {}
    controls = [tensor["name"] for tensor in raw.get("control_input", [])]
    states = raw.get("state", [])
    inputs = frozenset([*controls, *(state["input_name"] for state in states)])
    return inputs, frozenset(state["output_name"] for state in states)


def _control(name: str, raw: Mapping[str, Any]) -> Control:
    kind = raw.get("kind", "CONTROL_SEQUENCE_START").removeprefix("CONTROL_SEQUENCE_")
    if kind == "CORRID":
        return Control(name, kind, datatype_of(raw["data_type"]))
    field = next(field for field in _PAIRS if raw.get(field))
    return Control(name, kind, _PAIRS[field], tuple(raw[field]))


def _state(raw: Mapping[str, Any]) -> State:
    dims, initial = tuple(raw["dims"]), (raw.get("initial_state") or [{}])[0]
    given = tuple(initial.get("dims", ())) or dims
    shape = tuple(1 if dim < 0 else dim for dim in given)
    datatype = datatype_of(raw["data_type"])
    return State(raw["input_name"], raw["output_name"], datatype, dims, shape, initial.get("data_file", ""))
