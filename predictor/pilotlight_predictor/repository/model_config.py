"""Typed model configuration, used by scheduler, backends and routes. Pure data.

`config.pbtxt`, a JSON override and a derived configuration all become a ModelConfig; `raw` has the whole document with
Triton's field names and defaults, for `GET /v2/models/{m}/config`.

msgspec structs instead of dataclasses: creating the classes takes a fiftieth of the time at start.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from pilotlight_predictor.tensors import Shape


class TensorConfig(Struct, frozen=True):
    """One input or output. `dims` leave the batch dimension out when `max_batch_size` > 0."""

    name: str
    datatype: str
    dims: Shape
    reshape: Shape | None = None
    optional: bool = False
    allow_ragged: bool = False
    label_filename: str = ""


class InstanceGroup(Struct, frozen=True):
    """`gpus` empty with kind GPU means every GPU; count is per device."""

    count: int = 1
    kind: Literal["AUTO", "CPU", "GPU", "MODEL"] = "AUTO"
    gpus: tuple[int, ...] = ()
    name: str = ""


class QueuePolicy(Struct, frozen=True):
    """Limits of waiting time and queue length; 0 means unlimited."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(Struct, frozen=True):
    """Settings of the dynamic batcher of one model."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
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
    """CUDA graph to capture: rows (0 without batch dimension), dims of variable inputs, and the fewest rows it serves
    (`least`, 0: unset)."""

    rows: int
    min_rows: int = 0
    dims: Mapping[str, Shape] = field(default_factory=dict)


class EnsembleStep(Struct, frozen=True):
    """One model of an ensemble: `input_map` is model input → ensemble tensor, `output_map` model output → ensemble
    tensor."""

    model: str
    version: int  # -1 (inference.NEWEST) is the newest, as in a request
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


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
    sequence_batching: Mapping[str, Any] | None = None
    explicit_fields: frozenset[str] = frozenset()  # top-level fields of the document: an explicit 0 is not "unset"
    raw: Mapping[str, Any] = field(default_factory=dict)
