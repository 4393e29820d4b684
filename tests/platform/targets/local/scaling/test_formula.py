"""KEDA's formulas: computed as its expression language does, and never run as code."""

import pytest

from pilotlight.targets.local.scaling import keda_formula

VALUES = {"queue": 30.0, "latency": 0.4, "gone": None}
FORMULAS = [
    ("queue + latency * 10", 34.0),
    ("(queue + 10) / 2", 20.0),
    ("max(queue, latency * 100)", 40.0),
    ("min(queue, 7, latency + 20)", 7.0),
    ("queue > 20 ? 5 : 1", 5.0),
    ("queue < 20 ? 5 : latency > 0.3 ? 2 : 1", 2.0),
    ("queue > 20 && latency > 0.3 ? 2 : 1", 2.0),
    ("not (queue > 20) ? 2 : 1", 1.0),
    ("2 ** 3 ** 2", 512.0),
    ("2 ^ 3", 8.0),
    ("-queue + 31", 1.0),
    ("queue % 7", 2.0),
    ("sum([queue, 2, 3])", 35.0),
    ("mean([queue, 10])", 20.0),
    ("median([1, queue, 2])", 2.0),
    ("ceil(latency) + floor(latency) + round(2.5) + abs(-1)", 5.0),
    ("gone ?? queue", 30.0),
    ("gone ?? 1 + 1", 2.0),
    ("gone", None),
    ("gone + 1", None),
    ("queue / 0", None),
    ("9 ** 9 ** 9", None),
]


@pytest.mark.parametrize(("text", "value"), FORMULAS)
def test_a_formula_is_worth_its_number(text: str, value: float | None) -> None:
    assert keda_formula.compute(text, VALUES) == (pytest.approx(value) if value is not None else None)


WRONG = [
    ("queue +", "must have a number or a trigger at its end"),
    ("(queue", "must have ) at its end"),
    ("queue queue", "unexpected queue"),
    ("__import__('os').system('true')", "must be arithmetic over triggers"),
    ("depth * 2", "depth is none"),
    ("(" * 300 + "1" + ")" * 300, "levels of brackets"),
]


@pytest.mark.parametrize(("text", "reason"), WRONG)
def test_a_wrong_formula_says_what_is_wrong(text: str, reason: str) -> None:
    assert reason in keda_formula.find_problem(text, {"queue", "latency"})
