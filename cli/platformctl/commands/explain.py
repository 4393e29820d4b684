"""`platformctl explain`: every decision about a service with its reason, or why each runtime was taken or not."""

from typing import TYPE_CHECKING, Any

import click

from platformctl import documents, output

if TYPE_CHECKING:
    from pilotlight.plan.model import Plan
    from pilotlight.spec.model import Catalogue, Component, Service


@click.command()
@documents.planning
@click.option("--runtime", is_flag=True, help="Every runtime that was looked at, and why it was taken or passed over.")
@output.formats("table", "json", "yaml")
def explain(given: documents.Given, runtime: bool) -> None:
    """Say what was decided about a service, and why.

    Example: platformctl explain -f service.yaml
    """
    if runtime:
        read = given.documents()
        for sentence in read.catalogue.shadowed:
            output.note(sentence)
        told = [candidates(service, read.catalogue) for service in given.only(read.services)]
        lines = [line for service in told for line in candidate_lines(service)]
    else:
        told = [decisions(plan) for plan in given.plan().plans]
        lines = [line for service in told for line in decision_lines(service)]
    output.data({"services": told}, lines[:-1])


def decisions(plan: "Plan") -> dict[str, Any]:
    return {
        "name": plan.name, "namespace": plan.namespace, "mode": plan.mode,
        "decisions": [{"topic": made.topic, "value": made.value, "reason": made.reason} for made in plan.decisions],
        "needs": [{"kind": need.kind, "name": need.name, "reason": need.reason} for need in plan.requirements],
    }  # fmt: skip


def decision_lines(service: dict[str, Any]) -> list[str]:
    """A heading, the decisions as three columns, the needs likewise, and an empty line."""
    made = dict.fromkeys((each["topic"], each["value"], each["reason"]) for each in service["decisions"])
    needs = [(need["kind"], need["name"], need["reason"]) for need in service["needs"]]
    tables = [("decision", "value", "because"), *made], [("needs", "name", "because"), *needs]
    heading = f"{service['namespace']}/{service['name']}: {service['mode']}"
    return [heading, *(line for table in tables if len(table) > 1 for line in output.columns(table)), ""]


def candidates(service: "Service", catalogue: "Catalogue") -> dict[str, Any]:
    """Works for services that cannot be planned too: that no runtime fits is when people ask."""
    from pilotlight.spec.select import select_runtime

    component = main_component(service)
    found = select_runtime(service, component, catalogue) if component else None
    looked_at = [
        {
            "runtime": each.runtime.name, "taken": bool(found and found.runtime is each.runtime), "fits": each.accepted,
            "score": each.score, "reason": each.reason, "origin": each.runtime.origin,
        }
        for each in (found.candidates if found else ())
    ]  # fmt: skip
    taken = found.runtime.name if found and found.runtime else ""
    why = found.reason if found and found.reason else "; ".join(p.message for p in (found.problems if found else ()))
    return {
        "name": service.name, "namespace": service.namespace, "runtime": taken,
        "reason": why or "no component serves a model", "candidates": looked_at,
    }  # fmt: skip


def main_component(service: "Service") -> "Component | None":
    return service.components.get("engine") or service.components.get("predictor")


def candidate_lines(service: dict[str, Any]) -> list[str]:
    verdicts = {(True, True): "taken", (False, True): "fits", (False, False): "no", (True, False): "taken"}
    rows = [
        (each["runtime"], verdicts[each["taken"], each["fits"]], str(each["score"]), each["origin"], each["reason"])
        for each in service["candidates"]
    ]
    heading = f"{service['namespace']}/{service['name']}: {service['runtime'] or 'no runtime'} ({service['reason']})"
    table = output.columns([("runtime", "verdict", "score", "from", "because"), *rows]) if rows else []
    return [heading, *table, ""]
