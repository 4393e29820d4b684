"""`platformctl logs`: logs of a service's replicas."""

import click

from platformctl import output, targets


@click.command()
@click.argument("name")
@targets.options
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--previous", is_flag=True, help="Of the replica that ended last.")
@click.option("--replica", default="", metavar="NAME", help="Of this replica, or of this revision's.")
@click.option("--tail", default=100, show_default=True, help="How many lines to begin with; -1: all.")
@output.formats("table", "json")
def logs(
    service_options: targets.ServiceOptions, name: str, follow: bool, previous: bool, replica: str, tail: int
) -> None:
    """Show what replicas wrote, as a person reads it; with -o json as it was written.

    Example: platformctl logs iris -f
    """
    lines = service_options.connect_read_only().logs(
        service_options.key(name), follow=follow, previous=previous, replica=replica, tail=tail
    )
    raw = output.chosen() == "json"
    anything = False
    for line in lines:
        anything = True
        if raw and line.startswith("==> "):  # a heading, not JSON
            output.note(line)
        else:
            output.stream_line(line if raw else output.readable(line))
    if not anything:
        other = "no replica has ended yet" if previous else "no replica runs; --previous shows the one that ended last"
        output.note(f"nothing: {other}")
