"""No string of a user changes a manifest's structure, whatever stands in it."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.render.render_plans import GATEWAY, keda, service, template, workload

from pilotlight.k8s.manifest import to_yaml
from pilotlight.plan.types import Plan, Trigger
from pilotlight.render import render, values_of

MARKER = "harmless"
NASTY = [
    '"', "'", "\n", "---\n", "{{ x }}", "{% if %}", "$(HOME)", "%s", "#", ": ", "- ", "1e5", "0o7", "y", "null", "⟦0⟧",
    "\x85", " ", "\u2028", "😀", "\ufeff", "\t", "\\", "&a", "*a", "!!int", "~", "|", ">", "@", "`",
]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(NASTY), min_size=1).map("".join),
    st.text(st.characters(exclude_categories=["Cs"])),
)

# How long an example takes is the machine's affair.
any_speed = settings(deadline=None)


def plan_with(text: str) -> Plan:
    """The text in every place where a document's author may write freely, also as a key."""
    trigger = Trigger("prometheus", "p95", {"query": text, "threshold": text})
    made = workload(
        template=template({"free": text, text: "value"}, args=[text], env=[{"name": "A", "value": text}]),
        scaling=keda(trigger, authentications={"auth": {"secretTargetRef": [{"parameter": text}]}}),
        annotations={"note": text}, labels={"label": text},
    )  # fmt: skip
    known = workload("router", "serverless", scaling=keda(), annotations={text: text})
    return service(made, known, annotations={"other": text}, gateway={**GATEWAY, "name": text}, hosts=(text,))


def swapped(value: Any, text: str) -> Any:
    """The document with the text where the marker stood."""
    if isinstance(value, dict):
        return {swapped(key, text): swapped(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [swapped(item, text) for item in value]
    return text if value == MARKER else value


@any_speed
@given(TEXTS)
def test_a_string_appears_where_it_was_put_and_nothing_else_changes(text: str) -> None:
    plain = swapped([manifest.document for manifest in render(plan_with(MARKER))], text)
    assert [manifest.document for manifest in render(plan_with(text))] == plain


@any_speed
@given(TEXTS)
def test_values_keep_it_too(text: str) -> None:
    assert values_of(plan_with(text)) == swapped(values_of(plan_with(MARKER)), text)


@any_speed
@given(TEXTS)
def test_yaml_that_is_printed_reads_back_as_it_was(text: str) -> None:
    manifests = render(plan_with(text))
    assert list(yaml.safe_load_all(to_yaml(manifests))) == [manifest.document for manifest in manifests]
