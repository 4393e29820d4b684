"""GPU memory of a model: its weights, the KV cache of the served context and overhead; how many GPUs hold them. Pure.

By the model's document and its engine's arguments. Accelerator classes are compared by it, and plan/capacity judges the
GPUs of a component.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.catalogue.document_types import BYTES_PER_PARAMETER, weights_size
from pilotlight.catalogue.runtime_merge import PARALLEL_FLAGS, argument_groups
from pilotlight.spec.service import BaseModel

Json = Any
GIB: Final = 2**30
FRACTION: Final = 0.9  # of a GPU's memory that an engine uses by default
OVERHEAD_PER_GPU: Final = 2 * GIB  # CUDA context and graphs, buffers of collectives, activations
OVERHEAD_OF_WEIGHTS: Final = 0.05
UNKNOWN_CACHE: Final = 0.1  # KV cache of a model whose layers are unknown, by its weights
DEFAULT_CONTEXT: Final = 8192
MOST_GPUS: Final = 1024


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes that all GPUs of a replica must hold together."""

    weights: int
    kv_cache: int
    tokens: int  # that the KV cache holds; 0: its size is a guess
    fraction: float = FRACTION
    shards: int = 0  # GPUs that the arguments of the engine name; 0: all

    def overhead(self, gpus: int) -> int:
        return int(gpus * OVERHEAD_PER_GPU + self.weights * OVERHEAD_OF_WEIGHTS)

    def needed(self, gpus: int) -> int:
        return self.weights + self.kv_cache + self.overhead(gpus)

    def capacity(self, gpus: int, gpu_memory: int) -> int:
        return int(gpus * gpu_memory * self.fraction)

    def fits(self, gpus: int, gpu_memory: int) -> bool:
        return self.needed(gpus) <= self.capacity(gpus, gpu_memory)

    def gpus_needed(self, gpu_memory: int) -> int:
        """Return a power of two, since tensor parallelism splits heads evenly; 1 if the GPU's memory is unknown."""
        gpus = 1
        while gpu_memory and gpus < MOST_GPUS and not self.fits(gpus, gpu_memory):
            gpus *= 2
        return gpus


def memory_of(model: BaseModel | None, container: Mapping[str, Json]) -> ModelMemory | None:
    """Return the memory of a model in an engine's container; None if its size is unknown."""
    if model is None or not model.size_bytes:
        return None
    # A script of a shell is one word with all flags in it.
    words = " ".join(str(word) for part in ("command", "args") for word in container.get(part) or ()).split()
    weights, quantization = model.size_bytes, _argument(words, "--quantization").lower()
    if quantization in BYTES_PER_PARAMETER and model.parameter_size:
        weights = min(weights, weights_size(model.parameter_size, quantization)[0])
    stated = _number(_argument(words, "--max-model-len", "--context-length"))
    tokens = stated or model.max_tokens or _config(model, "max_position_embeddings") or DEFAULT_CONTEXT
    per_token = _cached_numbers(model) * (1 if "fp8" in _argument(words, "--kv-cache-dtype") else 2)
    tensor = _number(_argument(words, *PARALLEL_FLAGS["tensorParallelSize"]))
    pipeline = _number(_argument(words, *PARALLEL_FLAGS["pipelineParallelSize"]))
    try:
        fraction = float(_argument(words, "--gpu-memory-utilization", "--mem-fraction-static") or FRACTION)
    except ValueError:
        fraction = FRACTION
    return ModelMemory(
        weights, per_token * tokens or int(weights * UNKNOWN_CACHE), tokens if per_token else 0,
        fraction if 0 < fraction <= 1 else FRACTION, tensor * max(pipeline, 1),
    )  # fmt: skip


def _cached_numbers(model: BaseModel) -> int:
    """Return how many numbers the KV cache has for a token, by the names of Hugging Face's config; 0 if unknown."""
    layers, latent = _config(model, "num_hidden_layers"), _config(model, "kv_lora_rank")
    if latent:  # multi-head latent attention
        return layers * (latent + _config(model, "qk_rope_head_dim"))
    return 2 * layers * _config(model, "num_key_value_heads") * _config(model, "head_dim")


def _config(model: BaseModel, name: str) -> int:
    value = model.configuration.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _argument(words: Sequence[str], *flags: str) -> str:
    """Return the value of the last of these flags, written as one word or as two; empty without one."""
    for group in reversed(argument_groups(words)):
        flag, joined, value = group[0].partition("=")
        if flag.replace("_", "-") in flags:
            return value if joined else group[-1] if len(group) > 1 else ""
    return ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
