"""A request that cannot be begun fails alone, and one that a chat template chokes on is the client's to mend."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.predictor.backends.text.conftest import Heard

from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.backends.text.grammar import GrammarCompiler
from pilotlight_predictor.backends.text.prompt import PromptTokenizer
from pilotlight_predictor.errors import BadRequest


class Choking:
    """A tokenizer with a template, either of which may raise anything."""

    chat_template = "…"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        raise self._error

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        if text == "choke":
            raise self._error
        return {"input_ids": [1]}

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


@pytest.mark.parametrize("error", [IndexError("no"), AttributeError("no"), RecursionError("no")])
def test_whatever_a_template_raises_says_that_messages_do_not_fit(error: Exception) -> None:
    with pytest.raises(BadRequest, match="do not fit the chat template of model 'm': no"):
        PromptTokenizer(Choking(error), "m", 64).chat([{"role": "user", "content": "x"}])


def test_a_request_that_cannot_be_begun_leaves_the_others_of_its_batch_alone() -> None:
    begun: list[Any] = []
    engine: Any = SimpleNamespace(slots=4, submit=begun.append)
    model: Any = SimpleNamespace(context=100, eos_tokens=frozenset())
    tokens = PromptTokenizer(Choking(AttributeError("no")), "m", 64)
    instance = TextInstance("m", model, tokens, engine, GrammarCompiler(tokens, frozenset()), [0])
    batch = [Heard("one"), Heard("choke"), Heard("two")]
    instance.begin(batch)
    assert len(begun) == 2
    assert isinstance(batch[1].error, AttributeError)
