"""`platformctl delete`: ends services; what they are answering is answered first."""

import click

from pilotlight.errors import NotFound
from platformctl import output, rollout, targets, waiting


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@targets.options
@click.option("--ignore-not-found", is_flag=True, help="A service that is not there is no error.")
@rollout.waiting_options
@output.formats("name", "json")
def delete(at: targets.At, names: tuple[str, ...], ignore_not_found: bool, wait: bool, timeout: float) -> None:
    """Delete services, their revisions and their history.

    Example: platformctl delete iris
    """
    target = at.look()
    gone = []
    for key in [at.key(name) for name in names]:
        try:
            target.delete(key)
            gone.append(key)
        except NotFound:
            if not ignore_not_found:
                raise
    if wait:
        for key in gone:
            waiting.until_gone(target, key, timeout, output.Ticker())
    output.data({"deleted": ["/".join(key) for key in gone]}, ["/".join(key) for key in gone])
