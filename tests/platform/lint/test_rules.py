"""Each rule finds what it should, at the line where it is written, and nothing in what is right."""

from pathlib import Path

import pytest
import yaml
from tests.platform.lint import keda_cases, knative_cases, workload_cases
from tests.platform.lint.lint_cases import Case, findings, marked_lines

from pilotlight.lint import RULES, Rule, rules
from pilotlight.spec.field_types import parse_path

CASES: dict[str, Case] = {**keda_cases.CASES, **knative_cases.CASES, **workload_cases.CASES}
RULE_IDS = [rule.id for rule in RULES]


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    assert sorted(CASES) == sorted(RULE_IDS)


def test_rules_are_listed_once_in_the_order_of_their_ids() -> None:
    assert sorted(set(RULE_IDS)) == RULE_IDS


@pytest.mark.parametrize("rule", RULE_IDS)
def test_what_is_dangerous_is_found_at_its_line(rule: str) -> None:
    case = CASES[rule]
    found = [(each.rule, each.location.line) for each in findings(case.bad, case.model_bytes) if each.rule == rule]
    assert marked_lines(case.bad), "the case marks no line"
    assert sorted(set(found)) == sorted(marked_lines(case.bad))


@pytest.mark.parametrize("rule", RULE_IDS)
def test_the_column_is_that_of_the_key_or_item(rule: str) -> None:
    case = CASES[rule]
    lines = case.bad.split("\n")
    for finding in findings(case.bad, case.model_bytes):
        if finding.rule == rule:
            line, column = lines[finding.location.line - 1], finding.location.column - 1
            step = (parse_path(finding.path) or [0])[-1]
            assert line[column:].startswith(f"{step}:") if isinstance(step, str) else line[:column].endswith("- ")


@pytest.mark.parametrize("rule", RULE_IDS)
def test_what_is_right_is_left_alone(rule: str) -> None:
    case = CASES[rule]
    assert [each for each in findings(case.good, case.model_bytes) if each.rule == rule] == []


@pytest.mark.parametrize("rule", RULES, ids=RULE_IDS)
def test_a_rule_has_a_title_a_reason_and_a_fix(rule: Rule) -> None:
    assert len(rule.text.why) > 40
    assert rule.text.why.endswith((".", ".)"))
    assert rule.text.fix
    assert len(rule.text.title) < 70
    assert rule.text.severity in {"error", "warning", "info"}


def test_every_entry_of_the_rules_has_a_check() -> None:
    entries = yaml.safe_load(Path(rules.__file__).with_name("rules.yaml").read_text("utf-8"))
    assert list(entries) == RULE_IDS
