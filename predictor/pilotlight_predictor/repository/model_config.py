"""The typed view of a model's configuration that scheduler, backends and routes use. Pure data.

`config.pbtxt`, a JSON override or a derived configuration all end here; `raw` keeps the whole document with Triton's
field names and defaults, for `GET /v2/models/{m}/config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pilotlight_predictor.tensors import Shape


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """One input or output. `dims` leave the batch dimension out when `max_batch_size` > 0."""

    name: str
    datatype: str
    dims: Shape
    reshape: Shape | None = None
    optional: bool = False
    allow_ragged: bool = False
    label_filename: str = ""


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`gpus` empty with kind GPU means every GPU; count is per device."""

    count: int = 1
    kind: Literal["AUTO", "CPU", "GPU", "MODEL"] = "AUTO"
    gpus: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long a request may wait and how many may. Zero means without bound."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy(self, priority: int) -> QueuePolicy:
        return self.priority_queue_policy.get(priority, self.default_queue_policy)


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    kind: Literal["latest", "all", "specific"] = "latest"
    num_versions: int = 1
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """A warm-up tensor: zeros, random numbers, or the bytes of a file in `<model>/warmup/`."""

    datatype: str
    dims: Shape
    source: Literal["zero", "random", "file"] = "zero"
    filename: str = ""


@dataclass(frozen=True, slots=True)
class Warmup:
    name: str
    inputs: Mapping[str, WarmupInput]
    batch_size: int = 1
    count: int = 1


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble: `input_map` is model input → ensemble tensor, `output_map` model output → tensor."""

    model: str
    version: int  # -1 (inference.NEWEST) is the newest, as in a request
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
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
    ensemble: tuple[EnsembleStep, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    decoupled: bool = False
    sequence_batching: Mapping[str, Any] | None = None
    given: frozenset[str] = frozenset()  # the top-level fields that the author wrote: an explicit 0 is not "unset"
    raw: Mapping[str, Any] = field(default_factory=dict)
