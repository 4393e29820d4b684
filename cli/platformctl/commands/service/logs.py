"""`platformctl logs`: logs of a service's replicas."""

import click

from platformctl import completion, output, targets


@click.command()
@targets.name_argument()
@targets.options
@click.option("-f", "--follow", is_flag=True, help="Stream new lines, until Ctrl-C.")
@click.option("--previous", is_flag=True, help="Show the replica that ended last.")
@click.option(
    "--replica", "--revision", default="", metavar="NAME", shell_complete=completion.replicas,
    help="Show this replica only, or those of this revision; if none runs, the one that ended last.",
)  # fmt: skip
@click.option("--tail", default=100, show_default=True, help="Log records to start with, not lines; -1: all.")
@output.formats("table", "json")
def logs(
    service_options: targets.ServiceOptions, name: str, follow: bool, previous: bool, replica: str, tail: int
) -> None:
    """Show the logs of replicas as text; with -o json as they were written.

    Example: platformctl logs iris -f
    """
    target = service_options.connect_read_only()
    lines = target.logs(service_options.key(name), follow=follow, previous=previous, replica=replica, tail=tail)
    raw = output.chosen() == "json"
    anything = False
    for line in lines:
        anything = True
        if raw and line.startswith("==> "):  # a heading, not JSON
            output.note(line)
        else:
            output.stream_line(line if raw else output.readable(line))
    if not anything:
        output.note(f"no log lines: {_reason(target.embedded, previous=previous, replica=replica)}")


def _reason(embedded: bool, *, previous: bool, replica: str) -> str:
    if previous:
        return "no replica has ended yet" if embedded else "no container has restarted"
    if not embedded:
        return "no replica runs or has written any; the log of an ended one is deleted with it"
    return f"{replica} has written none" if replica else "no replica runs; --previous shows the one that ended last"
