"""`platformctl validate`: read, plan and render documents; print problems or cluster requirements."""

from typing import TYPE_CHECKING, Any

import click

from pilotlight.render import render
from pilotlight.spec.problems import InvalidDocument, problem_rows
from platformctl import options, output

if TYPE_CHECKING:
    from pilotlight.plan.types import Plan


@click.command()
@options.planning_options
@output.formats("table", "json")
def validate(document_options: options.DocumentOptions) -> int:
    """Report all errors of InferenceServices with file, line and column; or else what the cluster must offer.

    Missing model files are errors too.

    Example: platformctl validate -f service.yaml
    """
    try:
        planned = document_options.plan(find_models=True)
    except InvalidDocument as error:
        if output.chosen() != "json":
            raise
        output.data({"valid": False, "services": [], "problems": problem_rows(error.problems)}, ())
        return error.exit_code
    services = [summary(plan) for plan in planned.plans]
    value = {"valid": True, "services": services, "problems": problem_rows(planned.warnings)}
    output.data(value, [line for service in services for line in lines(service)])
    return 0


def summary(plan: "Plan") -> dict[str, Any]:
    """Return mode, number of objects and cluster requirements of one service."""
    needs = [{"kind": need.kind, "name": need.name, "reason": need.reason} for need in plan.requirements]
    return {
        "name": plan.name, "namespace": plan.namespace, "mode": plan.mode, "objects": len(render(plan)), "needs": needs,
    }  # fmt: skip


def lines(service: dict[str, Any]) -> list[str]:
    first = f"{service['namespace']}/{service['name']}: valid, {service['mode']}, {service['objects']} objects"
    needs = [(f"needs {need['kind']}", need["name"], need["reason"]) for need in service["needs"]]
    return [first, *(output.columns(needs) if needs else [])]
