"""`platformctl events`: what happened to services, oldest first."""

import click

from platformctl import output, targets, views


@click.command()
@click.argument("name", required=False)
@targets.options
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@output.formats("table", "json")
def events(at: targets.At, name: str | None, follow: bool) -> None:
    """Show what happened to one service, or to all; with -o json a document a line.

    Example: platformctl events iris -f
    """
    import json

    from msgspec import to_builtins

    raw = output.chosen() == "json"
    target = at.look() if name or follow else at.glance()
    for event in target.events(at.key(name) if name else None, follow=follow) if target else ():
        output.flowing(json.dumps(to_builtins(event), ensure_ascii=False) if raw else views.event(event))
