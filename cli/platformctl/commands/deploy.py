"""`platformctl deploy`: documents become running services; what happens is told as it happens, the URL comes last."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight import history, releasing
from pilotlight.errors import UsageError
from platformctl import canary_start, documents, helm, output, rollout, targets

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


@click.command()
@documents.deploying
@targets.target_option
@targets.force_option
@rollout.options
@click.option(
    "--with", "tool", type=click.Choice(["helm"]), help="Let this program apply and own it: helm, with our chart."
)
@click.option("--reset", is_flag=True, help="Forget what scale and traffic have set by hand.")
@output.formats(*rollout.FORMATS)
def deploy(given: documents.Given, target: str, how: rollout.How, tool: str | None, reset: bool) -> None:
    """Make services run as documents say, or as they were deployed before.

    Example: platformctl deploy -f service.yaml
    """
    alone = how.dry_run == "client" and not how.differ and given.files
    where = None if alone else targets.connect(target)
    wanted = of_files(given, where) if given.files else of_target(given, where)
    if tool is None and where is not None:
        wanted = _with_canaries(replace(wanted, reset=reset), where, how, given.strict)
        if not wanted.documents.services:
            return
    apply = releasing.apply if tool is None else helm.applied
    rollout.run(replace(wanted, reset=reset), where, how, strict=given.strict, apply=apply)


def _with_canaries(wanted: releasing.Wanted, where: "Target", how: rollout.How, strict: bool) -> releasing.Wanted:
    """Services that shall prove themselves are started as canaries; what is returned are the others."""
    plain = []
    for service in wanted.documents.services:
        alone = replace(wanted, documents=replace(wanted.documents, services=(service,)))
        policy = canary_start.asked_for(where, alone)
        if policy is None:
            plain.append(service)
        else:
            canary_start.judged(canary_start.Start(alone, policy, strict), where, how)
    return replace(wanted, documents=replace(wanted.documents, services=tuple(plain)))


def of_files(given: documents.Given, where: "Target | None") -> releasing.Wanted:
    """Only the services that are named; all of them are read and checked, for what the target has to offer."""
    read = given.read(where)
    return releasing.Wanted(replace(read, services=tuple(given.only(read.services))), given.offered(where))


def of_target(given: documents.Given, where: "Target | None") -> releasing.Wanted:
    """As the target keeps it, changed by --set."""
    if not given.names:
        raise UsageError("neither -f FILE nor a NAME is given", "platformctl deploy -f service.yaml")
    if len(given.names) > 1:
        raise UsageError("without -f only one service can be deployed at a time")
    assert where is not None
    release = history.releases(where, targets.At("", given.namespace).key(given.names[0]))[0]
    return releasing.Wanted(*releasing.stored(release, given.sets))
