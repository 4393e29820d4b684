"""`platformctl events`: events of services, oldest first."""

import json

import click
from msgspec import to_builtins

from platformctl import output, targets
from platformctl.services import status_views


@click.command()
@targets.name_argument(required=False)
@targets.options
@click.option("-f", "--follow", is_flag=True, help="Stream new events, until Ctrl-C.")
@output.formats("table", "json")
def events(service_options: targets.ServiceOptions, name: str | None, follow: bool) -> None:
    """Show the events of one service, or of all: deploys, scaling decisions, failures. -o json: one object per line.

    Example: platformctl events iris -f
    """
    raw = output.chosen() == "json"
    target = service_options.connect_read_only() if name or follow else service_options.connect_if_running()
    for event in target.events(service_options.key(name) if name else None, follow=follow) if target else ():
        output.stream_line(
            json.dumps(to_builtins(event), ensure_ascii=False) if raw else status_views.event_line(event)
        )
