"""Many requests at once must each get what they would have got alone, and leave no trace when they go."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.eventually import eventually
from tests.predictor.backends.text.conftest import Heard, text_instance
from tests.predictor.backends.text.tiny import greedy_text, text_model

from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.backends.text.engine import MAX_GATHER_S, Prefill, TextEngine
from pilotlight_predictor.backends.text.model import GROUPED

WORDS = ("The quick", "A pilot light", "The server sleeps when", "One two", "Grüße", "forest", "and", "three four five")


def prompts(count: int) -> list[str]:
    pick = random.Random(3)
    return [" ".join(pick.choices(WORDS, k=pick.randint(1, 6))) for _ in range(count)]


def all_heard(instance: TextInstance, asked: list[Heard]) -> list[Heard]:
    for heard in asked:
        instance.begin([heard])
    return [heard.wait() for heard in asked]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "mistral"])
def test_requests_that_run_together_get_what_each_gets_alone(family: str, text_models: Path) -> None:
    folder = text_model(text_models, family, steps=40)
    instance = text_instance(folder, MAX_SEQUENCES="7")
    asked = [Heard(text, temperature=0, max_tokens=5 + 3 * (n % 9)) for n, text in enumerate(prompts(24))]
    try:
        all_heard(instance, asked)
        eventually(lambda: instance.engine._free == instance.engine.slots)
    finally:
        instance.close()
    for heard in asked:
        text = heard.request.inputs["text_input"].array[0].decode()
        assert heard.text() == greedy_text(folder, text, heard.request.parameters["max_tokens"]), text


def test_models_with_a_sliding_window_step_their_rows_one_by_one(text_models: Path) -> None:
    folder = text_model(text_models, "mistral", steps=40)
    instance = text_instance(folder)
    assert not instance._model.batchable
    instance.close()


def test_a_prompt_longer_than_one_piece_of_prefill_is_read_to_its_end(
    instance: TextInstance, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotlight_predictor.backends.text.engine.PREFILL_TOKENS", 3)
    asked = [Heard(text, temperature=0, max_tokens=12) for text in prompts(6)]
    for heard, text in zip(all_heard(instance, asked), prompts(6), strict=True):
        assert heard.text() == greedy_text(tiny, text, 12)


def test_prompts_read_in_one_pass_have_the_scores_and_the_cache_of_each_alone(instance: TextInstance) -> None:
    model, together = instance._model, [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14, 15, 16]]
    with torch.inference_mode():
        scores, caches = model.prefill_together(together)
        for row, prompt in enumerate(together):
            cache = model.new_cache()
            torch.testing.assert_close(scores[row : row + 1], model.forward([prompt], [0], cache, None))
            assert caches[row].get_seq_length() == len(prompt)
            torch.testing.assert_close(caches[row].layers[-1].values, cache.layers[-1].values)


@pytest.mark.parametrize(
    ("lengths", "budget", "count"), [([10, 12, 9], 64, 3), ([10, 12, 30], 64, 2), ([20, 20, 20], 50, 2), ([90], 50, 0)]
)
def test_prompts_of_similar_length_are_read_together_within_the_budget(
    instance: TextInstance, lengths: list[int], budget: int, count: int
) -> None:
    tasks: list[Any] = [SimpleNamespace(prompt=[1] * length) for length in lengths]
    engine = TextEngine(instance._model, 8)
    engine._prefills.extend(Prefill(task, None) for task in tasks)
    assert len(engine._similar_prefills(budget)) == count


def test_masked_steps_on_a_cpu_have_the_results_of_transformers_own_attention(instance: TextInstance) -> None:
    from transformers import AttentionInterface

    assert instance._model._module.config._attn_implementation == GROUPED
    module: Any = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    query, (key, value) = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 2, 5, 8)
    for mask in (None, torch.tensor([[True] * 5, [False, False, True, True, True]])[:, None, None]):
        ours, own = (
            AttentionInterface()[name](module, query, key, value, mask, scaling=0.4, dropout=0.0, softcap=None)[0]
            for name in (GROUPED, "sdpa")
        )
        torch.testing.assert_close(ours, own)


def test_an_idle_engine_waits_for_a_request_that_comes_with_the_first(tiny: Path) -> None:
    """Rows that begin together take as many steps as one of them. How long it waits follows from the last prefill."""
    instance = text_instance(tiny, MAX_SEQUENCES="2")
    first, second = (Heard(text, temperature=0, max_tokens=9, ignore_eos=True) for text in ("The quick", "One two"))
    try:
        all_heard(instance, [Heard("One", max_tokens=1)])
        # The engine sets it after it has sent the response.
        assert eventually(lambda: instance.engine._gather_s) <= MAX_GATHER_S
        before, instance.engine._gather_s = instance.engine.steps, 60.0  # until all slots are in use
        instance.begin([first])
        assert not first.first.wait(0.3)
        all_heard(instance, [second])
        first.wait()
        assert instance.engine.steps - before == 8
    finally:
        instance.close()


def test_a_stream_tells_the_same_text_in_parts(ask: Callable[..., Heard]) -> None:
    whole = ask("Grüße aus", temperature=0, max_tokens=40)
    parts = ask("Grüße aus", temperature=0, max_tokens=40, stream=True)
    assert parts.text() == whole.text()
    assert "東京 🙂" in parts.text()
    assert len(parts.answers) > 10
    assert parts.value("finish_reason") == b"stop"
    assert parts.value("num_output_tokens") == whole.value("num_output_tokens")


def test_who_leaves_frees_the_slot_within_a_step(instance: TextInstance) -> None:
    gone = Heard("One two", temperature=0, max_tokens=100, ignore_eos=True, stream=True)
    gone.on_send = lambda heard: setattr(heard, "cancelled", True)
    instance.begin([gone])
    gone.wait()
    assert len(gone.answers) <= 2  # the prompt's own token, and the one of the step that was under way
    eventually(lambda: instance.engine._free == instance.engine.slots)


def test_a_client_that_reads_slowly_holds_nobody_up_and_loses_nothing(
    instance: TextInstance, ask: Callable[..., Heard]
) -> None:
    slow = Heard("The quick", temperature=0, max_tokens=30, stream=True)
    slow.full = True
    instance.begin([slow])
    quick = ask("The quick", temperature=0, max_tokens=30)
    assert not slow.answers
    slow.full = False
    assert slow.wait().text() == quick.text()


def test_more_requests_than_slots_wait_outside(tiny: Path) -> None:
    instance = text_instance(tiny, MAX_SEQUENCES="2")
    most = 0

    def count(_: Heard) -> None:
        nonlocal most
        most = max(most, len(instance.engine._rows))

    asked = [Heard(text, temperature=0, max_tokens=9, stream=True) for text in prompts(8)]
    for heard in asked:
        heard.on_send = count
    all_heard(instance, asked)
    instance.close()
    assert most <= 2


def test_a_model_that_fails_ends_those_it_worked_on_and_serves_the_next(
    instance: TextInstance, ask: Callable[..., Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(instance._model, "forward", lambda *_: 1 / 0)
        failed = ask("The quick", temperature=0)
    assert "see the server's log" in str(failed.error)
    eventually(lambda: instance.engine._free == instance.engine.slots)
    assert ask("The quick", temperature=0).text()
