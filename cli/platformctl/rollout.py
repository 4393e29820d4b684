"""The way of a release that `deploy`, `rollback` and `canary` share: planned, shown, applied, followed, its URL told.

`@rollout.options` gives a verb one argument, `how: How`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight import releasing
from pilotlight.errors import PlatformError
from platformctl import documents, output, views, waiting

if TYPE_CHECKING:
    from pilotlight.manifests import Change
    from pilotlight.targets.target import ServiceStatus, Target

FORMATS: Final = ("url", "json", "yaml", "table", "wide", "name")
TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class How:
    """What was typed about waiting, and about doing nothing."""

    wait: bool
    timeout: float
    dry_run: str | None
    differ: bool


def run(
    wanted: releasing.Wanted, where: "Target | None", how: How, *, strict: bool = False,
    apply: releasing.Apply = releasing.apply,
) -> None:  # fmt: skip
    """Everything is planned before anything is applied. Without a target it ends with the plan."""
    ticker = output.Ticker()
    prepared, warnings = releasing.prepare(wanted, where)
    documents.warn(warnings, strict)
    for one in prepared:
        ticker.say("Validated", f"{'/'.join(one.key)}: {one.plan.mode}, {len(one.manifests)} objects")
        for sentence in waiting.kept(one.key, one.overrides):
            output.note(sentence)
    if how.dry_run or where is None:
        if how.dry_run == "server" and where is not None:
            apply(wanted, prepared, where, dry_run=True)
            ticker.say("Checked", f"by {where.name}; nothing was changed")
        _show_plan(prepared, how.differ)
        return
    if how.differ:
        note_changes(prepared)
    if len(prepared) > 1:
        _refuse(wanted, prepared, where, apply)
    applied = apply(wanted, prepared, where)
    if wanted.retake:
        applied = [(one, _shared_as_written(where, status)) for one, status in applied]
    views.show(_followed(applied, where, how, ticker), one=False, default="url")


def _refuse(
    wanted: releasing.Wanted, prepared: "Sequence[releasing.Prepared]", where: "Target", apply: releasing.Apply
) -> None:
    """All that the target will not run are told at once, before any of the others is deployed."""
    refused = []
    for one in prepared:
        try:
            apply(wanted, [one], where, dry_run=True)
        except PlatformError as error:
            refused.append((one.plan.name, error))
    if refused:
        lines = [f"  {name}: {error}" for name, error in refused]
        hints = dict.fromkeys(error.hint for _, error in refused if error.hint)
        message = f"{len(refused)} of {len(prepared)} services cannot be deployed; nothing was done"
        raise PlatformError("\n".join([message, *lines]), "; ".join(hints))


def _shared_as_written(where: "Target", status: "ServiceStatus") -> "ServiceStatus":
    """Shares set by hand would hold against the release; they end once it is there, so that nothing else gets more."""
    written = {name: {"traffic": each["traffic"]} for name, each in status.overrides.items() if each.get("traffic")}
    for workload, shares in written.items():
        output.note(f"cleared what was set by hand: {workload} {views.overridden(shares)}")
    return where.traffic((status.namespace, status.name), None) if written else status


def _followed(
    applied: "Sequence[tuple[releasing.Prepared, ServiceStatus]]", where: "Target", how: How, ticker: output.Ticker
) -> "list[ServiceStatus]":
    """The statuses at the end; without waiting, those that applying gave."""
    expected = [
        waiting.Expected(one.key, status.generation, tuple(work.revision for work in one.plan.workloads))
        for one, status in applied
    ]
    for sentence in dict.fromkeys(sentence for _, status in applied for sentence in status.warnings):
        output.note(sentence)
    for (one, status), each in zip(applied, expected, strict=True):
        change = "unchanged" if status.generation == one.release.expected else f"generation {status.generation}"
        ticker.say("Applied", f"{', '.join(each.revisions) or each.key[1]} ({change})")
    try:
        return waiting.wait(where, expected, how.timeout, ticker) if how.wait else [status for _, status in applied]
    except KeyboardInterrupt:
        names = " ".join("/".join(one.key) for one, _ in applied)
        output.note(f"\nnobody waits any more, but it goes on: platformctl status {names}")
        raise
    finally:
        ticker.close()


def note_changes(prepared: "Sequence[releasing.Prepared]") -> None:
    """Said before they are made."""
    for line in _changed_lines(_changes(prepared)):
        output.note(line)


def _changes(prepared: "Sequence[releasing.Prepared]") -> "list[Change]":
    from pilotlight.manifests import diff

    found = [change for one in prepared for change in diff(one.before, one.manifests)]
    if not found:
        output.note("no difference")
    return found


def _changed_lines(changes: "Sequence[Change]") -> list[str]:
    return [output.diff_coloured(line) for change in changes for line in change.lines]


def _show_plan(prepared: "Sequence[releasing.Prepared]", differ: bool) -> None:
    """What would be done; with --diff the difference is what was asked for."""
    from platformctl.commands.diff import told

    services = [_planned(one) for one in prepared]
    if differ:
        changes = _changes(prepared)
        output.data({"services": services, "changes": [told(each) for each in changes]}, _changed_lines(changes))
        return
    names = [f"{'/'.join(one.key)} {work.revision}" for one in prepared for work in one.plan.workloads]
    output.data({"services": services}, names)


def _planned(one: releasing.Prepared) -> dict[str, Any]:
    return {
        "namespace": one.plan.namespace, "name": one.plan.name, "mode": one.plan.mode, "objects": len(one.manifests),
        "revisions": [work.revision for work in one.plan.workloads],
    }  # fmt: skip


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--wait and --timeout, as `wait` and `timeout`."""
    command = click.option(
        "--timeout", default=TIMEOUT_S, show_default=True, metavar="SECONDS", help="How long to wait."
    )(command)
    return click.option("--wait/--no-wait", default=True, show_default=True, help="Until it is done.")(command)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def called(**typed: Any) -> Any:
        own = {field.name: typed.pop(field.name) for field in fields(How)}
        return command(how=How(**own), **typed)

    made = click.option("--diff", "differ", is_flag=True, help="Show what changes, object by object.")(called)
    made = click.option(
        "--dry-run", type=click.Choice(["client", "server"]), is_flag=False, flag_value="client",
        help="Change nothing: plan here alone, or let the target check it too.",
    )(made)  # fmt: skip
    return waiting_options(made)
