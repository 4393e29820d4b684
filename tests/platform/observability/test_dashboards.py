"""Dashboards as Grafana's own linter would have them, and made of names that somebody exports."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.platform.observability.queries import CONTENTS, NAMES, PANELS, RULES, Panel, expressions, filled, queries

from pilotlight import contract
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator

COLUMNS = 24
EXPORTED = {value for name, value in vars(contract).items() if name.startswith("METRIC_")}
# What other projects export, which alerts about a cluster's own autoscalers have to ask.
FOREIGN = re.compile(r"\b(?:keda|kube)_\w+")


def panels_of(dashboard: dict[str, Any]) -> list[Panel]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def each_dashboard() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("made", CONTENTS.values(), ids=list(CONTENTS))


def each_panel() -> pytest.MarkDecorator:
    names = [f"{name}: {panel['title']}" for name, panel in PANELS]
    return pytest.mark.parametrize("panel", [panel for _, panel in PANELS], ids=names)


@each_dashboard()
def test_the_data_source_is_chosen_by_a_variable_and_used_by_everything(made: dict[str, Any]) -> None:
    source, *others = made["templating"]["list"]
    assert (source["type"], source["query"], source["name"]) == ("datasource", "prometheus", "datasource")
    used = [each["datasource"]["uid"] for each in (*others, *panels_of(made))]
    used += [target["datasource"]["uid"] for panel in panels_of(made) for target in panel["targets"]]
    assert set(used) == {"$datasource"}


@each_dashboard()
def test_namespace_and_service_are_asked_for_again_when_the_time_changes(made: dict[str, Any]) -> None:
    asked = {each["name"]: each for each in made["templating"]["list"][1:]}
    assert list(asked) == ["namespace", "service"]
    assert all(each["refresh"] == 2 and each["includeAll"] and each["multi"] for each in asked.values())


@each_dashboard()
def test_every_panel_has_a_title_a_description_a_unit_and_queries(made: dict[str, Any]) -> None:
    for panel in panels_of(made):
        assert panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        # A gauge needs bounds, or its bar is of the highest value.
        assert panel["type"] == "timeseries" or {"min", "max"} <= panel["fieldConfig"]["defaults"].keys()
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@each_dashboard()
def test_steps_of_canaries_and_alerts_are_marked_on_every_time_axis(made: dict[str, Any]) -> None:
    marks = {mark["name"]: mark for mark in made["annotations"]["list"]}
    assert list(marks) == ["Canary steps", "Alerts"]
    assert all(mark["datasource"]["uid"] == "$datasource" for mark in marks.values())
    assert marks["Canary steps"]["titleFormat"] == "{{inference_service}}: traffic of {{revision}} changed"


@each_dashboard()
def test_nobody_edits_in_grafana_what_a_file_says(made: dict[str, Any]) -> None:
    assert made["editable"] is False
    assert made["uid"].startswith("pilotlight-")


@each_dashboard()
def test_variables_annotations_and_links_are_the_same_on_every_dashboard(made: dict[str, Any]) -> None:
    for part in ("templating", "annotations", "links", "time", "refresh", "schemaVersion"):
        assert made[part] == CONTENTS["overview"][part]
    assert set(NAMES.findall(json.dumps(made["templating"]))) <= EXPORTED


@each_dashboard()
def test_panels_have_numbers_of_their_own_and_lie_beside_each_other(made: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= COLUMNS
        taken |= cells
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


@each_panel()
def test_every_series_is_of_the_chosen_services(panel: Panel) -> None:
    """A rate of anything else would be of the whole cluster. Recorded bounds are of nobody."""
    for query in queries(panel):
        selectors = re.findall(r"\b(?:pilotlight|nv)_\w+(\{[^}]*\})?", query)
        assert selectors
        assert all('namespace=~"$namespace",inference_service=~"$service"' in each for each in selectors)


@each_panel()
def test_rates_follow_the_resolution_that_grafana_chooses(panel: Panel) -> None:
    for query in queries(panel):
        windows = re.findall(r"rate\([^\[]*\[([^\]]*)\]", query)
        assert set(windows) <= {"$__rate_interval", "$__range"}
        assert ("$__range" in query) == ("displayed range" in panel["title"])


def test_the_error_budget_is_red_when_exhausted_and_stays_within_its_axis() -> None:
    (panel,) = (panel for _, panel in PANELS if panel["title"].startswith("Error budget left"))
    field = panel["fieldConfig"]["defaults"]
    assert (field["unit"], field["min"], field["max"]) == ("percentunit", -1, 1)
    lowest, *steps = field["thresholds"]["steps"]
    assert lowest == {"color": "red", "value": None}
    assert [step["value"] for step in steps] == sorted(step["value"] for step in steps)
    service = {"namespace": "default", "inference_service": "iris", "code": "500"}
    evaluator = Evaluator()
    for at in (0.0, 60.0):
        evaluator.load("pilotlight_request_duration_seconds_count", service, at, at)
    assert list(evaluator.vector(expressions(panel)[0], 60.0).values()) == [field["min"]]


@each_panel()
def test_counters_are_summed_after_their_rate_and_never_bare(panel: Panel) -> None:
    for query in queries(panel):
        for counter in re.findall(r"(\w*\(?)\b(?:pilotlight|nv)\w+_(?:total|count|sum|bucket)\{", query):
            assert counter in ("rate(", "increase("), query


@each_panel()
def test_every_name_is_one_of_the_contract(panel: Panel) -> None:
    for expression in expressions(panel):
        assert set(NAMES.findall(expression)) <= EXPORTED, expression


def test_every_name_in_the_rules_is_one_of_the_contract_or_of_a_cluster() -> None:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            own = {name for name in NAMES.findall(rule["expr"]) if not FOREIGN.match(name)}
            assert own <= EXPORTED, rule["expr"]


def test_prometheus_can_read_every_query(promtool: str, tmp_path: Path) -> None:
    """As recording rules, so that one call of its own checker reads all of them."""
    found = [expression for _, panel in PANELS for expression in expressions(panel)]
    found += [filled(mark["expr"]) for content in CONTENTS.values() for mark in content["annotations"]["list"]]
    made = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(found)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": made}]}))
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
