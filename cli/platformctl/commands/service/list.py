"""`platformctl list`: all services, a line each."""

import click

from platformctl import completion, output, targets
from platformctl.services import status_views

FIGURES = ("wide", "json", "yaml")  # formats with latency and errors


@click.command("list")
@click.option("-n", "--namespace", shell_complete=completion.namespaces, help="Only services of this namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Services of all namespaces, as without -n.")
@targets.target_option
@output.formats(*status_views.SERVICE_FORMATS)
def listed(namespace: str | None, all_namespaces: bool, target: str) -> None:
    """List services of all namespaces, or of one; those whose last deploy failed are marked.

    Example: platformctl list -o wide
    """
    namespace = None if all_namespaces else namespace
    connected = targets.ServiceOptions(target, "").connect_if_running()
    statuses = connected.list(namespace) if connected else []
    if connected and output.chosen() in FIGURES:
        statuses = status_views.with_latency_figures(statuses, connected)
    if connected and not statuses:
        output.note(f"no services; deploy one: platformctl deploy -f service.yaml --target {target}")
    for sentence in status_views.notes_on_other_targets(connected, namespace):
        output.note(sentence)
    if statuses or output.chosen():
        status_views.show(statuses, one=False, default="table")
    for status in filter(status_views.deploy_failed, statuses):
        reason = status.rolled_back or status.message
        output.note(f"{status_views.label(status)}: the last deploy failed: {reason}")


list = listed  # noqa: A001 - verbs are found by their name
