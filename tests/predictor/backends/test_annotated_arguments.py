"""Arguments annotated with Python's plain types, which are inputs of one value or of a list."""

from typing import Any

import numpy as np

from pilotlight_predictor.backends.python import backend
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BadRequest

SHOUT = """
    from __future__ import annotations

    class Shout:
        def predict(self, text: str, marks: str = "!") -> str:
            return text.upper() + marks
"""


def test_arguments_annotated_as_text_are_inputs_and_get_text(source: Any, spec: Any, ask: Any) -> None:
    instance = backend.load(spec(source(SHOUT)))
    assert instance.inputs == (TensorSpec("text", "BYTES", (1,)), TensorSpec("marks", "BYTES", (1,), optional=True))
    one, several = np.array([[b"hi"]], object), np.array([b"a", b"b"], object)
    assert [each["output"].array.item() for each in instance.execute([ask(text=one), ask(text=one, marks=one)])] == [
        b"HI!", b"HIhi"
    ]  # fmt: skip
    (refused,) = instance.execute([ask(text=several)])
    assert isinstance(refused, BadRequest)
    assert str(refused) == "input 'text' has 2 strings, must be one str; annotate it list[str] for several"
    listed = backend.load(spec(source("def predict(texts: list[str]): return [len(each) for each in texts]")))
    assert listed.inputs == (TensorSpec("texts", "BYTES", (-1,)),)
    assert listed.execute([ask(texts=several)])[0]["output"].array.tolist() == [1, 1]


def test_an_argument_annotated_as_a_number_is_an_input_of_one_value(source: Any, spec: Any, ask: Any) -> None:
    text = "def predict(text: str, n: int, loud: bool = False): return text.upper() * n if loud else text * n"
    instance = backend.load(spec(source(text)))
    assert [(each.name, each.datatype, each.shape, each.optional) for each in instance.inputs] == [
        ("text", "BYTES", (1,), False), ("n", "INT64", (1,), False), ("loud", "BOOL", (1,), True),
    ]  # fmt: skip
    given = {"text": np.array([b"a"], object), "n": np.array([2])}
    answers = instance.execute([ask(**given), ask(**given, loud=np.array([True])), ask(**{**given, "n": np.ones(2)})])
    assert [each["output"].array.item() for each in answers[:2]] == [b"aa", b"AA"]
    assert str(answers[2]) == "input 'n' has 2 numbers, must be one int; annotate it list[int] for several"
    text = "def predict(age: int, income: float, past: list[float]): return repr((age, income, past))"
    instance = backend.load(spec(source(text)))
    assert [(each.name, each.datatype, each.shape) for each in instance.inputs] == [
        ("age", "INT64", (1,)), ("income", "FP64", (1,)), ("past", "FP64", (-1,)),
    ]  # fmt: skip
    given = {"age": np.array([30]), "income": np.array([2.5]), "past": np.array([1.0, 2.0])}
    assert instance.execute([ask(**given)])[0]["output"].array.item() == b"(30, 2.5, [1.0, 2.0])"


def test_arguments_that_are_not_all_annotated_so_declare_nothing(source: Any, spec: Any, ask: Any) -> None:
    instance = backend.load(spec(source("def predict(text: str, k): return {'y': [text] * int(k[0])}")))
    assert instance.inputs == ()
    answer = instance.execute([ask(text=np.array([b"a"], object), k=np.array([2]))])[0]
    assert answer["y"].array.tolist() == [b"a", b"a"]
