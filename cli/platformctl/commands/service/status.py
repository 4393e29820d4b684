"""`platformctl status`: one service or all; -w shows every change."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from platformctl import output, targets
from platformctl.services import status_views

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus, Target

WATCH_S = 0.5


@click.command()
@targets.name_argument(required=False)
@targets.options
@click.option("-w", "--watch", is_flag=True, help="Refresh on every change, until Ctrl-C.")
@output.formats(*status_views.SERVICE_FORMATS)
def status(service_options: targets.ServiceOptions, name: str | None, watch: bool) -> int:
    """Show revisions, replicas, latency and the last scaling decision. Exit code 1: a service has failed.

    Example: platformctl status iris -w
    """
    target = service_options.connect_read_only() if name or watch else service_options.connect_if_running()
    statuses = read_statuses(target, service_options, name) if target else []
    status_views.show(statuses, one=bool(name), default="table")
    while watch and target:
        time.sleep(WATCH_S)
        newer = read_statuses(target, service_options, name)
        if newer != statuses:
            statuses = newer
            output.page_break()
            status_views.show(statuses, one=bool(name), default="table")
    return 1 if any(each.phase == "Failed" for each in statuses) else 0


def read_statuses(
    target: "Target", service_options: targets.ServiceOptions, name: str | None
) -> "Sequence[ServiceStatus]":
    if not name:
        return status_views.with_latency_figures(
            target.list(None if target.embedded else service_options.namespace), target
        )
    status_ = target.status(service_options.key(name))
    target.record_status(status_)
    return status_views.with_latency_figures([status_], target)
