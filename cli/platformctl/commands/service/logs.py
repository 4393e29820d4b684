"""`platformctl logs`: logs of a service's replicas."""

import click

from platformctl import completion, output, targets


@click.command()
@targets.name_argument()
@targets.options
@click.option("-f", "--follow", is_flag=True, help="Stream new lines, until Ctrl-C.")
@click.option("--previous", is_flag=True, help="Show the replica that ended last.")
@click.option(
    "--replica", default="", metavar="NAME", shell_complete=completion.replicas,
    help="Show this replica only, or those of this revision.",
)  # fmt: skip
@click.option("--tail", default=100, show_default=True, help="Lines to start with; -1: all.")
@output.formats("table", "json")
def logs(
    service_options: targets.ServiceOptions, name: str, follow: bool, previous: bool, replica: str, tail: int
) -> None:
    """Show the logs of replicas as text; with -o json as they were written.

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
        reason = "no replica has ended yet" if previous else "no replica runs; --previous shows the one that ended last"
        output.note(f"no log lines: {reason}")
