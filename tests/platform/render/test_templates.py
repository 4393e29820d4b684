"""Templates insert values in one way only, so that nothing a user writes can change what a document is made of."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jinja2 import Environment, StrictUndefined, nodes
from tests.platform.render.render_plans import PLANS

from pilotlight.errors import InternalError
from pilotlight.render import jinja_templates, render
from pilotlight.render.manifests import SERVICE_OBJECTS, WORKLOAD_OBJECTS
from pilotlight.render.template_values import template_values

TEXTS = {
    f"{name}/{path.name}": path.read_text()
    for name in jinja_templates.FOLDERS
    for path in sorted(jinja_templates.folder(name).glob("*.j2"))
}


def outputs(text: str) -> Iterator[nodes.Expr]:
    for output in Environment().parse(text).find_all(nodes.Output):
        yield from (node for node in output.nodes if not isinstance(node, nodes.TemplateData))


def is_safe(expression: nodes.Expr) -> bool:
    return isinstance(expression, nodes.Filter) and expression.name == "tojson" and not expression.args


@pytest.mark.parametrize("name", TEXTS)
def test_a_template_writes_values_only_through_tojson(name: str) -> None:
    assert all(map(is_safe, outputs(TEXTS[name])))


@pytest.mark.parametrize("text", ["{{ a }}", "{{ a ~ b | tojson }}", "{{ a | tojson | safe }}", "{{ a | upper }}"])
def test_another_way_of_writing_a_value_would_be_found(text: str) -> None:
    assert not all(map(is_safe, outputs(text)))


def test_the_tables_and_the_folders_hold_the_same_templates() -> None:
    assert {row.template for row in (*SERVICE_OBJECTS, *WORKLOAD_OBJECTS)} == set(TEXTS)


def test_every_template_makes_an_object_of_some_golden_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    original = jinja_templates.environment().get_template
    monkeypatch.setattr(jinja_templates.environment(), "get_template", lambda name: used.add(name) or original(name))
    for plan in PLANS.values():
        render(plan())
    assert used == set(TEXTS)


@pytest.mark.parametrize("text", ['a: "x{{ 1 | tojson }}"', "a: x{{ 1 | tojson }}", "# {{ 1 | tojson }}\na: 1"])
def test_a_value_amid_other_text_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    made = jinja_templates.environment().from_string(text)
    monkeypatch.setattr(jinja_templates.environment(), "get_template", lambda name: made)
    with pytest.raises(InternalError, match=r"^t\.j2 "):
        jinja_templates.document("t.j2", {})


def test_a_value_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(InternalError, match="nan"):
        jinja_templates.plain({"a": [float("nan")]})
    with pytest.raises(InternalError, match="bytes"):
        jinja_templates.plain(b"")


def plainly(template: str, values: dict[str, Any]) -> Any:
    """The same template through Jinja and YAML alone, as its reader would expect it to work."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json.dumps
    return yaml.safe_load(environment.from_string(TEXTS[template]).render(values))


@pytest.mark.parametrize("name", PLANS)
def test_the_marks_give_what_plain_jinja_gives(name: str) -> None:
    values = template_values(PLANS[name]())
    for workload in values["workloads"]:
        for row in WORKLOAD_OBJECTS:
            if workload["mode"] in row.modes and row.when(workload):
                for item in workload[row.each] if row.each else [None]:
                    given = {"service": values, "workload": workload, "item": item}
                    assert jinja_templates.document(row.template, given) == plainly(row.template, given)
