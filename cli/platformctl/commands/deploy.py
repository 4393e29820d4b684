"""`platformctl deploy`: documents become running services; what happens is told as it happens, the URL comes last."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.errors import UsageError
from platformctl import documents, history, output, releasing, rollout, targets

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


@click.command()
@documents.deploying
@targets.target_option
@rollout.options
@click.option("--reset", is_flag=True, help="Forget what scale and traffic have set by hand.")
@output.formats(*rollout.FORMATS)
def deploy(given: documents.Given, target: str, how: rollout.How, reset: bool) -> None:
    """Make services run as documents say, or as they were deployed before.

    Example: platformctl deploy -f service.yaml
    """
    alone = how.dry_run == "client" and not how.differ and given.files
    where = None if alone else targets.connect(target)
    wanted = of_files(given) if given.files else of_target(given, where)
    rollout.run(replace(wanted, reset=reset), where, how, strict=given.strict)


def of_files(given: documents.Given) -> releasing.Wanted:
    """Only the services that are named; all of them are read and checked."""
    read = given.read()
    return releasing.Wanted(replace(read, services=tuple(given.only(read.services))), given.offered())


def of_target(given: documents.Given, where: "Target | None") -> releasing.Wanted:
    """As the target keeps it, changed by --set."""
    if not given.names:
        raise UsageError("neither -f FILE nor a NAME is given", "platformctl deploy -f service.yaml")
    if len(given.names) > 1:
        raise UsageError("without -f only one service can be deployed at a time")
    assert where is not None
    release = history.releases(where, targets.At("", given.namespace).key(given.names[0]))[0]
    return releasing.Wanted(*releasing.stored(release, given.sets))
