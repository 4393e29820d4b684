"""Steps by CUDA graphs: stand-ins compute at each replay what a graph would, for rows and columns that stay."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from tests.predictor.backends.text.conftest import Heard, text_instance
from tests.predictor.backends.text.lora import merged, write_adapter
from tests.predictor.backends.text.test_lora import assert_as_merged, mixed
from tests.predictor.backends.text.test_text_engine import all_heard, prompts
from tests.predictor.backends.text.test_text_graphs import NoStream, standing_in
from tests.predictor.backends.text.tiny import greedy_text

from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.backends.text.kv_cache import BatchKVCache
from pilotlight_predictor.backends.text.step_graphs import StepGraphs

Capture = Callable[..., Any]


class Pools:
    """Memory pools as torch has them: a pool ends with its last graph, and takes no capture afterwards."""

    def __init__(self) -> None:
        self._graphs: dict[object, WeakSet[Any]] = {}

    def handle(self) -> tuple[int, int]:
        return 0, len(self._graphs) + 1

    def capture(self, plan: Any, inputs: Any, compute: Any, stream: object, pool: object) -> Any:
        if pool in self._graphs and not self._graphs[pool]:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        graph = standing_in(plan, inputs, compute, stream, pool)
        self._graphs.setdefault(pool, WeakSet()).add(graph.replay)
        return graph


@pytest.fixture
def stepping(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[TextInstance, StepGraphs]]]:
    instance = text_instance(tiny, MAX_SEQUENCES="7")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: NoStream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: NoStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.inference_mode())
    pools = Pools()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", pools.handle)
    engine, model = instance.engine, instance._model

    def with_graphs(columns: int, capture: Capture = pools.capture) -> tuple[TextInstance, StepGraphs]:
        engine._batch = BatchKVCache(model.layers, (engine.slots, columns))
        engine._step_graphs = StepGraphs(model._module, model.lora, engine._batch, model.device, capture)
        return instance, engine._step_graphs

    yield with_graphs
    instance.close()


@pytest.mark.parametrize("columns", [16, 128])  # replaced as rows grow; moved within, as the batch goes on
def test_every_request_gets_what_it_gets_alone(stepping: Any, tiny: Path, columns: int) -> None:
    instance, graphs = stepping(columns)
    asked = [Heard(text, temperature=0, max_tokens=5 + 3 * (n % 9)) for n, text in enumerate(prompts(24))]
    for heard, text in zip(all_heard(instance, asked), prompts(24), strict=True):
        assert heard.text() == greedy_text(tiny, text, heard.request.parameters["max_tokens"]), text
    assert graphs.graphs


def test_graphs_of_adapted_rows_are_captured_again_when_their_tensors_are_replaced(
    stepping: Any, tiny: Path, tmp_path: Path
) -> None:
    """An adapter beside others uses columns that graphs read already, until there are none left."""
    instance, graphs = stepping(128)
    made: dict[str, tuple[Path, Path]] = {}
    for seed, (name, rank, stay) in enumerate((("first", 8, True), ("beside", 8, True), ("more", 4, False))):
        earlier = {key: graph for key, graph in graphs.graphs.items() if key[2]}
        adapter = write_adapter(tmp_path / name, tiny, seed, r=rank)
        made[name] = adapter, merged(tmp_path / f"{name}-merged", tiny, adapter)
        instance.adapters.load(name, str(adapter))
        assert_as_merged(all_heard(instance, mixed([name], 12)), tiny, made)
        assert {graphs.graphs.get(key) is graph for key, graph in earlier.items()} <= {stay}
        assert any(key[2] for key in graphs.graphs)


def test_a_model_that_cannot_be_captured_steps_without_graphs(stepping: Any, tiny: Path) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    instance, graphs = stepping(64, refuse)
    (heard,) = all_heard(instance, [Heard("The quick", temperature=0, max_tokens=12)])
    assert heard.text() == greedy_text(tiny, "The quick", 12)
    assert not graphs.graphs
