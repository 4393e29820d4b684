"""Cross-encoders: scores equal to what transformers' own model and sentence-transformers' activation give."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.huggingface.conftest import answers, load_folder, request
from tests.predictor.backends.huggingface.tiny_tasks import MOODS, write_bert

from pilotlight_predictor.backends.huggingface.task import choose_task
from pilotlight_predictor.errors import BadRequest, LoadFailed

pytest.importorskip("transformers")
QUERY = "who lives in paris?"
TEXTS = ["Anna lives in Paris", "The film is bad. The server sleeps on the mat.", "a dog", ""]
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.fixture(scope="module")
def folder(models: Path) -> Path:
    return write_bert(models / "ranks", "ForSequenceClassification", num_labels=1)


def logits(folder: Path, *pairs: tuple[str, str]) -> Any:
    """Each pair alone, without padding."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        rows = [model(**tokenizer([a], [b], return_tensors="pt", truncation=True)).logits[0, 0] for a, b in pairs]
    return np.array(rows)


def test_scores_are_the_sigmoid_of_the_models_own_logits(folder: Path) -> None:
    expected = 1 / (1 + np.exp(-logits(folder, *((QUERY, text) for text in TEXTS))))
    instance = load_folder(folder)
    (together,) = answers(instance, request(text=[QUERY] * len(TEXTS), text_pair=TEXTS))
    assert together == {"score": pytest.approx(expected.tolist(), abs=1e-4)}
    alone = answers(instance, *(request(text=[QUERY], text_pair=[text]) for text in TEXTS))
    assert [answer["score"][0] for answer in alone] == pytest.approx(expected.tolist(), abs=1e-4)
    assert np.ptp(expected) > 0.01


def test_tokens_are_counted_without_padding(folder: Path) -> None:
    counted = request("score", "prompt_tokens", text=[QUERY] * 2, text_pair=["a dog", "the film is bad."])
    assert answers(load_folder(folder), counted)[0]["prompt_tokens"] == [10, 13]


@pytest.mark.parametrize(
    ("file", "entries", "activation"),
    [
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder", "activation_fn": IDENTITY}, "Identity"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder", "activation_fn": SIGMOID}, "Sigmoid"),
        ("config.json", {"sentence_transformers": {"version": "4.0", "activation_fn": IDENTITY}}, "Identity"),
        ("config.json", {"sbert_ce_default_activation_function": IDENTITY}, "Identity"),
        ("config.json", {"problem_type": "regression"}, "Identity"),
        ("config.json", {"problem_type": None}, "Sigmoid"),
    ],
)
def test_the_files_choose_the_activation(tmp_path: Path, file: str, entries: dict[str, Any], activation: str) -> None:
    folder = write_bert(tmp_path / "ranks", "ForSequenceClassification", num_labels=1)
    # As sentence-transformers saves a cross-encoder: modules.json does not make it an embedding model.
    (folder / "modules.json").write_text('[{"path": "", "type": "sentence_transformers.base.modules.Transformer"}]')
    document = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(document | entries))
    (expected,) = logits(folder, (QUERY, TEXTS[0]))
    (answer,) = answers(load_folder(folder), request(text=[QUERY], text_pair=TEXTS[:1]))
    assert answer["score"] == pytest.approx(
        [1 / (1 + np.exp(-expected)) if activation == "Sigmoid" else expected], 1e-4
    )


def test_another_activation_is_refused(tmp_path: Path) -> None:
    entries = {"sentence_transformers": {"activation_fn": "my.Softsign"}}
    folder = write_bert(tmp_path / "ranks", "ForSequenceClassification", num_labels=1, **entries)
    with pytest.raises(LoadFailed, match=r"activation_fn = 'my\.Softsign' is not supported; use Identity or Sigmoid"):
        load_folder(folder)


def test_a_classifier_of_one_label_ranks_unless_the_task_says_otherwise(folder: Path, tmp_path: Path) -> None:
    assert choose_task("m", folder, "").name == choose_task("m", folder, "rerank").name == "text-ranking"
    assert choose_task("m", folder, "sequence_classification").name == "text-classification"
    three = {"architectures": ["BertForSequenceClassification"], "id2label": MOODS}
    (tmp_path / "config.json").write_text(json.dumps(three))
    with pytest.raises(LoadFailed, match="has 3 labels, and a score needs a classifier of one"):
        choose_task("m", tmp_path, "text-ranking")


def test_an_empty_text_beside_others_is_refused_where_the_tokenizer_makes_no_token_of_it(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bare", "ForSequenceClassification", num_labels=1)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    instance = load_folder(folder)
    with pytest.raises(BadRequest, match="the text is empty: the tokenizer returns no tokens for it"):
        instance.execute([request(text=["good dog"]), request(text=[""])])
    assert answers(instance, request(text=["good dog", "cat"]))
