"""What a model needs of GPUs: weights at their precision, the KV cache of the served context, overhead."""

from typing import Any

import pytest
from tests.platform.catalogue.catalogue_cases import model

from pilotlight.catalogue.catalogue import builtin
from pilotlight.catalogue.model_memory import GIB, ModelMemory, memory_of

MODELS = {each.name: each for each in builtin().models}


def needs(name: str, *args: str) -> ModelMemory:
    memory = memory_of(MODELS[name], {"args": list(args)})
    assert memory is not None
    return memory


@pytest.mark.parametrize(("size", "gpus"), [(10, 1), (60, 1), (75, 2), (140, 4), (250, 4), (690, 16)])
def test_a_model_is_spread_over_a_power_of_two_of_gpus(size: int, gpus: int) -> None:
    memory = memory_of(model(size_bytes=size * 10**9), {})
    assert memory is not None
    assert memory.gpus_needed(80 * GIB) == gpus


def test_a_model_or_a_gpu_of_unknown_size_needs_one() -> None:
    assert memory_of(model(size_bytes=0), {}) is None
    assert memory_of(None, {}) is None
    assert needs("deepseek-r1").gpus_needed(0) == 1
    assert needs("deepseek-r1").gpus_needed(1) > 0, "a GPU that holds not even the overhead"


def test_the_kv_cache_is_that_of_the_served_context() -> None:
    layers, heads, dimension = 80, 8, 128
    per_token = 2 * layers * heads * dimension * 2
    assert needs("llama-3-70b-instruct").kv_cache == per_token * 8192
    assert needs("llama-3-1-70b-instruct").kv_cache == per_token * 131072
    assert needs("llama-3-1-70b-instruct", "--max-model-len=4096").kv_cache == per_token * 4096
    assert needs("llama-3-1-70b-instruct", "--context-length", "4096").kv_cache == per_token * 4096
    assert needs("llama-3-70b-instruct", "--kv-cache-dtype=fp8_e5m2").kv_cache == per_token * 8192 // 2
    assert needs("deepseek-r1").kv_cache == 61 * (512 + 64) * 2 * 163840, "latent attention"
    guess = memory_of(model(size_bytes=100 * GIB), {})
    assert guess is not None
    assert (guess.kv_cache, guess.tokens) == (10 * GIB, 0)


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--quantization=fp8"], "weights", 70_600_000_000),
        (["--quantization", "awq"], "weights", 35_300_000_000),
        (["--quantization=of_our_own"], "weights", 141_200_000_000),
        (["--gpu-memory-utilization=0.95"], "fraction", 0.95),
        (["--mem-fraction-static", "0.8"], "fraction", 0.8),
        (["--gpu-memory-utilization=much"], "fraction", 0.9),
        (["--tensor-parallel-size=2"], "shards", 2),
        (["--tp", "4", "--pp-size=2"], "shards", 8),
        (["--tp-size=$(PARALLELISM_SIZE)"], "shards", 0),
        (["exec vllm serve m --tensor_parallel_size 2 --port 80"], "shards", 2),
    ],
)
def test_arguments_of_the_engine_are_honoured(args: list[str], field: str, value: Any) -> None:
    assert getattr(needs("llama-3-70b-instruct", *args), field) == value


def test_every_generative_model_of_the_catalogue_says_its_cache() -> None:
    generative = [name for name, each in MODELS.items() if each.architecture.endswith("ForCausalLM")]
    assert len(generative) > 15
    assert not [name for name in generative if not needs(name).tokens]
