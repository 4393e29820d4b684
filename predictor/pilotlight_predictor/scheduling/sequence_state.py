"""Control tensors and implicit state of sequence models: wraps the backend's instance.

Adds control tensors and states to each request, and stores the states of each answer. In the direct strategy a
request's row in the batch is its slot; a model with a READY control gets empty slots as requests that are not ready.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from pilotlight_predictor.backends.base import Answer, AnyInstance, Instance, is_decoupled
from pilotlight_predictor.core.requests import InferRequest, SequencePoint, with_tensors
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Tensor, decode_raw, zeros
from pilotlight_predictor.errors import BackendFailed, LoadFailed
from pilotlight_predictor.repository.model_config import (
    ModelConfig,
    SequenceBatching,
    SequenceControl,
    SequenceState,
    TensorConfig,
    sequence_batching,
)

_ALONE = SequencePoint(0, start=True, end=True)  # a warm-up: a sequence of one request


def check_sequences_can_be_served(config: ModelConfig, workers: int) -> None:
    """Raise LoadFailed with several workers: each process would see a part of a sequence."""
    if workers > 1:
        raise LoadFailed(
            f"{config.name}: sequence_batching needs all requests in one process, and this server has {workers};"
            " start it with --workers 1"
        )


def with_states(config: ModelConfig) -> ModelConfig:
    """Return the configuration for the backend, in which states are outputs like others."""
    if config.sequence_batching is None or not config.outputs:
        return config
    known = {tensor.name for tensor in config.outputs}
    states = [state for state in sequence_batching(config).states if state.output_name not in known]
    added = tuple(TensorConfig(state.output_name, state.datatype, state.dims) for state in states)
    return msgspec.structs.replace(config, outputs=(*config.outputs, *added))


def sequence_instances(instances: Sequence[AnyInstance], config: ModelConfig, model_dir: Path) -> "list[AnyInstance]":
    if any(map(is_decoupled, instances)):
        raise LoadFailed(f"{config.name}: sequence_batching of a decoupled model is not supported; remove one of them")
    return [sequence_instance(instance, config, model_dir) for instance in instances if not is_decoupled(instance)]


def sequence_instance(instance: Instance, config: ModelConfig, model_dir: Path) -> "SequencedInstance":
    """Wrap an instance. Raises LoadFailed if an initial state cannot be read."""
    batching = sequence_batching(config)
    initial = {state.input_name: _initial(state, config, model_dir) for state in batching.states}
    declared = frozenset(tensor.name for tensor in config.outputs)
    return SequencedInstance(instance, batching, initial, declared, config.max_batch_size > 0)


class SequencedInstance:
    def __init__(
        self,
        instance: Instance,
        batching: SequenceBatching,
        initial: Mapping[str, Tensor],
        declared: frozenset[str],
        batched: bool,
    ) -> None:
        self._instance = instance
        self.inputs, self.outputs, self.quick = instance.inputs, instance.outputs, instance.quick
        self._batching, self._initial, self._declared, self._batched = batching, initial, declared, batched
        ready = any(control.kind == "READY" for control in batching.controls)
        self._slotted = ready and batched and not batching.oldest

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        slots = [each.sequence.slot if each.sequence else 0 for each in batch] if self._slotted else range(len(batch))
        rows = dict(zip(slots, batch, strict=True))
        padded = [rows.get(slot) for slot in range(max(rows) + 1)]
        answers = self._instance.execute([self._add_tensors(each or _padding_request(batch[0])) for each in padded])
        if len(answers) != len(padded):
            raise RuntimeError(f"the model returned {len(answers)} responses to {len(padded)} requests")
        pairs = zip(padded, answers, strict=True)
        extracted = {id(request): self._extract_states(request, answer) for request, answer in pairs if request}
        return [extracted[id(request)] for request in batch]

    def _add_tensors(self, request: InferRequest) -> InferRequest:
        """Add control tensors and the states of the sequence."""
        point = request.sequence or _ALONE
        controls = {control.name: _control(control, point, self._batched) for control in self._batching.controls}
        known = {} if point.start or not point.state else point.state
        states = {name: known.get(name, initial) for name, initial in self._initial.items()}
        return msgspec.structs.replace(request, tensors={**request.inputs, **controls, **states})

    def _extract_states(self, request: InferRequest, answer: Answer) -> Answer:
        """Store the states of an answer, and return it without them. Copies: views would hold the batch's memory."""
        if isinstance(answer, Exception) or not self._batching.states:
            return answer
        missing = [state.output_name for state in self._batching.states if state.output_name not in answer]
        if missing:
            return BackendFailed(f"the model returned no state '{missing[0]}', which sequence_batching.state names")
        if request.sequence is not None and request.sequence.state is not None:
            for state in self._batching.states:
                datatype, array = answer[state.output_name]
                request.sequence.state[state.input_name] = Tensor(datatype, array.copy())
        hidden = {state.output_name for state in self._batching.states} - self._declared
        return with_tensors(answer, {name: tensor for name, tensor in answer.items() if name not in hidden})

    def clone(self) -> "SequencedInstance":
        batching, declared = self._batching, self._declared
        return SequencedInstance(self._instance.clone(), batching, self._initial, declared, self._batched)

    def close(self) -> None:
        self._instance.close()


class _EmptySlot(SequencePoint):
    """Marker of a slot without a request."""


def _padding_request(like: InferRequest) -> InferRequest:
    """Return the request for an empty slot: zeros, in the shapes of the others."""
    inputs = {name: zeros(tensor.datatype, tensor.array.shape) for name, tensor in like.inputs.items()}
    return InferRequest(like.model, inputs, like.version, sequence=_EmptySlot(0))


def _control(control: SequenceControl, point: SequencePoint, batched: bool) -> Tensor:
    shape = (1, 1) if batched else (1,)
    if control.kind == "CORRID":
        array = np.empty(shape, NUMPY_TYPES[control.datatype])
        array.fill(str(point.id).encode() if control.datatype == "BYTES" else point.id)
        return Tensor(control.datatype, array)
    holds = {"START": point.start, "END": point.end, "READY": not isinstance(point, _EmptySlot)}[control.kind]
    return Tensor(control.datatype, np.full(shape, control.values[holds], NUMPY_TYPES[control.datatype]))


def _initial(state: SequenceState, config: ModelConfig, model_dir: Path) -> Tensor:
    shape = (1, *state.initial_dims) if config.max_batch_size else state.initial_dims
    if not state.initial_file:
        return zeros(state.datatype, shape)
    path = model_dir / "initial_state" / state.initial_file
    try:
        return decode_raw(f"state '{state.input_name}'", state.datatype, shape, path.read_bytes())
    except OSError as error:
        where = f"{config.name}: sequence_batching.state '{state.input_name}'"
        raise LoadFailed(f"{where}: cannot read initial_state/{state.initial_file}: {error.strerror}") from None
