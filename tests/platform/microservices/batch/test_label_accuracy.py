"""A labelled set scores results: what is right, of what was said, of what was meant."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.batch.job_folder import Outcome
from pilotlight.microservices.batch.label_accuracy import metrics, read_labels

LABELS = {"a": frozenset({"cat"}), "b": frozenset({"dog"}), "c": frozenset({"cat"}), "d": frozenset({"dog"})}


def said(file: str, label: str | None) -> Outcome:
    return Outcome(file, "completed", {"predictions": [{"label": label, "classes": []}]})


def test_the_three_forms_of_labels_mean_the_same() -> None:
    expected = {"a.png": frozenset({"cat"}), "b.png": frozenset({"cat", "dog"})}
    assert read_labels("l.csv", b"file,label\na.png,cat\nb.png,cat|dog\n") == expected
    assert read_labels("l.json", b'{"a.png": "cat", "b.png": ["cat", "dog"]}') == expected
    lines = b'{"file": "a.png", "label": "cat"}\n{"file": "b.png", "label": "dog|cat"}\n'
    assert read_labels("l.jsonl", lines) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [("l.csv", b"name,class\na,b\n"), ("l.json", b"[1]"), ("l.json", b"{"), ("l.jsonl", b"{}"), ("l.csv", b""),
     ("l.csv", b"\xff")],
)  # fmt: skip
def test_labels_that_cannot_be_read_are_refused_by_name(name: str, content: bytes) -> None:
    with pytest.raises(UsageError, match=f"labels = {name}"):
        read_labels(name, content)


def test_precision_recall_and_accuracy_are_counted_by_class() -> None:
    found = metrics([said("a", "cat"), said("b", "cat"), said("c", "cat"), said("d", "dog"), said("x", "cat")], LABELS)
    assert (found["files"], found["unlabelled"], found["missing"]) == (4, 1, 0)
    assert found["accuracy"] == 0.75
    assert found["classes"]["cat"] == {"precision": pytest.approx(2 / 3), "recall": 1.0, "f1": 0.8, "count": 2}
    assert found["classes"]["dog"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "count": 2}
    assert found["macro_recall"] == 0.75
    assert {"label": "dog", "predicted": "cat", "count": 1} in found["confusion"]


def test_a_file_that_failed_is_wrong_and_one_that_is_not_there_is_missing() -> None:
    found = metrics([Outcome("a", "error", error="?"), said("b", None)], LABELS)
    assert (found["accuracy"], found["missing"]) == (0.0, 2)
    assert found["classes"]["cat"] == {"precision": None, "recall": 0.0, "f1": 0.0, "count": 1}


def test_detections_and_texts_are_scored_too() -> None:
    seen = {"predictions": [{"detections": [{"label": "cat"}, {"label": "cat"}, {"label": "dog"}]}]}
    outcomes = [Outcome("a", "completed", seen), Outcome("b", "completed", {"response": " dog\n"})]
    found = metrics(outcomes, {"a": frozenset({"cat", "dog"}), "b": frozenset({"dog"})})
    assert found["accuracy"] == 1.0


def test_masks_are_not_scored() -> None:
    with pytest.raises(UsageError, match="only classes, detections and texts"):
        metrics([Outcome("a", "completed", {"predictions": [{"mask": []}]})], LABELS)


def test_nothing_labelled_has_no_accuracy_rather_than_a_bad_one() -> None:
    assert metrics([said("x", "cat")], LABELS)["accuracy"] is None
