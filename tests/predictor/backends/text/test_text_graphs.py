"""Prompts by CUDA graphs: stand-ins compute at each replay what a graph would, padded, into memory that stays."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from tests.eventually import eventually
from tests.predictor.backends.text.conftest import Heard, text_instance
from tests.predictor.backends.text.lora import merged, write_adapter
from tests.predictor.backends.text.test_lora import assert_as_merged, mixed
from tests.predictor.backends.text.test_text_engine import all_heard

from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.backends.text.model import PrefillGraphs, TextModel, padded_size, prefill_outputs
from pilotlight_predictor.backends.torch.cuda_graphs import CapturedGraph, GraphPlan


@pytest.mark.parametrize(("length", "size"), [(1, 32), (32, 32), (33, 64), (512, 512), (513, 0)])
def test_a_prompt_runs_as_the_next_larger_size(length: int, size: int) -> None:
    assert padded_size(length) == size


def test_prompts_are_captured_only_where_that_is_asked_for(tiny: Path) -> None:
    instance = text_instance(tiny)
    module = instance._model._module
    try:
        assert TextModel(module, torch.device("cuda", 0), 64)._prefill_graphs is None
        assert TextModel(module, torch.device("cuda", 0), 64, graphs=True)._prefill_graphs is not None
    finally:
        instance.close()


class NoStream:
    def wait_stream(self, other: object) -> None:
        return None


@pytest.fixture
def graphs(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextInstance, PrefillGraphs]]:
    instance = text_instance(tiny)
    model = instance._model
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: NoStream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: NoStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.inference_mode())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))

    def compute(values: Any) -> Any:
        return prefill_outputs(model._module, model.lora, model.new_cache, values)

    made = model._prefill_graphs = PrefillGraphs(compute, model.layers, model.device, standing_in)
    yield instance, made
    instance.close()


def standing_in(
    plan: GraphPlan, inputs: Any, compute: Callable[[Any], Any], stream: object, pool: object
) -> CapturedGraph:
    outputs = compute(inputs)

    def replay() -> None:
        for name, value in compute(inputs).items():
            outputs[name].copy_(value)

    return CapturedGraph(plan, inputs, outputs, replay)


def asked(instance: TextInstance, text: str) -> Heard:
    heard = Heard(text, max_tokens=12, temperature=0, ignore_eos=True)
    instance.begin([heard])
    return heard.wait()


def captured_after(instance: TextInstance, prompts: PrefillGraphs, text: str) -> None:
    asked(instance, text)
    deadline = monotonic() + 60
    while not prompts.graphs:
        assert monotonic() < deadline, "it is never captured"
        sleep(0.01)


def test_a_size_that_was_asked_for_is_captured_and_answers_as_before(
    graphs: tuple[TextInstance, PrefillGraphs], ask: Callable[..., Heard]
) -> None:
    instance, prompts = graphs
    texts = ["the server sleeps", "nobody asks and", "wakes before an asker leaves the server"]
    plain = [ask(text, max_tokens=12, temperature=0, ignore_eos=True).text() for text in texts]
    captured_after(instance, prompts, texts[0])
    assert [asked(instance, text).text() for text in texts] == plain
    assert list(prompts.graphs) == [(32, False)]


def test_prompts_of_a_graph_do_not_meet_in_its_memory(
    graphs: tuple[TextInstance, PrefillGraphs], ask: Callable[..., Heard]
) -> None:
    instance, prompts = graphs
    texts = [f"the server {'sleeps ' * count}" for count in range(1, 7)]
    captured_after(instance, prompts, texts[0])
    together = [Heard(text, max_tokens=12, temperature=0, ignore_eos=True) for text in texts]
    instance.begin(together)
    plain = [ask(text, max_tokens=12, temperature=0, ignore_eos=True).text() for text in texts]
    assert [heard.wait().text() for heard in together] == plain


def test_prompts_of_adapters_have_graphs_of_their_own(
    graphs: tuple[TextInstance, PrefillGraphs], tiny: Path, tmp_path: Path
) -> None:
    instance, prompts = graphs
    made: dict[str, tuple[Path, Path]] = {}
    for seed, name in enumerate(("first", "second")):
        adapter = write_adapter(tmp_path / name, tiny, seed, r=8)
        made[name] = adapter, merged(tmp_path / f"{name}-merged", tiny, adapter)
        instance.adapters.load(name, str(adapter))
    for count in (1, 2):
        assert_as_merged([heard for each in mixed(list(made), 12) for heard in all_heard(instance, [each])], tiny, made)
        assert eventually(lambda: {(32, True), (32, False)} <= prompts.graphs.keys()), count


def test_a_model_that_cannot_be_captured_says_so_once_and_answers(
    graphs: tuple[TextInstance, PrefillGraphs], caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: object) -> CapturedGraph:
        raise RuntimeError("operation not permitted when stream is capturing")

    instance, prompts = graphs
    prompts._capture_one = refuses
    with caplog.at_level(logging.WARNING):
        texts = [asked(instance, "the server sleeps").text() for _ in range(3)]
        instance.engine.close()  # after what it does when it is idle
    assert len(set(texts)) == 1
    assert not prompts.graphs
    assert [record.getMessage() for record in caplog.records] == [
        "prompts are read without CUDA graphs: the model cannot be captured "
        "(operation not permitted when stream is capturing)"
    ]
