"""`platformctl status`: one service, or all of them, as they are; -w shows every change."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from platformctl import output, targets, views

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus, Target

WATCH_S = 0.5


@click.command()
@click.argument("name", required=False)
@targets.options
@click.option("-w", "--watch", is_flag=True, help="Again whenever something changes, until Ctrl-C.")
@output.formats(*views.SERVICE_FORMATS)
def status(at: targets.At, name: str | None, watch: bool) -> int:
    """Show revisions, replicas, latency and the last scaling decision. Ends with 1 for a service that has failed.

    Example: platformctl status iris -w
    """
    target = at.look() if name or watch else at.glance()
    found = look(target, at, name) if target else []
    views.show(found, one=bool(name), default="table")
    while watch and target:
        time.sleep(WATCH_S)
        newer = look(target, at, name)
        if newer != found:
            found = newer
            output.page_break()
            views.show(found, one=bool(name), default="table")
    return 1 if any(each.phase == "Failed" for each in found) else 0


def look(target: "Target", at: targets.At, name: str | None) -> "Sequence[ServiceStatus]":
    if not name:
        return views.with_figures(target.list(at.namespace if target.name == "kubernetes" else None), target)
    found = target.status(at.key(name))
    target.note(found)
    return views.with_figures([found], target)
