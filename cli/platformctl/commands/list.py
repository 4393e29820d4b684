"""`platformctl list`: every service, a line each."""

import click

from platformctl import output, targets, views

FIGURES = ("wide", "json", "yaml")  # formats that tell of latency and errors


@click.command("list")
@click.option("-n", "--namespace", help="Only of this one.")
@targets.target_option
@output.formats(*views.SERVICE_FORMATS)
def listed(namespace: str | None, target: str) -> None:
    """List services of all namespaces, or of one.

    Example: platformctl list -o wide
    """
    where = targets.At(target, "").glance()
    found = where.list(namespace) if where else []
    if where and output.chosen() in FIGURES:
        found = views.with_figures(found, where)
    if where and not found:
        output.note("no services; deploy one: platformctl deploy -f service.yaml")
    if found or output.chosen():
        views.show(found, one=False, default="table")


list = listed  # noqa: A001 - verbs are found by their name
