"""Every alert fires when it should and holds its peace when it should: played by promtool, on our own rules file."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.platform.observability import queries
from tests.platform.observability.alert_cases import CASES, Case
from tests.platform.render.render_plans import PLANS

from pilotlight.contract import LATENCY_BUCKETS
from pilotlight.observability.files import rules_text
from pilotlight.render import template_values

PLAN = PLANS["raw-latency"]()
ALERTS = {rule["alert"]: rule for rule in (*queries.ALERTS, *template_values.rules_of(PLAN))}


def played(case: Case) -> dict[str, Any]:
    """One test of promtool's: which alerts of that name stand at that minute."""
    rule = ALERTS[case.alert]
    expected = [{"exp_labels": {**rule["labels"], **case.labels}}] if case.fires else []
    return {
        "name": f"{case.alert}: {case.title}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": f"{case.minutes}m", "alertname": case.alert, "exp_alerts": expected}],
    }


def promtool_says(promtool: str, *argv: str) -> str:
    done = subprocess.run([promtool, *argv], capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_rules_file_is_one_that_prometheus_takes(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(rules_text())
    assert not promtool_says(promtool, "check", "rules", str(tmp_path / "rules.yaml"))


def test_every_alert_fires_when_it_should_and_only_then(promtool: str, tmp_path: Path) -> None:
    """What an alert says is checked elsewhere: here its annotations would have to be written twice."""
    groups = [*queries.RULES["groups"], {"name": "of one service", "rules": template_values.rules_of(PLAN)}]
    files = []
    for alert in ALERTS:  # a file for each: promtool evaluates every rule of a file in every minute
        (tmp_path / f"{alert}.rules.yaml").write_text(json.dumps({"groups": [only(alert, group) for group in groups]}))
        tests = [played(case) for case in CASES if case.alert == alert]
        text = {"rule_files": [f"{alert}.rules.yaml"], "evaluation_interval": "1m", "tests": tests}
        files.append(tmp_path / f"{alert}.yaml")
        files[-1].write_text(json.dumps(text))
    said = promtool_says(promtool, "test", "rules", *map(str, files))
    assert not said, said


def only(alert: str, group: dict[str, Any]) -> dict[str, Any]:
    """The group with what it records and this alert."""
    kept = [rule for rule in group["rules"] if rule.get("alert", alert) == alert]
    return {**group, "rules": [{**rule, "annotations": {}} if "alert" in rule else rule for rule in kept]}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_played_both_ways(alert: str) -> None:
    assert {case.fires for case in CASES if case.alert == alert} == {True, False}


@pytest.mark.parametrize("alert", [rule["alert"] for rule in queries.ALERTS])
def test_every_alert_says_what_happened_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".") or rule["annotations"]["description"].endswith("?")


def test_bounds_of_times_are_edges_of_the_histogram() -> None:
    (quick,) = re.findall(r'le="([\d.]+)"', queries.RECORDED["pilotlight:requests_within_500ms:ratio_rate5m"])
    wait = ALERTS["PilotlightQueueing"]["expr"].rpartition("> ")[2]
    assert {float(quick), float(wait)} <= set(LATENCY_BUCKETS)


def test_the_error_ratio_is_the_same_over_every_window() -> None:
    ratios = {name: expr for name, expr in queries.RECORDED.items() if ":request_errors:" in name}
    windows = [name.partition("ratio_rate")[2] for name in ratios]
    assert windows == ["5m", "30m", "1h", "6h"]
    plain = {expr.replace(f"[{window}]", "") for window, expr in zip(windows, ratios.values(), strict=True)}
    assert len(plain) == 1
    assert "[" not in plain.pop()


def test_the_error_budget_is_in_one_place() -> None:
    (budget,) = [
        rule["expr"]
        for group in yaml.safe_load(rules_text(0.005))["groups"]
        for rule in group["rules"]
        if rule.get("record") == queries.BUDGET
    ]
    assert budget == "vector(0.005)"
