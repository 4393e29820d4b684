"""The values of a plan are all that its manifests are made of, and plain enough for any chart."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platform.render.render_plans import PLANS, multi_node, raw_latency

from pilotlight.k8s.manifest import Manifest, in_apply_order
from pilotlight.plan.types import Plan
from pilotlight.render import jinja_templates, render, values_of
from pilotlight.render.manifests import CHART_MODES, objects_of
from pilotlight.render.template_values import API_VERSION


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_values_alone_give_the_manifests(plan: Callable[[], Plan]) -> None:
    values = json.loads(json.dumps(values_of(plan())))
    assert in_apply_order(objects_of(values)) == render(plan())


def test_they_carry_their_version_first() -> None:
    assert next(iter(values_of(raw_latency()).items())) == ("apiVersion", API_VERSION)


def test_equal_plans_give_equal_text() -> None:
    assert json.dumps(values_of(raw_latency())) == json.dumps(values_of(raw_latency()))


def test_modes_that_the_chart_has_no_templates_for_come_as_finished_objects() -> None:
    values = values_of(multi_node())
    assert values["workloads"] == []
    assert "multi-node" not in CHART_MODES
    assert {Manifest(document).kind for document in values["objects"]} >= {"LeaderWorkerSet", "Service"}


def test_a_shape_that_was_parsed_once_is_not_parsed_again() -> None:
    render(raw_latency())
    before = jinja_templates._parsed.cache_info().misses
    render(replace(raw_latency(), name="other", labels={"another": "label"}, hosts=("other.example.com",)))
    assert jinja_templates._parsed.cache_info().misses == before


def test_templates_are_found_beside_the_package_before_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pilotlight

    assert (jinja_templates.folder("keda") / "README.md").exists()
    package = tmp_path / "pilotlight"
    (package / "templates" / "keda").mkdir(parents=True)
    monkeypatch.setattr(pilotlight, "__file__", str(package / "__init__.py"))
    assert jinja_templates.folder("keda") == package / "templates" / "keda"
