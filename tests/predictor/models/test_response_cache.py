"""Answers kept for requests that repeat: for whom, for how long, and never the wrong one."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.eventually import eventually_async
from tests.predictor.in_process_server import House, play, write_times

from pilotlight_predictor.core.requests import InferRequest, OutputsWithParameters, RequestedOutput
from pilotlight_predictor.core.shared_memory import SharedMemory
from pilotlight_predictor.core.tensors import Tensor
from pilotlight_predictor.metrics.collector import collect
from pilotlight_predictor.metrics.exposition import expose
from pilotlight_predictor.models.response_cache import ResponseCache, cache_key
from pilotlight_predictor.protocols.v2.request_codec import decode_request

CACHED = "response_cache { enable: true }"
SIZE = {"response_cache_bytes": 1 << 20}


def tensor(*values: float) -> Tensor:
    return Tensor("FP32", np.array(values, dtype="f4"))


@pytest.mark.parametrize(
    ("config", "performance", "executions"), [(CACHED, SIZE, 1), (CACHED, {}, 3), ("", SIZE, 3)]
)  # fmt: skip
def test_both_server_and_model_must_ask_for_it(
    tmp_path: Path, config: str, performance: dict[str, int], executions: int
) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2, config)
        house = await House(tmp_path, performance=performance).start()
        assert [await house.ask("m", 5) for _ in range(3)] == [10, 10, 10]
        assert house.registry.find("m").stats.execution_count == executions

    play(scene())


def test_a_hit_counts_as_a_success_but_not_as_an_inference(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2, CACHED)
        house = await House(tmp_path, performance=SIZE).start()
        for value in (5, 5, 6, 5):
            await house.ask("m", value)
        stats = house.registry.find("m").stats.as_v2()
        assert (stats["inference_count"], stats["execution_count"]) == (2, 2)
        counts = {name: stats["inference_stats"][name]["count"] for name in ("success", "cache_hit", "cache_miss")}
        assert counts == {"success": 4, "cache_hit": 2, "cache_miss": 2}
        text = expose(collect(house.metrics)).decode()
        assert 'nv_cache_num_hits_per_model{model="m",version="1"} 2' in text
        assert 'nv_cache_num_misses_per_model{model="m",version="1"} 2' in text

    play(scene())


def test_what_lies_in_shared_memory_is_neither_kept_nor_answered_from_what_was(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(np.array([5], "<f4").tobytes())
    regions = SharedMemory(True, tmp_path)
    regions.register("r", "/object", 0, 4)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": place}]}).encode()

    async def scene() -> None:
        write_times(tmp_path / "models", "m", 2, CACHED)
        house = await House(tmp_path / "models", performance=SIZE).start()
        version = house.registry.find("m")
        answers: list[object] = []
        for _ in range(2):
            version.infer(decode_request("m", 1, body, None, regions.find), answers.append)
            await eventually_async(lambda: answers)
            answers.clear()
        assert version.stats.execution_count == 2
        assert [await house.ask("m", 5) for _ in range(2)] == [10, 10]
        assert version.stats.execution_count == 3

    play(scene())


def test_versions_and_reloads_never_answer_for_each_other(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2, CACHED + " version_policy { all {} }")
        write_times(tmp_path, "m", 3, version=2)
        house = await House(tmp_path, mode="poll", performance=SIZE).start()
        assert [await house.ask("m", 5, version) for version in (1, 2)] == [10, 15]
        write_times(tmp_path, "m", 7, version=2)
        await house.polled()
        assert [await house.ask("m", 5, version) for version in (1, 2)] == [10, 35]

    play(scene())


def test_what_was_longest_unused_makes_room() -> None:
    cache = ResponseCache(3 * 72)
    for key in (b"a", b"b", b"c"):
        cache.put(key, {"y": tensor(1, 2)})
    assert cache.get(b"a") is not None
    cache.put(b"d", {"y": tensor(3, 4)})
    assert cache.get(b"b") is None
    assert all(cache.get(key) is not None for key in (b"a", b"c", b"d"))
    assert cache.used <= cache.capacity
    cache.put(b"huge", {"y": tensor(*range(100))})
    assert cache.get(b"huge") is None
    assert cache.get(b"a") is not None


def test_a_kept_answer_cannot_be_changed_by_who_gets_it() -> None:
    cache, answer = ResponseCache(1 << 10), tensor(1, 2)
    cache.put(b"k", {"y": answer})
    answer.array[0] = 9
    kept = cache.get(b"k")
    assert kept is not None
    assert list(kept["y"].array) == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        kept["y"].array[0] = 9


def test_the_key_is_all_that_the_answer_depends_on() -> None:
    def key(loaded: int = 1, **fields: object) -> bytes:
        request = {"tensors": {"a": tensor(1), "b": tensor(2)}} | fields
        return cache_key(InferRequest("m", **request), loaded)  # type: ignore[arg-type]

    same = {"b": tensor(2), "a": tensor(1)}
    assert key() == key(tensors=same) == key(id="another")
    outputs = (RequestedOutput("y"), RequestedOutput("z"))
    assert key(outputs=outputs) == key(outputs=outputs[::-1])
    different = [
        key(2),
        key(tensors={"a": tensor(1), "b": tensor(3)}),
        key(tensors={"a": tensor(1), "c": tensor(2)}),
        key(tensors={"a": tensor(1), "b": Tensor("FP32", tensor(2).array.reshape(1, 1))}),
        key(tensors={"a": tensor(1), "b": Tensor("INT32", tensor(2).array)}),
        key(parameters={"temperature": 1}),
        key(outputs=(RequestedOutput("y"),)),
        key(outputs=(RequestedOutput("y"), RequestedOutput("z"))),
    ]
    assert len({key(), *different}) == 9


def test_what_a_model_says_beside_its_tensors_takes_room_too() -> None:
    cache = ResponseCache(10_000)
    cache.put(b"long", OutputsWithParameters({"y": tensor(1)}, {"said": "x" * 10_000}))
    assert (cache.get(b"long"), cache.used) == (None, 0)
    cache.put(b"short", OutputsWithParameters({"y": tensor(1)}, {"said": "x"}))
    kept = cache.get(b"short")
    assert isinstance(kept, OutputsWithParameters)
    assert kept.parameters == {"said": "x"}
