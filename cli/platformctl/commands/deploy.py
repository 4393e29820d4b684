"""`platformctl deploy`: documents become running services; what happens is told as it happens, the URL comes last."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.errors import NotFound, UsageError
from platformctl import documents, output, releasing, targets, views, waiting

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus, Target


@click.command()
@documents.deploying
@targets.target_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until the services answer.")
@click.option("--timeout", default=600.0, show_default=True, metavar="SECONDS", help="How long to wait.")
@click.option(
    "--dry-run", type=click.Choice(["client", "server"]), is_flag=False, flag_value="client",
    help="Change nothing: plan here alone, or let the target check it too.",
)  # fmt: skip
@click.option("--diff", "differ", is_flag=True, help="Show what changes, object by object.")
@click.option("--reset", is_flag=True, help="Forget what scale and traffic have set by hand.")
@output.formats("url", "json", "yaml", "table", "wide", "name")
def deploy(
    given: documents.Given, target: str, wait: bool, timeout: float, dry_run: str | None, differ: bool, reset: bool
) -> None:
    """Make services run as documents say, or as they were deployed before.

    platformctl deploy -f examples/services/iris.yaml
    """
    ticker = output.Ticker()
    where = None if dry_run == "client" and not differ and given.files else targets.connect(target)
    wanted = replace(wanted_of(given, where), reset=reset)
    prepared, warnings = releasing.prepare(wanted, where)
    documents.warn(warnings, given.strict)
    for one in prepared:
        count = len(one.manifests)
        ticker.say("Validated", f"{'/'.join(one.key)}: {one.plan.mode}, {count} objects")
        for sentence in waiting.kept(one.overrides):
            output.note(sentence)
    if differ:
        show_changes(prepared, as_data=bool(dry_run))
    if dry_run:
        check(wanted, prepared, where if dry_run == "server" else None, ticker, quiet=differ)
        return
    assert where is not None
    applied = releasing.apply(wanted, prepared, where)
    views.show(followed(applied, where, wait, timeout, ticker), one=False, default="url")


def wanted_of(given: documents.Given, where: "Target | None") -> releasing.Wanted:
    """Of the files, or where none is given, as the target keeps the services that are named."""
    if given.files:
        read = given.read()
        return releasing.Wanted(replace(read, services=tuple(given.only(read.services))), given.offered())
    if not given.names:
        raise UsageError("neither -f FILE nor a NAME is given", "platformctl deploy -f service.yaml")
    if len(given.names) > 1:
        raise UsageError("without -f only one service can be deployed at a time")
    assert where is not None
    key = targets.At("", given.namespace).key(given.names[0])
    release = next(iter(where.releases(key)), None)
    if release is None:
        raise NotFound(f"nothing of {'/'.join(key)} is kept", "give its document: -f FILE")
    return releasing.Wanted(*releasing.stored(release, given.sets))


def followed(
    applied: "Sequence[tuple[releasing.Prepared, ServiceStatus]]", where: "Target", wait: bool, timeout: float,
    ticker: output.Ticker,
) -> "list[ServiceStatus]":  # fmt: skip
    """The statuses at the end; without waiting, those that applying gave."""
    expected = [
        waiting.Expected(one.key, status.generation, tuple(work.revision for work in one.plan.workloads))
        for one, status in applied
    ]
    for (one, status), each in zip(applied, expected, strict=True):
        change = "unchanged" if status.generation == one.release.expected else f"generation {status.generation}"
        ticker.say("Applied", f"{', '.join(each.revisions) or each.key[1]} ({change})")
    try:
        return waiting.wait(where, expected, timeout, ticker) if wait else [status for _, status in applied]
    finally:
        ticker.close()


def show_changes(prepared: "Sequence[releasing.Prepared]", *, as_data: bool) -> None:
    """With a dry run the difference is what was asked for; else it is said before it is made."""
    from pilotlight.manifests import diff

    lines = [line for one in prepared for change in diff(one.before, one.manifests) for line in change.lines]
    for line in map(output.diff_coloured, lines):
        output.flowing(line) if as_data else output.note(line)
    if not lines:
        output.note("no difference")


def check(
    wanted: releasing.Wanted, prepared: "Sequence[releasing.Prepared]", where: "Target | None", ticker: output.Ticker,
    *, quiet: bool,
) -> None:  # fmt: skip
    """Says what a deploy would do."""
    if where is not None:
        releasing.apply(wanted, prepared, where, dry_run=True)
        ticker.say("Checked", f"by {where.name}; nothing was changed")
    names = [f"{'/'.join(one.key)} {work.revision}" for one in prepared for work in one.plan.workloads]
    if not quiet:
        output.text("".join(f"{name}\n" for name in names))
