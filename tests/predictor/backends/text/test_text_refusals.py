"""A request that cannot be begun fails alone, and one that a chat template chokes on is the client's to mend."""

import copy
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.eventually import eventually
from tests.predictor.backends.text.conftest import Heard, text_instance
from tests.predictor.backends.text.tiny import tokenizer

from pilotlight_predictor.backends.text import template_limits
from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.backends.text.grammar import GrammarCompiler
from pilotlight_predictor.backends.text.prompt import PromptTokenizer
from pilotlight_predictor.errors import BadRequest, LoadFailed


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


BAD_TEMPLATES = {
    "endless": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "longer than 0.2 s"),
    "doubling": (
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "than 64 MiB",
    ),
    "power": ("{{ 9 ** 9 ** 9 }}", "it has a power"),
    "power in a generation": ("{% generation %}{{ 9 ** messages | length }}{%- endgeneration -%}", "it has a power"),
    "nested": ("{% if 1 %}" * 999 + "{% endif %}" * 999, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_a_template_without_bounds_is_ended_and_leaves_no_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template, problem = BAD_TEMPLATES[name]
    monkeypatch.setattr(template_limits, "RENDER_S", 0.2 if name == "endless" else 30.0)
    monkeypatch.setattr(template_limits, "MAX_GROWTH", 64 << 20)
    monkeypatch.setattr(template_limits, "CHECK_S", 0.001)
    hostile = copy.deepcopy(tokenizer())
    hostile.chat_template = template
    with pytest.raises(BadRequest, match=f"chat template of model 'm'.*{problem}"):
        PromptTokenizer(hostile, "m", 64).chat([{"role": "user", "content": "x"}])
    eventually(lambda: "pilotlight-template" not in {thread.name for thread in threading.enumerate()})


def test_a_request_that_cannot_be_begun_leaves_the_others_of_its_batch_alone() -> None:
    begun: list[Any] = []
    engine: Any = SimpleNamespace(slots=4, submit=begun.append)
    model: Any = SimpleNamespace(context=100, eos_tokens=frozenset())
    tokens = PromptTokenizer(Choking(AttributeError("no")), "m", 64)
    adapters: Any = None
    instance = TextInstance("m", model, tokens, engine, GrammarCompiler(tokens, frozenset()), adapters, [0])
    batch = [Heard("one"), Heard("choke"), Heard("two")]
    instance.begin(batch)
    assert len(begun) == 2
    assert isinstance(batch[1].error, AttributeError)


def test_weights_in_a_pickle_are_refused_with_what_converts_them(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "tiny")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    convert = r"AutoModelForCausalLM\.from_pretrained\(FOLDER\)\.save_pretrained\(FOLDER\)$"
    with pytest.raises(LoadFailed, match=rf"^pytorch_model\.bin is a pickle, .* by transformers\.{convert}"):
        text_instance(folder)
