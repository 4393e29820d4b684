"""How the cases are written: manifests around the lines that matter, and `# PL406` at each line that must be found."""

import re
from textwrap import dedent, indent
from typing import NamedTuple

from pilotlight.lint import Finding, lint
from pilotlight.spec.problems import Problems
from pilotlight.spec.yaml_nodes import parse

MARKER = re.compile(r"#.*?\b(PL4\d\d)\b")
QUANTILE = "histogram_quantile(0.95, sum by (le) (rate(x_bucket[2m])))"
GUARDED = f'({QUANTILE} >= 0 and on() sum(rate(x_count[2m])) > 0) or 0 * sum(up{{job="x"}})'


class Case(NamedTuple):
    """Both texts, and what the caller knows of the models' sizes."""

    bad: str
    good: str
    model_bytes: dict[str, int] = {}  # noqa: RUF012 - never written to


def _object(version: str, kind: str, body: str, name: str) -> str:
    return f"---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n" + indent(dedent(body), "  ")


def scaled(body: str, name: str = "m") -> str:
    return _object("keda.sh/v1alpha1", "ScaledObject", body, name)


def hpa(body: str, name: str = "m") -> str:
    return _object("autoscaling/v2", "HorizontalPodAutoscaler", body, name)


def knative(body: str, name: str = "m") -> str:
    return _object("serving.knative.dev/v1", "Service", body, name)


def deployment(body: str, name: str = "m") -> str:
    return _object("apps/v1", "Deployment", body, name)


def annotated(line: str) -> str:
    """A Knative Service with autoscaling annotations in its template."""
    return knative("template:\n  metadata:\n    annotations:\n" + indent(dedent(line).strip("\n"), "      ") + "\n")


def container(line: str) -> str:
    """A Deployment of one container with these fields."""
    return deployment(pod(line))


def revision(line: str) -> str:
    """A Knative Service of one container with these fields."""
    return knative(pod(line))


def pod(line: str) -> str:
    return "template:\n  spec:\n    containers:\n    - name: main\n" + indent(dedent(line).strip("\n"), "      ") + "\n"


def findings(text: str, model_bytes: dict[str, int] | None = None) -> list[Finding]:
    problems = Problems()
    nodes = parse(text, "case.yaml", problems)
    assert not problems.items, problems.items
    return lint(nodes, model_bytes=model_bytes)


def marked_lines(text: str) -> list[tuple[str, int]]:
    """Rule and line of every marker."""
    lines = enumerate(text.split("\n"), start=1)
    return [(rule, number) for number, line in lines for rule in MARKER.findall(line)]
