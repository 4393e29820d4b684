"""`platformctl validate`: reads, plans and renders documents, and says what is wrong or what the cluster must have."""

from typing import TYPE_CHECKING, Any

import click

from platformctl import documents, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.plan.model import Plan
    from pilotlight.spec.problems import Problem


@click.command()
@documents.planning
@output.formats("table", "json")
def validate(given: documents.Given) -> int:
    """Say everything that is wrong with documents, and where; else what the cluster must have.

    Example: platformctl validate -f service.yaml
    """
    from pilotlight.errors import InvalidDocument

    try:
        planned = given.plan()
    except InvalidDocument as error:
        if output.chosen() != "json":
            raise
        output.data({"valid": False, "services": [], "problems": told(error.problems)}, ())
        return error.exit_code
    services = [summary(plan) for plan in planned.plans]
    value = {"valid": True, "services": services, "problems": told(planned.warnings)}
    output.data(value, [line for service in services for line in lines(service)])
    return 0


def summary(plan: "Plan") -> dict[str, Any]:
    """One service: its mode, how many objects it amounts to, and what the cluster must have for them."""
    from pilotlight.render import render

    needs = [{"kind": need.kind, "name": need.name, "reason": need.reason} for need in plan.requirements]
    return {
        "name": plan.name, "namespace": plan.namespace, "mode": plan.mode, "objects": len(render(plan)), "needs": needs,
    }  # fmt: skip


def lines(service: dict[str, Any]) -> list[str]:
    first = f"{service['namespace']}/{service['name']}: valid, {service['mode']}, {service['objects']} objects"
    needs = [(f"needs {need['kind']}", need["name"], need["reason"]) for need in service["needs"]]
    return [first, *(output.columns(needs) if needs else [])]


def told(problems: "Sequence[Problem]") -> list[dict[str, Any]]:
    """The shape of `validate -o json`: these keys, always all of them."""
    return [
        {
            "code": problem.code, "severity": problem.severity, "path": problem.path, "message": problem.message,
            "file": problem.place.file, "line": problem.place.line, "column": problem.place.column,
        }
        for problem in problems
    ]  # fmt: skip
