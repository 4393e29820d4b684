"""`platformctl canary`: a new revision beside the one that serves, with a share of its requests, until it is judged."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pilotlight import history, releasing
from pilotlight.errors import UsageError
from platformctl import (
    canaries,
    canary_options,
    canary_start,
    canary_view,
    documents,
    output,
    plain_canary,
    rollout,
    targets,
    views,
)
from platformctl.commands.deploy import of_files

if TYPE_CHECKING:
    from pilotlight.canary.model import Ledger, Wish
    from pilotlight.targets.target import Key, Target


@click.group(no_args_is_help=True)
def canary() -> None:
    """Try a new revision on a share of the requests, which grows while its checks pass.

    Example: platformctl canary start iris -f new.yaml --steps 5,25,50,100 --check 'error_rate<1%'
    """


@canary.command(short_help="Start a canary, or change the share of one.")
@documents.deploying
@targets.target_option
@targets.force_option
@targets.prometheus_option
@canary_options.options
@click.option(
    "--percent", type=click.IntRange(0, 99), help="Of the requests, for the new revision, until somebody decides."
)
@rollout.options
@output.formats(*rollout.FORMATS)
def start(
    given: documents.Given, target: str, percent: int | None, how: rollout.How, policy: canary_options.Written
) -> None:
    """Put a document's revision beside the one that serves, and give it requests step by step while it proves itself.

    With --percent nobody judges: it keeps that share until promote or abort. Ends with 5 when it was rolled back.

    Example: platformctl canary start iris -f new.yaml --steps 5,25,50,100 --bake 2m --check 'p99_ms<300'
    """
    where = targets.connect(target)
    wanted = of_files(given, where) if given.files else _running(given, where)
    if len(wanted.documents.services) != 1:
        names = ", ".join(service.name for service in wanted.documents.services)
        raise UsageError(f"a canary is one service's, the documents have {names}", "name it: canary start NAME -f FILE")
    (service,) = wanted.documents.services
    key = (service.namespace, service.name)
    plain_canary.check(where, service, wanted)
    if percent is None:
        canary_start.judged(canary_start.Start(wanted, policy.over(service.annotations), given.strict), where, how)
        return
    policy.refuse_with_percent()
    if canaries.running(where, key) is not None:
        hint = f"platformctl canary promote|pause|abort {key[1]}"
        raise UsageError(f"the canary of {'/'.join(key)} judges itself, so its share is not set by hand", hint)
    if given.files:
        plain_canary.tell_replaced(where, key)
    shared = history.with_share(wanted.documents, percent)
    rollout.run(replace(wanted, documents=shared, note=f"canary {percent} %"), where, how, strict=given.strict)


def _running(given: documents.Given, where: "Target") -> releasing.Wanted:
    if len(given.names) != 1:
        raise UsageError("neither -f FILE nor one NAME is given", "platformctl canary start NAME -f FILE")
    found = plain_canary.found_in(where, targets.At("", given.namespace).key(given.names[0]))
    return releasing.Wanted(*releasing.stored(found.release, given.sets))


@canary.command(short_help="Show where it stands, and its checks.")
@click.argument("name")
@targets.options
@click.option("-w", "--watch", is_flag=True, help="Again whenever something changes, until it ends.")
@output.formats("table", "json", "yaml", "wide", "name", "url")
def status(at: targets.At, name: str, watch: bool) -> None:
    """Show where it stands: shares, and every check with its query, value and verdict.

    Example: platformctl canary status iris -w
    """
    target, key = at.look(), at.key(name)
    ledger = canaries.ledger(target, key)
    if ledger.current is None or (ledger.current.ended_at and history.canary(history.releases(target, key))):
        plain_canary.show_plain(target, key, name)
        return
    _show(key, ledger)
    while watch and ledger.current is not None and not ledger.current.ended_at:
        time.sleep(canaries.LOOK_S)
        newer = canaries.ledger(target, key)
        if newer.current is not None and canary_view.page(key, newer.current) != canary_view.page(key, ledger.current):
            output.page_break()
            _show(key, newer)
        ledger = newer


def _show(key: "Key", ledger: "Ledger") -> None:
    assert ledger.current is not None
    output.data(canary_view.told(ledger), canary_view.page(key, ledger.current))


@canary.command("history", short_help="Show how canaries ended.")
@click.argument("name")
@targets.options
@output.formats("table", "json", "yaml")
def history_(at: targets.At, name: str) -> None:
    """Show the canaries that a service has had, newest first, and how each ended.

    Example: platformctl canary history iris
    """
    target, key = at.look(), at.key(name)
    ledger = canaries.ledger(target, key)
    if ledger.current is None:
        target.status(key)  # without a service there is no history either: NotFound
    output.data(canary_view.told(ledger), canary_view.history(ledger))


@canary.command(short_help="Leave the shares as they are for now.")
@click.argument("name")
@targets.options
@rollout.waiting_options
@output.formats(*rollout.FORMATS)
def pause(at: targets.At, name: str, wait: bool, timeout: float) -> None:
    """Leave the shares as they are until somebody resumes, promotes or aborts.

    Example: platformctl canary pause iris
    """
    _steered(at, name, "pause", timeout if wait else 0.0)


@canary.command()
@click.argument("name")
@targets.options
@rollout.waiting_options
@output.formats(*rollout.FORMATS)
def resume(at: targets.At, name: str, wait: bool, timeout: float) -> None:
    """Go on after a pause.

    Example: platformctl canary resume iris
    """
    _steered(at, name, "resume", timeout if wait else 0.0)


@canary.command(short_help="Wait until it ends, and run it meanwhile.")
@click.argument("name")
@targets.options
@targets.prometheus_option
@click.option("--timeout", default=rollout.TIMEOUT_S, show_default=True, metavar="SECONDS", help="For a pause to end.")
@output.formats(*rollout.FORMATS)
def follow(at: targets.At, name: str, timeout: float) -> None:
    """Wait until it ends, and run it meanwhile where nobody else does. Ends with 5 when it was rolled back.

    Example: platformctl canary follow iris --target kubernetes
    """
    target, key, ticker = at.connect(), at.key(name), output.Ticker()
    if canaries.running(target, key) is None:
        raise canaries.none_runs(key)
    ended = canaries.follow(target, key, ticker, timeout)
    ticker.say(ended.phase, ended.revision)
    views.show([target.status(key)], one=False, default="url")


def _steered(at: targets.At, name: str, wanted: "Wish", timeout: float) -> None:
    target, key, ticker = at.connect(), at.key(name), output.Ticker()
    canaries.wish(target, key, wanted)
    if timeout:
        found = canaries.granted(target, key, timeout, ticker)
        ticker.say(found.phase, found.reason or f"{found.weight} % to {found.revision}")
    ticker.close()
    views.show([target.status(key)], one=False, default="url")


@canary.command(short_help="Give it the next step, or everything.")
@click.argument("name")
@targets.options
@targets.force_option
@click.option("--full", is_flag=True, help="All requests at once, whatever steps are left.")
@rollout.options
@output.formats(*rollout.FORMATS)
def promote(at: targets.At, name: str, full: bool, how: rollout.How) -> None:
    """Give the new revision all requests; where it judges itself, those of its next step.

    Example: platformctl canary promote iris --full
    """
    target = at.connect()
    if canaries.running(target, at.key(name)) is not None:
        _steered(at, name, "promote-full" if full else "promote", how.timeout if how.wait else 0.0)
        return
    found = plain_canary.found_in(target, at.key(name))
    for each in target.status(at.key(name)).revisions:
        if each.name in found.fresh:
            plain_canary.check_answers(each, name)
    rollout.run(history.again(found.release, None, "canary promoted"), target, how)


@canary.command(short_help="Give all requests back to the revision before.")
@click.argument("name")
@targets.options
@targets.force_option
@rollout.options
@output.formats(*rollout.FORMATS)
def abort(at: targets.At, name: str, how: rollout.How) -> None:
    """Give all requests back to the revision before it; its document is the service's again.

    Example: platformctl canary abort iris
    """
    target = at.connect()
    if canaries.running(target, at.key(name)) is not None:
        _steered(at, name, "abort", how.timeout if how.wait else 0.0)
        return
    found = plain_canary.found_in(target, at.key(name))
    rollout.run(history.again(found.stable, None, "canary aborted"), target, how)
