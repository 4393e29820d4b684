"""`platformctl canary`: a new revision beside the one that serves, with a share of its requests, until it is judged."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import documents, history, output, releasing, rollout, targets, views, waiting
from platformctl.commands.deploy import of_files

if TYPE_CHECKING:
    from pilotlight.spec.model import Service
    from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus, Target


@click.group(no_args_is_help=True)
def canary() -> None:
    """Try a new revision on a share of the requests.

    Example: platformctl canary start iris -f new.yaml --percent 20
    """


@canary.command(short_help="Start a canary, or change the share of one.")
@documents.deploying
@targets.target_option
@click.option("--percent", type=click.IntRange(0, 99), required=True, help="Of the requests, for the new revision.")
@rollout.options
@output.formats(*rollout.FORMATS)
def start(given: documents.Given, target: str, percent: int, how: rollout.How) -> None:
    """Put a document's revision beside the one that serves; without -f, change the share of the canary that runs.

    Example: platformctl canary start iris -f new.yaml --percent 20
    """
    where = targets.connect(target)
    wanted = of_files(given) if given.files else _running(given, where)
    if len(wanted.documents.services) != 1:
        names = ", ".join(service.name for service in wanted.documents.services)
        raise UsageError(f"a canary is one service's, the documents have {names}", "name it: canary start NAME -f FILE")
    (service,) = wanted.documents.services
    _check(where, service, wanted)
    shared = history.with_share(wanted.documents, percent)
    rollout.run(replace(wanted, documents=shared, note=f"canary {percent} %"), where, how, strict=given.strict)


def _running(given: documents.Given, where: "Target") -> releasing.Wanted:
    if len(given.names) != 1:
        raise UsageError("neither -f FILE nor one NAME is given", "platformctl canary start NAME -f FILE --percent 20")
    found = _found(where, targets.At("", given.namespace).key(given.names[0]))
    return releasing.Wanted(*releasing.stored(found.release, given.sets))


def _check(where: "Target", service: "Service", wanted: releasing.Wanted) -> None:
    """There must be another document to stand beside, and nobody's hand on the shares."""
    key = (service.namespace, service.name)
    written = where.status(key).overrides
    found = history.releases(where, key)
    stable = (history.canary(found) or history.Canary(found[0], found[0], 100)).stable
    if history.document(service, wanted.capabilities) == history.document_of(stable):
        message = f"the document is the one that {'/'.join(key)} runs, so there is nothing to try"
        raise UsageError(message, "change it, or give another: -f FILE")
    if any(each.get("traffic") for each in written.values()):
        raise UsageError(f"the traffic of {'/'.join(key)} is set by hand", f"platformctl traffic {key[1]} --reset")


def _found(target: "Target", key: "Key") -> history.Canary:
    found = history.canary(history.releases(target, key))
    if found is None:
        hint = f"platformctl canary start {key[1]} -f FILE --percent 20"
        raise NotFound(f"no canary of {'/'.join(key)} runs", hint)
    return found


@canary.command()
@click.argument("name")
@targets.options
@output.formats(*views.SERVICE_FORMATS)
def status(at: targets.At, name: str) -> None:
    """Show both sides: their shares, latency and errors.

    Example: platformctl canary status iris
    """
    target = at.look()
    found, present = _found(target, at.key(name)), target.status(at.key(name))
    new = ", ".join(sorted(found.fresh)) or name
    output.note(
        f"{new} {share(found, present)} since {found.release.at}; before it: generation {found.stable.generation}"
    )
    views.show([present], one=True, default="table")


def share(found: history.Canary, present: "ServiceStatus") -> str:
    """What the canary has, and what it will have where that is another share."""
    has = max((each.percent for each in present.revisions if each.name in found.fresh), default=found.percent)
    if has == found.percent:
        return f"has {has} %"
    by_hand = any(each.get("traffic") for each in present.overrides.values())
    return f"wants {found.percent} %, has {has} % {'as set by hand' if by_hand else 'until it answers'}"


@canary.command()
@click.argument("name")
@targets.options
@rollout.options
@output.formats(*rollout.FORMATS)
def promote(at: targets.At, name: str, how: rollout.How) -> None:
    """Give the new revision all requests.

    Example: platformctl canary promote iris
    """
    target = at.connect()
    found = _found(target, at.key(name))
    for each in target.status(at.key(name)).revisions:
        if each.name in found.fresh:
            check_answers(each, name)
    rollout.run(history.again(found.release, None, "canary promoted"), target, how)


def check_answers(revision: "RevisionStatus", name: str) -> None:
    """One that has a share has answered; without one it must be known to."""
    if revision.model_state == "FailedToLoad":
        why = f"does not start: {revision.reason or 'its model cannot be loaded'}"
    elif not revision.percent and revision.model_state not in waiting.PROVEN:
        why = f"has never answered; it is {revision.model_state}"
    else:
        return
    hint = f"platformctl canary abort {name}, or wait for it: platformctl status {name} -w"
    raise PlatformError(f"{revision.name} cannot be promoted: it {why}", hint)


@canary.command(short_help="Give all requests back to the revision before.")
@click.argument("name")
@targets.options
@rollout.options
@output.formats(*rollout.FORMATS)
def abort(at: targets.At, name: str, how: rollout.How) -> None:
    """Give all requests back to the revision before it; its document is the service's again.

    Example: platformctl canary abort iris
    """
    target = at.connect()
    found = _found(target, at.key(name))
    rollout.run(history.again(found.stable, None, "canary aborted"), target, how)
