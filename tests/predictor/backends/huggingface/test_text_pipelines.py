"""Answers of text tasks, held to transformers' own pipelines: alone, and in one padded batch."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.huggingface.conftest import answers, load_folder, request
from tests.predictor.backends.huggingface.tiny_tasks import ENTITIES, LENGTH, MOODS, write_bert, write_t5

from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import BadRequest

pytest.importorskip("transformers")
TEXTS = ["The cat sat on the mat.", "Anna lives in Paris", "Is the film good? The film is bad. Good dog, happy server."]


@pytest.fixture(scope="module")
def moods(models: Path) -> Path:
    return write_bert(models / "moods", "ForSequenceClassification", id2label=MOODS)


@pytest.fixture(scope="module")
def masked(models: Path) -> Path:
    return write_bert(models / "masked", "ForMaskedLM")


@pytest.fixture(scope="module")
def questions(models: Path) -> Path:
    return write_bert(models / "answers", "ForQuestionAnswering")


@pytest.fixture(scope="module")
def t5(models: Path) -> Path:
    return write_t5(models / "t5")


def pipeline(task: str, folder: Path, **options: Any) -> Any:
    import transformers

    return transformers.pipeline(task, model=str(folder), device="cpu", **options)


def close(ours: Any, theirs: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            close(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            close(one, other)
    else:
        number = isinstance(theirs, float | np.floating)
        assert ours == (pytest.approx(float(theirs), abs=1e-5) if number else theirs)


class TestTextClassification:
    def test_labels_and_scores_are_those_of_the_pipeline(self, moods: Path) -> None:
        expected = pipeline("text-classification", moods)(TEXTS)
        instance = load_folder(moods)
        batch = answers(instance, *(request(text=[text]) for text in TEXTS))
        for answer, row in zip(batch, expected, strict=True):
            close(answer, {"label": [row["label"].encode()], "score": [row["score"]]})
        assert answers(instance, request(text=TEXTS))[0]["label"] == [row["label"].encode() for row in expected]

    def test_all_probabilities_come_by_name_or_by_the_parameter(self, moods: Path) -> None:
        (every,) = pipeline("text-classification", moods, top_k=None)(TEXTS[:1])
        by_label = {row["label"]: row["score"] for row in every}
        by_name = answers(load_folder(moods), request("probabilities", "logits", text=TEXTS[:1]))[0]
        close(by_name["probabilities"][0], [by_label[label] for label in MOODS.values()])
        logits = np.exp(by_name["logits"][0])
        close((logits / logits.sum()).tolist(), by_name["probabilities"][0])
        always = answers(load_folder(moods, RETURN_PROBABILITIES="true"), request(text=TEXTS[:1]))[0]
        assert always.keys() == {"label", "score", "probabilities"}

    def test_a_pair_of_texts_is_one_row(self, moods: Path) -> None:
        expected = pipeline("text-classification", moods)({"text": TEXTS[0], "text_pair": TEXTS[1]})
        answer = answers(load_folder(moods), request(text=TEXTS[:1], text_pair=TEXTS[1:2]))[0]
        close(answer, {"label": [expected["label"].encode()], "score": [expected["score"]]})

    def test_a_text_longer_than_the_model_is_cut(self, moods: Path) -> None:
        long = answers(load_folder(moods), request(text=["cat " * 500]))[0]
        assert long == answers(load_folder(moods), request(text=["cat " * LENGTH]))[0]

    def test_what_is_cut_off_is_not_tokenised(self, moods: Path) -> None:
        """64 MiB, the largest request, took 20 GB and half an hour."""
        instance, before = load_folder(moods), time.process_time()
        short, long = answers(instance, request(text=["cat " * LENGTH]), request(text=["cat " * (16 << 20)]))
        close(long, short)
        assert time.process_time() - before < 30

    def test_several_labels_may_hold_at_once(self, models: Path) -> None:
        config = {"id2label": MOODS, "problem_type": "multi_label_classification"}
        folder = write_bert(models / "multi", "ForSequenceClassification", **config)
        expected = pipeline("text-classification", folder)(TEXTS[0])[0]
        close(answers(load_folder(folder), request(text=TEXTS[:1]))[0]["score"], [expected["score"]])

    def test_a_request_that_is_not_text_names_its_input(self, moods: Path) -> None:
        with pytest.raises(BadRequest, match="input 'text' is not UTF-8 text"):
            load_folder(moods).execute([request(text=[b"\xff"])])


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(models: Path, strategy: str) -> None:
    folder = models / "entities"
    if not folder.exists():
        write_bert(folder, "ForTokenClassification", id2label=ENTITIES)
    expected = pipeline("ner", folder, aggregation_strategy=strategy)(TEXTS)
    instance = load_folder(folder, aggregation_strategy=strategy)
    for answer, entities in zip(answers(instance, *(request(text=[t]) for t in TEXTS)), expected, strict=True):
        close(json.loads(answer["entities"][0]), json.loads(json.dumps(entities, default=float)))
    assert any(expected)


class TestFillMask:
    def test_tokens_are_those_of_the_pipeline(self, masked: Path) -> None:
        texts = ["the [MASK] sat on the mat", "anna lives in [MASK]", "the [MASK] is [MASK]"]
        expected = pipeline("fill-mask", masked, top_k=3)(texts)
        instance = load_folder(masked, top_k="3")
        for answer, row in zip(answers(instance, *(request(text=[text]) for text in texts)), expected, strict=True):
            close(json.loads(answer["tokens"][0]), row)

    def test_a_text_without_a_mask_is_refused(self, masked: Path) -> None:
        with pytest.raises(BadRequest, match=r"has a row without \[MASK\]"):
            load_folder(masked).execute([request(text=["no mask"])])


class TestQuestionAnswering:
    @pytest.mark.parametrize(
        "context", ["Anna lives in Paris. The dog is sad.", "the server sleeps. a film is bad. " * 20]
    )
    def test_the_answer_is_the_likeliest_span_of_the_context(self, questions: Path, context: str) -> None:
        batch = answers(
            load_folder(questions),
            request(question=["who lives in paris?"], context=[context]),
            request(question=["?"], context=[TEXTS[2]]),
        )
        start, end, score = likeliest(questions, "who lives in paris?", context)
        expected = {"answer": [context[start:end].encode()], "score": [score], "start": [start], "end": [end]}
        close(batch[0], expected)

    def test_an_empty_context_has_no_answer(self, questions: Path) -> None:
        empty = {"answer": [b""], "score": [0.0], "start": [0], "end": [0]}
        assert answers(load_folder(questions), request(question=["who?"], context=[""])) == [empty]

    def test_a_context_of_more_than_a_million_characters_is_refused(self, questions: Path) -> None:
        with pytest.raises(BadRequest, match="has 2,097,152 characters, expected at most 1,048,576"):
            load_folder(questions).execute([request(question=["who"], context=["a " * (1 << 20)])])

    def test_a_question_that_leaves_no_place_is_refused(self, questions: Path) -> None:
        with pytest.raises(BadRequest, match=f"do not fit the {LENGTH} tokens"):
            load_folder(questions).execute([request(question=["cat " * 60], context=["a dog"])])


def likeliest(folder: Path, question: str, context: str, longest: int = 15) -> tuple[int, int, float]:
    """Start, end and probability by plain loops over what transformers' model says of each window."""
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(
        question, context, return_offsets_mapping=True, return_tensors="pt", return_overflowing_tokens=True,
        truncation="only_second", max_length=LENGTH, stride=LENGTH // 4, padding=True,
    )  # fmt: skip
    offsets, _ = tokens.pop("offset_mapping").tolist(), tokens.pop("overflow_to_sample_mapping")
    with torch.no_grad():
        out = AutoModelForQuestionAnswering.from_pretrained(folder)(**tokens)
    spans: list[tuple[float, int, int]] = []
    for window, places in enumerate(offsets):
        inside = [place for place, part in enumerate(tokens.sequence_ids(window)) if part == 1]
        first, last = (logits[window][inside].softmax(-1).tolist() for logits in (out.start_logits, out.end_logits))
        spans += [
            (first[a] * last[b], places[inside[a]][0], places[inside[b]][1])
            for a in range(len(inside))
            for b in range(a, min(len(inside), a + longest))
        ]
    assert len(offsets) > 1 or len(context) < 100
    score, start, end = max(spans, key=lambda span: span[0])
    return start, end, score


class TestTextToText:
    def test_generated_text_is_that_of_generate(self, t5: Path) -> None:
        instance = load_folder(t5, max_new_tokens="6")
        batch = answers(instance, *(request(text=[text]) for text in TEXTS))
        assert [answer["generated_text"][0].decode() for answer in batch] == generated(t5, TEXTS, 6)

    def test_a_task_of_the_configuration_has_its_prefix_and_lengths(self, t5: Path) -> None:
        answer = answers(load_folder(t5, task="summarization"), request(text=["good dog"]))[0]
        assert answer["generated_text"][0].decode() == generated(t5, ["the film good dog"], 4)[0]


def generated(folder: Path, texts: list[str], count: int) -> list[str]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = [model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=count)[0] for text in texts]
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]


def test_a_tokenizer_without_special_tokens_refuses_empty_texts_and_is_warmed_up(models: Path) -> None:
    folder = write_bert(models / "bare", "ForSequenceClassification", id2label=MOODS)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    instance = load_folder(folder)
    with pytest.raises(BadRequest, match="the text is empty"):
        instance.execute([request(text=[""])])
    assert instance.sample is not None
    assert instance.execute([InferRequest("tiny", instance.sample)])
