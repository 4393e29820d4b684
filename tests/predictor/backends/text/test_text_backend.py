"""What the text backend makes of a request: sampling, stops, limits, and who is told what."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.predictor.backends.text.conftest import Heard, text_instance
from tests.predictor.backends.text.tiny import CONTEXT, text_model

from pilotlight_predictor.backends.text.sampler import Sampler
from pilotlight_predictor.core.generation_params import read_sampling
from pilotlight_predictor.errors import BadRequest

Ask = Callable[..., Heard]


def test_a_seed_gives_the_same_text_whoever_else_asks(ask: Ask) -> None:
    alone = ask("One", temperature=1.5, seed=11, max_tokens=30)
    assert ask("One", temperature=1.5, seed=11, max_tokens=30).text() == alone.text()
    assert ask("One", temperature=1.5, seed=12, max_tokens=30).text() != alone.text()


def test_choices_of_one_request_differ_and_the_first_is_that_of_the_seed(ask: Ask) -> None:
    three = ask("One", temperature=1.8, seed=11, max_tokens=30, n=3)
    texts = [three.text(index) for index in range(3)]
    assert texts[0] == ask("One", temperature=1.8, seed=11, max_tokens=30).text()
    assert len(set(texts)) == 3


@pytest.mark.parametrize("temperature", [5e-324, 2.5e-261, 1e-45, 1e-7])
def test_the_coldest_text_is_the_most_likely_one(ask: Ask, temperature: float) -> None:
    assert ask("One", temperature=temperature, max_tokens=8).text() == ask("One", temperature=0, max_tokens=8).text()


def test_a_stop_string_ends_the_text_before_it_and_is_never_told(ask: Ask) -> None:
    whole = ask("The quick", temperature=0, max_tokens=40).text()
    assert "jumps over" in whole
    for stop in ("jumps over", "mps ov", " fox", "z"):  # also across the borders of tokens
        for stream in (False, True):
            heard = ask("The quick", temperature=0, max_tokens=40, stop=["never seen", stop], stream=stream)
            assert heard.text() == whole[: whole.index(stop)]
            assert heard.value("finish_reason") == b"stop"


def test_what_only_began_like_a_stop_string_is_told_in_the_end(ask: Ask) -> None:
    whole = ask("The quick", temperature=0, max_tokens=40)
    heard = ask("The quick", temperature=0, max_tokens=40, stop=["dog and walks", "forest.x"], stream=True)
    assert heard.text() == whole.text()


def test_max_tokens_ends_with_length_and_an_end_token_with_stop(ask: Ask) -> None:
    short = ask("The quick", temperature=0, max_tokens=3)
    assert (short.value("finish_reason"), short.value("num_output_tokens")) == (b"length", 3)
    assert ask("The quick", temperature=0, max_tokens=60).value("finish_reason") == b"stop"


def test_logprobs_are_those_of_the_model(ask: Ask) -> None:
    heard = ask("The quick", temperature=0, max_tokens=4, logprobs=3)
    entries = json.loads(heard.value("logprobs"))
    assert "".join(entry["token"] for entry in entries) == heard.text()
    for entry in entries:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3


def test_a_bias_changes_what_is_said(ask: Ask) -> None:
    assert ask("One two", temperature=0, max_tokens=1, logit_bias={"1": 100}).value("finish_reason") == b"stop"


@pytest.mark.parametrize(("penalty", "second"), [("presence_penalty", 2), ("frequency_penalty", 2)])
def test_penalties_make_what_was_said_less_likely(penalty: str, second: int) -> None:
    import torch

    draw = Sampler(read_sampling({"temperature": 0, penalty: 1.0}), 0)
    scores = torch.tensor([0.0, 3.0, 2.5])
    assert [draw.choose(scores).token for _ in range(2)] == [1, second]


def test_a_frequency_penalty_grows_with_each_time_and_a_presence_penalty_does_not() -> None:
    import torch

    scores = torch.tensor([0.0, 5.0, 2.5])
    frequent = Sampler(read_sampling({"temperature": 0, "frequency_penalty": 2.0}), 0)
    present = Sampler(read_sampling({"temperature": 0, "presence_penalty": 2.0}), 0)
    assert [frequent.choose(scores).token for _ in range(3)] == [1, 1, 2]
    assert [present.choose(scores).token for _ in range(3)] == [1, 1, 1]


def test_a_small_top_p_or_top_k_is_greedy(ask: Ask) -> None:
    greedy = ask("A pilot", temperature=0, max_tokens=20).text()
    assert ask("A pilot", temperature=2, top_p=1e-6, seed=5, max_tokens=20).text() == greedy
    assert ask("A pilot", temperature=2, top_k=1, seed=5, max_tokens=20).text() == greedy


def test_a_chat_is_rendered_by_the_models_own_template(ask: Ask) -> None:
    heard = ask(None, messages=json.dumps([{"role": "user", "content": "hello"}]).encode(), temperature=0)
    assert heard.text() == "Hello! How can I help you today?"
    parts = [{"type": "text", "text": "hello"}]
    heard = ask(None, messages=json.dumps([{"role": "user", "content": parts}]).encode(), temperature=0)
    assert heard.text() == "Hello! How can I help you today?"


def test_the_prompt_is_repeated_as_tritons_vllm_backend_does(ask: Ask) -> None:
    heard = ask("The quick", temperature=0, max_tokens=4, exclude_input_in_output=False)
    assert heard.text().startswith("The quick")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"temperature": 3}, "temperature = 3, must be a number from 0 to 2"),
        ({"top_p": 0}, "top_p = 0, must be a number above 0, at most 1"),
        ({"stop": ["a", ""]}, "stop = [\"a\",\"\"], must be a string or a list"),
        ({"n": 99}, "n = 99, must be at most 32"),
        ({"max_tokens": 500}, f"max_tokens = 500, must be at most {CONTEXT - 3}"),
        ({"beams": 4}, "beams is unknown, must be one of max_tokens"),
        ({"seed": 1.5}, "seed = 1.5, must be a whole number"),
        ({"logit_bias": False}, "logit_bias = false, must be an object of at most 1024 token numbers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_its_field(ask: Ask, how: dict[str, object], told: str) -> None:
    error = ask("The quick", **how).error
    assert isinstance(error, BadRequest)
    assert told in str(error)


def test_a_prompt_far_beyond_the_context_is_not_tokenised(ask: Ask) -> None:
    assert f"must have at most 64 for each of the {CONTEXT} tokens" in str(ask("a" * (64 * CONTEXT + 1)).error)


def test_a_prompt_beyond_the_context_is_refused(ask: Ask) -> None:
    assert f"must have fewer than the {CONTEXT} of model 'tiny'" in str(ask("One two " * CONTEXT).error)


def test_messages_that_a_template_refuses_are_the_clients(ask: Ask) -> None:
    heard = ask(None, messages=json.dumps([{"role": "wizard", "content": "x"}]).encode())
    assert "role must be system, user or assistant" in str(heard.error)


def test_a_model_without_a_chat_template_says_what_to_do(text_models: Path) -> None:
    instance = text_instance(text_model(text_models, steps=1, chats=False))
    heard = Heard(None, messages=b'[{"role": "user", "content": "hello"}]')
    instance.begin([heard])
    assert "add a chat_template.jinja beside its tokenizer.json" in str(heard.wait().error)
    instance.close()
