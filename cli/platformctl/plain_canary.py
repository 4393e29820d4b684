"""A canary that somebody judges by hand: what it stands beside, whether it may be promoted, what it looks like."""

from typing import TYPE_CHECKING

from pilotlight import history, releasing
from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import output, views, waiting

if TYPE_CHECKING:
    from pilotlight.spec.model import Service
    from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus, Target


def check(where: "Target", service: "Service", wanted: releasing.Wanted) -> None:
    """There must be another document to stand beside, and nobody's hand on the shares."""
    key = (service.namespace, service.name)
    written = where.status(key).overrides
    found = history.releases(where, key)
    if history.document(service, wanted.capabilities) == history.document_of(history.stable(found)):
        message = f"the document is the one that {'/'.join(key)} runs, so there is nothing to try"
        raise UsageError(message, "change it, or give another: -f FILE")
    if any(each.get("traffic") for each in written.values()):
        raise UsageError(f"the traffic of {'/'.join(key)} is set by hand", f"platformctl traffic {key[1]} --reset")


def tell_replaced(where: "Target", key: "Key") -> None:
    """One service has one canary: another takes the place of the one that runs."""
    running = history.canary(history.releases(where, key))
    if running is not None:
        output.note(f"takes the place of the canary that runs: {', '.join(sorted(running.fresh))}")


def found_in(target: "Target", key: "Key") -> history.Canary:
    found = history.canary(history.releases(target, key))
    if found is None:
        hint = f"platformctl canary start {key[1]} -f FILE --percent 20"
        raise NotFound(f"no canary of {'/'.join(key)} runs", hint)
    return found


def show_plain(target: "Target", key: "Key", name: str) -> None:
    """Nobody judges it: both sides with their shares, latency and errors."""
    found, present = found_in(target, key), target.status(key)
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
