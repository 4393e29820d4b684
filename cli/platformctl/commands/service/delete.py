"""`platformctl delete`: delete services; requests in flight are drained first."""

import click

from pilotlight.errors import NotFound
from pilotlight.release import apply
from platformctl import options, output, targets
from platformctl.services import wait_ready


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@targets.options
@click.option("--ignore-not-found", is_flag=True, help="A service that is not there is no error.")
@options.waiting_options
@output.formats("name", "json")
def delete(
    service_options: targets.ServiceOptions, names: tuple[str, ...], ignore_not_found: bool, wait: bool, timeout: float
) -> None:
    """Delete services, their revisions and their history.

    Example: platformctl delete iris
    """
    target = service_options.connect_running()
    keys = list(dict.fromkeys(service_options.key(name) for name in names))
    gone = [key for key in keys if apply.generation(target, key, deploys=False)]
    missing = ["/".join(key) for key in keys if key not in gone]
    if missing and not ignore_not_found:
        unknown = f"no service is called {', '.join(missing)}; nothing was deleted"
        raise NotFound(unknown, f"platformctl list --target {target.name}")
    for key in gone:
        if note := target.delete(key):
            output.note(note)
    if wait:
        for key in gone:
            wait_ready.wait_deleted(target, key, timeout, output.ProgressLog())
    output.data({"deleted": ["/".join(key) for key in gone]}, ["/".join(key) for key in gone])
