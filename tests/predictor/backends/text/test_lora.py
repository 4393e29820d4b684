"""Rows of different adapters and of the base model in one batch, beside models with the same adapter merged by hand."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.eventually import eventually
from tests.predictor.backends.text.conftest import Heard, text_instance
from tests.predictor.backends.text.lora import ALL, ATTENTION, merged, write_adapter
from tests.predictor.backends.text.test_text_engine import all_heard, prompts
from tests.predictor.backends.text.tiny import greedy_text, text_model

from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.errors import BadRequest, LoadFailed, NotFound

GPT2 = ("c_attn", "c_proj", "c_fc")
KINDS: dict[str, Any] = {
    "attention": {"targets": ATTENTION, "r": 16},
    "all": {"targets": ALL, "r": 8, "target_modules": "all-linear"},
    "rslora": {"targets": ALL, "r": 3, "use_rslora": True},
    "patterns": {
        "targets": ALL,
        "r": 2,
        "ranks": {"q_proj": 5, "c_fc": 5},
        "alpha_pattern": {"v_proj": 30, "c_attn": 9},
    },
}


def adapters_of(family: str, base: Path, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Adapters and merged models by name."""
    made = {}
    for seed, (name, kind) in enumerate(KINDS.items()):
        targets = {"targets": GPT2} if family == "gpt2" else {}
        adapter = write_adapter(folder / name, base, seed, **{**kind, **targets})
        made[name] = adapter, merged(folder / f"{base.name}-{name}", base, adapter)
    return made


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return adapters_of("llama", tiny, tmp_path_factory.mktemp("adapters"))


@pytest.fixture
def adapted(tiny: Path, made: dict[str, tuple[Path, Path]]) -> Iterator[TextInstance]:
    instance = text_instance(tiny, MAX_SEQUENCES="7")
    for name, (adapter, _) in made.items():
        instance.adapters.load(name, str(adapter))
    yield instance
    instance.close()


def mixed(names: list[str], count: int = 20) -> list[Heard]:
    """Requests to adapters and the base in turn, of different lengths."""
    asked = []
    for number, text in enumerate(prompts(count)):
        name = ["", *names][number % (len(names) + 1)]
        asked.append(Heard(text, temperature=0, max_tokens=5 + number, **({"lora_name": name} if name else {})))
    return asked


def assert_as_merged(asked: list[Heard], base: Path, made: dict[str, tuple[Path, Path]]) -> None:
    changed = 0
    for heard in asked:
        text, count = heard.request.inputs["text_input"].array[0].decode(), heard.request.parameters["max_tokens"]
        name = heard.request.parameters.get("lora_name")
        assert heard.text() == greedy_text(made[name][1] if name else base, text, count), (name, text)
        changed += heard.text() != greedy_text(base, text, count)
    assert changed > sum("lora_name" in heard.request.parameters for heard in asked) // 2


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_rows_of_adapters_and_of_the_base_get_what_merged_models_give(
    family: str, text_models: Path, tmp_path: Path
) -> None:
    base = text_model(text_models, family, steps=40)
    made, instance = adapters_of(family, base, tmp_path), text_instance(base, MAX_SEQUENCES="7")
    try:
        for name, (adapter, _) in made.items():
            instance.adapters.load(name, str(adapter))
        assert_as_merged(all_heard(instance, mixed(list(made))), base, made)
    finally:
        instance.close()


def test_a_row_has_the_scores_of_its_merged_model_whatever_is_beside_it(
    adapted: TextInstance, made: dict[str, tuple[Path, Path]]
) -> None:
    from transformers import AutoModelForCausalLM

    model, prompt = adapted._model, [5, 6, 7, 40, 41, 9]
    identities = [adapted.adapters.acquire(name) for name in made]
    expected = []
    with torch.inference_mode():
        alone = [model.forward([prompt], [0], model.new_cache(), None, [each]) for each in (*identities, 0)]
        together = model.forward([prompt] * 5, [0] * 5, model.new_cache(), None, [*identities, 0])
        for _, folder in made.values():
            expected.append(AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([prompt])).logits[:, -1])
        base = model.forward([prompt], [0], model.new_cache(), None)
    torch.testing.assert_close(together, torch.cat(alone))
    torch.testing.assert_close(together, torch.cat([*expected, base]), atol=1e-4, rtol=1e-4)


def test_a_replaced_or_unloaded_adapter_finishes_its_requests_and_frees_its_weights(
    adapted: TextInstance, tiny: Path, made: dict[str, tuple[Path, Path]]
) -> None:
    table, layers = adapted.adapters, adapted._model.lora

    def running() -> Heard:
        heard = Heard("The server sleeps", temperature=0, max_tokens=60, ignore_eos=True, stream=True, lora_name="all")
        adapted.begin([heard])
        assert heard.first.wait(60)
        return heard

    with pytest.raises(BadRequest, match=r"'all' is already loaded: unload it first, or set load_inplace to true"):
        table.load("all", str(made["rslora"][0]))
    first = running()
    table.load("all", str(made["rslora"][0]), replace=True)
    second = running()
    table.unload("all")
    with pytest.raises(NotFound, match="adapter 'all' of model 'tiny' is not loaded"):
        table.unload("all")
    (after,) = all_heard(adapted, [Heard("One", max_tokens=3, lora_name="all")])
    assert isinstance(after.error, NotFound)
    assert "GET /v1/models lists them" in str(after.error)
    for heard, name in ((first, "all"), (second, "rslora")):
        alone = Heard("The server sleeps", temperature=0, max_tokens=60, ignore_eos=True)
        other = text_instance(made[name][1])
        all_heard(other, [alone])
        other.close()
        assert heard.wait().text() == alone.text()
    assert eventually(lambda: len(table._entries) == 3)
    for name in table.paths:
        table.unload(name)
    assert not layers._layers
    assert not layers._owners
    (plain,) = all_heard(adapted, [Heard("The quick", temperature=0, max_tokens=12)])
    assert plain.text() == greedy_text(tiny, "The quick", 12)


def edited(folder: Path, source: Path, **fields: Any) -> Path:
    shutil.copytree(source, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **fields}))
    return folder


def other_weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return edit


def as_pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


LAYER = "base_model.model.model.layers.0.self_attn"
MERGE = r"merge the adapter into its base model \(peft's merge_and_unload\)"
REFUSED: list[tuple[dict[str, Any], Callable[[Path], Any] | None, str]] = [
    ({"use_dora": True}, None, rf"use_dora = true .* is not supported; train without it, or {MERGE}"),
    ({"modules_to_save": ["lm_head"]}, None, r'modules_to_save = \["lm_head"\]'),
    ({"bias": "lora_only"}, None, 'bias = "lora_only"'),
    ({"init_lora_weights": "pissa"}, None, 'init_lora_weights = "pissa"'),
    ({"peft_type": "IA3"}, None, 'peft_type = "IA3" .*, must be LORA'),
    ({"r": "four"}, None, r"Expected `int`, got `str` - at `\$.r`"),
    ({"r": 3}, None, r"'model.layers.0.\w+.\w+' has lora_A of shape \[16, 64\], the base needs \[3, 64\]"),
    ({"alpha_pattern": {"(a+)+$": 3}}, None, "alpha_pattern has .* must have names of modules"),
    ({"target_modules": [*ATTENTION, "wqkv"]}, None, "'wqkv', for which there is no module of the base model"),
    ({"target_modules": [*ATTENTION, "up_proj"]}, None, "'up_proj', for which there is no weights"),
    ({"target_modules": ["q_proj"]}, None, "_proj', which target_modules does not name"),
    ({}, as_pickle, "adapter_model.bin is a pickle, which can run code; save the adapter as adapter_model.safetensors"),
    ({}, lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json cannot be read"),
    ({}, lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"{}"), "cannot be read: .*; copy it again"),
    ({}, other_weights(lambda t: t.pop(f"{LAYER}.q_proj.lora_B.weight")), "'.*q_proj' without lora_B"),
    (
        {},
        other_weights(lambda t: t[f"{LAYER}.q_proj.lora_A.weight"].fill_(float("nan"))),
        "has values that are not finite",
    ),
    ({}, other_weights(lambda t: t.update({f"{LAYER}.q_proj.lora_magnitude_vector": torch.ones(3)})), "no LoRA weight"),
    (
        {},
        other_weights(lambda t: t.update({"base_model.model.model.norm.lora_A.weight": torch.ones(16, 64)})),
        "'model.norm' is not a linear layer",
    ),
]


@pytest.mark.parametrize(("fields", "change", "message"), REFUSED, ids=[message[:20] for *_, message in REFUSED])
def test_an_adapter_that_cannot_be_served_exactly_is_refused_with_its_field_and_a_fix(
    instance: TextInstance, made: dict[str, tuple[Path, Path]], tmp_path: Path,
    fields: dict[str, Any], change: Callable[[Path], Any] | None, message: str,
) -> None:  # fmt: skip
    folder = edited(tmp_path / "adapter", made["attention"][0], **fields)
    if change is not None:
        change(folder)
    with pytest.raises(LoadFailed, match=rf"^adapter 'mine': .*{message}"):
        instance.adapters.load("mine", str(folder))
    assert not instance.adapters.paths


def test_an_adapter_of_a_base_of_another_size_is_refused(
    instance: TextInstance, text_models: Path, tmp_path: Path
) -> None:
    other = text_model(text_models, "gpt2", steps=40)
    adapter = write_adapter(tmp_path / "adapter", other, targets=GPT2)
    with pytest.raises(LoadFailed, match=r"'transformer.h.0.*' is not in the base model; serve it with the"):
        instance.adapters.load("mine", str(adapter))
