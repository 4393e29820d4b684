"""Canaries without automatic judgement (`--percent`): checks before start and promotion, and their view."""

from typing import TYPE_CHECKING

from pilotlight import history, releasing
from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import output, views, waiting

if TYPE_CHECKING:
    from pilotlight.spec.model import Service
    from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus, Target


def check(target: "Target", service: "Service", request: releasing.ReleaseRequest) -> None:
    """Raise UsageError if the document equals the stable one or the traffic is set manually."""
    key = (service.namespace, service.name)
    written = target.status(key).overrides
    releases = history.releases(target, key)
    if history.document_without_percent(service, request.capabilities) == history.released_document(
        history.stable_release(releases)
    ):
        message = f"the document is the one that {'/'.join(key)} runs, so there is nothing to try"
        raise UsageError(message, "change it, or give another: -f FILE")
    if any(each.get("traffic") for each in written.values()):
        raise UsageError(f"the traffic of {'/'.join(key)} is set by hand", f"platformctl traffic {key[1]} --reset")


def note_replaced(target: "Target", key: "Key") -> None:
    """Print a note if another canary of the service is replaced."""
    running = history.running_canary(history.releases(target, key))
    if running is not None:
        output.note(f"takes the place of the canary that runs: {', '.join(sorted(running.new_revisions))}")


def find_canary(target: "Target", key: "Key") -> history.RunningCanary:
    canary = history.running_canary(history.releases(target, key))
    if canary is None:
        hint = f"platformctl canary start {key[1]} -f FILE --percent 20"
        raise NotFound(f"no canary of {'/'.join(key)} runs", hint)
    return canary


def show_plain(target: "Target", key: "Key", name: str) -> None:
    """Show both variants with traffic, latency and errors."""
    canary, status = find_canary(target, key), target.status(key)
    new = ", ".join(sorted(canary.new_revisions)) or name
    output.note(
        f"{new} {share(canary, status)} since {canary.release.at}; before it: generation {canary.stable.generation}"
    )
    views.show([status], one=True, default="table")


def share(canary: history.RunningCanary, status: "ServiceStatus") -> str:
    """Return the current share, and the requested one if it differs."""
    has = max((each.percent for each in status.revisions if each.name in canary.new_revisions), default=canary.percent)
    if has == canary.percent:
        return f"has {has} %"
    overridden = any(each.get("traffic") for each in status.overrides.values())
    return f"wants {canary.percent} %, has {has} % {'as set by hand' if overridden else 'until it answers'}"


def check_promotable(revision: "RevisionStatus", name: str) -> None:
    """Raise PlatformError unless the revision has traffic or has passed its probes."""
    if revision.model_state == "FailedToLoad":
        why = f"does not start: {revision.reason or 'its model cannot be loaded'}"
    elif not revision.percent and revision.model_state not in waiting.PROVEN:
        why = f"has never answered; it is {revision.model_state}"
    else:
        return
    hint = f"platformctl canary abort {name}, or wait for it: platformctl status {name} -w"
    raise PlatformError(f"{revision.name} cannot be promoted: it {why}", hint)
