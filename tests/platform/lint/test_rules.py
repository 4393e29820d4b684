"""Each rule finds what it should, at the line where it is written, and nothing in what is right."""

from pathlib import Path

import pytest
from tests.platform.lint import keda_cases, knative_cases, workload_cases
from tests.platform.lint.lint_cases import Case, findings, marked_lines

from pilotlight.lint import RULES, Rule
from pilotlight.lint.rule import KNATIVE
from pilotlight.spec.field_types import parse_path

CASES: dict[str, Case] = {**keda_cases.CASES, **knative_cases.CASES, **workload_cases.CASES}
RULE_IDS = [rule.id for rule in RULES]
INTRODUCTION, *SECTIONS = (Path(__file__).parents[3] / "docs" / "lint.md").read_text("utf-8").rstrip().split("\n\n## ")


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
def test_the_page_has_the_rule_with_its_reason_and_its_fix(rule: Rule) -> None:
    kinds = ", ".join("Knative Service" if kind == KNATIVE else kind for kind in rule.kinds) or "any object"
    row = f"| [{rule.id}](#{rule.id.lower()}) | {rule.severity} | {kinds} | {rule.title} |"
    section = SECTIONS[RULE_IDS.index(rule.id)]
    heading = f"{rule.id}\n\n**{rule.title[0].upper()}{rule.title[1:]}** ({rule.severity}). "
    fix = f"\n\n```yaml\n{rule.fix}\n```"
    assert row in INTRODUCTION.splitlines()
    assert section.startswith(heading)
    assert section.endswith(fix)
    why = section.removeprefix(heading).removesuffix(fix)
    assert len(why) > 40
    assert why.endswith((".", ".)"))
    assert rule.fix
    assert len(rule.title) < 70
    assert rule.severity in {"error", "warning", "info"}


def test_the_page_has_no_other_rules() -> None:
    assert [section[:5] for section in SECTIONS] == RULE_IDS
    assert [line[3:8] for line in INTRODUCTION.splitlines() if line.startswith("| [PL")] == RULE_IDS
