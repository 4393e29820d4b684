"""The typed view of a model's configuration that scheduler, backends and routes use. Pure data.

`config.pbtxt`, a JSON override or a derived configuration all end here; `raw` keeps the whole document with Triton's
field names and defaults, for `GET /v2/models/{m}/config`.

They are structs of msgspec and not dataclasses: a start makes all these classes, each in the fiftieth part of the time.
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
    """How long a request may wait and how many may. Zero means without bound."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(Struct, frozen=True):
    """How requests of one model are put together into batches."""

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
    """Which versions are served: the newest `num_versions`, all, or those of `versions`."""

    kind: Literal["latest", "all", "specific"] = "latest"
    num_versions: int = 1
    versions: tuple[int, ...] = ()


class WarmupInput(Struct, frozen=True):
    """A warm-up tensor: zeros, random numbers, or the bytes of a file in `<model>/warmup/`."""

    datatype: str
    dims: Shape
    source: Literal["zero", "random", "file"] = "zero"
    filename: str = ""


class Warmup(Struct, frozen=True):
    """One request that is sent `count` times before the model counts as loaded."""

    name: str
    inputs: Mapping[str, WarmupInput]
    batch_size: int = 1
    count: int = 1


class GraphSpec(Struct, frozen=True):
    """A CUDA graph to capture: rows (0 where the model has no batch dimension), and dims of inputs that vary.

    It serves batches of `least` rows and more, where that is told.
    """

    rows: int
    least: int = 0
    dims: Mapping[str, Shape] = field(default_factory=dict)


class EnsembleStep(Struct, frozen=True):
    """One model of an ensemble: `input_map` is model input → ensemble tensor, `output_map` model output → tensor."""

    model: str
    version: int  # -1 (inference.NEWEST) is the newest, as in a request
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


class ModelConfig(Struct, frozen=True):
    """All of one model; `raw` is the document that it was read from."""

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
    cuda_graphs: tuple[GraphSpec, ...] | None = None  # None: not asked for; empty: which ones follows from the batching
    ensemble: tuple[EnsembleStep, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    decoupled: bool = False
    sequence_batching: Mapping[str, Any] | None = None
    given: frozenset[str] = frozenset()  # the top-level fields that the author wrote: an explicit 0 is not "unset"
    raw: Mapping[str, Any] = field(default_factory=dict)
