"""Typed model configuration, used by scheduler, backends and routes. Pure data.

`config.pbtxt`, a JSON override and a derived configuration all become a ModelConfig; `raw` has the whole document with
Triton's field names and defaults. msgspec structs: creating the classes takes a fiftieth of dataclasses' time at start.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal

from msgspec import Struct, field

from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.core.tensors import Shape
from pilotlight_predictor.repository.schema import MODEL_CONFIG, datatype_of, with_defaults

IDLE_US: Final = 1_000_000  # Triton's default
MAX_NAME: Final = 255
# Triton's backend of a platform, for `raw`; the typed view has the written values.
PLATFORM_BACKENDS: Final = {
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "caffe2_netdef": "caffe2",
}
_PAIRS: Final = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}


class TensorConfig(Struct, frozen=True):
    """One input or output. `dims` leave the batch dimension out when `max_batch_size` > 0."""

    name: str
    datatype: str = field(name="data_type")
    dims: Shape = ()
    reshape: Shape | None = None
    optional: bool = False
    allow_ragged: bool = field(default=False, name="allow_ragged_batch")
    label_filename: str = ""
    columns: tuple[str, ...] = ()  # set from the model file: see TensorSpec


class InstanceGroup(Struct, frozen=True):
    """Instances of a model. `gpus` empty with kind GPU: every GPU; `count` is per device."""

    count: int = 1
    kind: Literal["AUTO", "CPU", "GPU", "MODEL"] = "AUTO"
    gpus: tuple[int, ...] = ()
    name: str = ""


class QueuePolicy(Struct, frozen=True):
    """Limits of waiting time and queue length; 0 means unlimited."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_us: int = field(default=0, name="default_timeout_microseconds")
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(Struct, frozen=True):
    """Settings of the dynamic batcher of one model."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = field(default=0, name="max_queue_delay_microseconds")
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy(self, priority: int) -> QueuePolicy:
        return self.priority_queue_policy.get(priority, self.default_queue_policy)


class VersionPolicy(Struct, frozen=True):
    """Versions to serve: the newest `num_versions`, all, or those of `versions`."""

    kind: Literal["latest", "all", "specific"] = "latest"
    num_versions: int = 1
    versions: tuple[int, ...] = ()


class WarmupInput(Struct, frozen=True):
    """Warm-up tensor: zeros, random numbers, or the bytes of a file in `<model>/warmup/`."""

    datatype: str
    dims: Shape
    source: Literal["zero", "random", "file"] = "zero"
    filename: str = ""


class Warmup(Struct, frozen=True):
    """Request that is sent `count` times before the model counts as loaded."""

    name: str
    inputs: Mapping[str, WarmupInput]
    batch_size: int = 1
    count: int = 1


class GraphSpec(Struct, frozen=True):
    """CUDA graph to capture: rows (0 without batch dimension), fewest rows it serves (0: unset), dims of inputs."""

    rows: int
    min_rows: int = 0
    dims: Mapping[str, Shape] = field(default_factory=dict)


class EnsembleStep(Struct, frozen=True):
    """One model of an ensemble: `input_map` and `output_map` are tensor of the model → tensor of the ensemble."""

    model: str = field(name="model_name")
    version: int = field(default=NEWEST, name="model_version")  # -1 (NEWEST) is the newest, as in a request
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)


class ModelConfig(Struct, frozen=True):
    """Configuration of one model; `raw` is the document that it was read from."""

    name: str
    backend: str = ""
    platform: str = ""
    max_batch_size: int = 0
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    instance_groups: tuple[InstanceGroup, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    version_policy: VersionPolicy = VersionPolicy()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    warmups: tuple[Warmup, ...] = ()
    response_cache: bool = False
    cuda_graphs: tuple[GraphSpec, ...] | None = None  # None: disabled; empty: derived from the batching
    ensemble: tuple[EnsembleStep, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    decoupled: bool = False
    open_inputs: bool = False  # set by the loader, as the next: see ModelFileInfo
    input_aliases: frozenset[str] = frozenset()
    sequence_batching: Mapping[str, Any] | None = None
    explicit_fields: frozenset[str] = frozenset()  # top-level fields of the document: an explicit 0 is not "unset"
    raw: Mapping[str, Any] = field(default_factory=dict)


class SequenceControl(Struct, frozen=True):
    """Tensor that the server adds: `kind` START, END, READY with its two values, or CORRID with a datatype."""

    name: str
    kind: str
    datatype: str
    values: tuple[Any, ...] = ()


class SequenceState(Struct, frozen=True):
    """State tensor: `output_name` of a request becomes `input_name` of the next; the first gets the initial state."""

    input_name: str
    output_name: str
    datatype: str
    dims: Shape
    initial_dims: Shape
    initial_file: str = ""  # in <model>/initial_state; empty: zeros


class SequenceBatching(Struct, frozen=True):
    """Sequence batcher; `slots`: concurrent sequences of an instance. Direct: each slot is a row of the batch."""

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


def valid_model_name(name: str) -> bool:
    """Whether a name is a single portable path component; `...` and `model..1` are valid."""
    if name in {"", ".", ".."} or len(name.encode("utf-8", "replace")) > MAX_NAME or name != name.strip():
        return False
    return name.isprintable() and not set(name) & set("/\\")


def stays_inside(filename: str) -> bool:
    """Whether a path is relative and without `..`, so that it cannot leave the directory it is joined to."""
    if not filename or filename.startswith("/") or "\\" in filename or "\0" in filename:
        return False
    return ".." not in filename.split("/")


def raw_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with Triton's defaults, in Triton's order."""
    full = dict(values)
    full.setdefault("backend", PLATFORM_BACKENDS.get(full.get("platform", ""), ""))
    full.setdefault("version_policy", {"latest": {"num_versions": 1}})
    largest = full.get("max_batch_size", 0)
    if "dynamic_batching" in full and largest:
        full["dynamic_batching"] = {"preferred_batch_size": [largest], **full["dynamic_batching"]}
    if "sequence_batching" in full:
        full["sequence_batching"] = {"max_sequence_idle_microseconds": IDLE_US, **full["sequence_batching"]}
    if "instance_group" in full:
        full["instance_group"] = [{"count": 1, **group} for group in full["instance_group"]]
    if "ensemble_scheduling" in full:
        # Missing versions are written as -1 (newest): protobuf's default 0 is a version, and the JSON may be sent back.
        steps = [{"model_version": NEWEST, **step} for step in full["ensemble_scheduling"].get("step", [])]
        full["ensemble_scheduling"] = {**full["ensemble_scheduling"], "step": steps}
    else:
        full["optimization"] = {
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            **full.get("optimization", {}),
        }
    return with_defaults(full, MODEL_CONFIG)
