"""`platformctl rollback`: an earlier release deployed again. Same content, same revision: nothing has to be built."""

import click

from pilotlight import history
from platformctl import output, rollout, targets


@click.command()
@click.argument("name")
@targets.options
@targets.force_option
@click.option("--to", default="", metavar="REVISION|GENERATION", help="Which one; the one before unless told.")
@rollout.options
@output.formats(*rollout.FORMATS)
def rollback(at: targets.At, name: str, to: str, how: rollout.How) -> None:
    """Deploy an earlier release again, with all of the requests.

    Example: platformctl rollback iris --to 3
    """
    target = at.connect()
    found = history.releases(target, at.key(name))
    broken = history.unproven(target.events(at.key(name), follow=False)).union(*(one.failed for one in found))
    chosen = history.earlier(found, to, broken)
    output.note(
        f"back to generation {chosen.generation} of {chosen.at}: {', '.join(sorted(history.revisions(chosen)))}"
    )
    rollout.run(history.again(chosen, None, f"rollback to generation {chosen.generation}"), target, how)
