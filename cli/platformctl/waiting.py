"""From applied to ready, told as it happens: `outlook` reads one status, `wait` looks until all serve or one fails."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pilotlight.errors import NotFound, PlatformError, TimedOut
from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus
from platformctl import logview, output

if TYPE_CHECKING:
    from pilotlight.targets.target import Target

# A start that failed once may work the next time: it counts when it has stood so long.
FAILED_S: Final = 1.0
LAST_LINES: Final = 20
SERVING: Final = ("Ready", "Standby", "Parked")
PROVEN: Final = ("Loaded", "Standby", "Parked")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a deploy has applied: the service at this generation or a later one, with these revisions."""

    key: Key
    generation: int
    revisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    phase: str
    message: str
    amount: str = ""
    done: bool = False
    failed: RevisionStatus | None = None


def outlook(status: ServiceStatus, expected: Expected) -> Outlook:
    """Where the deploy stands. The least advanced of its revisions decides."""
    found = {name: row for name in expected.revisions if (row := _row(status, name)) is not None}
    missing = [name for name in expected.revisions if name not in found]
    if missing and status.generation > expected.generation:
        return Outlook("Superseded", f"generation {status.generation} of another deploy took its place", done=True)
    if status.generation < expected.generation or missing:
        return Outlook("Applied", f"generation {expected.generation}")
    wanted = [found[name] for name in expected.revisions]
    unproven = [each for each in wanted if each.model_state not in PROVEN]
    broken = next((each for each in unproven if each.model_state == "FailedToLoad"), None)
    if broken is not None:
        return Outlook("Failed", f"{broken.name}: {broken.reason or 'the model cannot be loaded'}", failed=broken)
    if unproven:
        return _starting(unproven[0])
    shares = ", ".join(f"{each.percent} % to {each.name}" for each in status.revisions if each.percent)
    if status.phase in SERVING:
        return Outlook(status.phase, shares or status.message or "nothing to run", done=True)
    return Outlook("Probed", status.message or ", ".join(each.name for each in wanted))


def _row(status: ServiceStatus, revision: str) -> RevisionStatus | None:
    """Also under a name made from the planned one, which a target gives where something was set by hand."""
    exact = [each for each in status.revisions if each.name == revision]
    derived = [each for each in status.revisions if each.name.startswith(f"{revision}-")]
    return next(iter([*exact, *derived]), None)


def _starting(revision: RevisionStatus) -> Outlook:
    why = f": {revision.reason}" if revision.reason else ""
    if revision.model_state == "Loading":
        done, total = (int(revision.progress.get(name) or 0) for name in ("done_bytes", "total_bytes"))
        if done < total:
            message = f"{revision.name}: {output.size(total)} to fetch"
            return Outlook("Fetching", message, output.bar(done, total))
        return Outlook("Loading", revision.name)  # its reason is that of an earlier try
    return Outlook("Starting" if revision.starting else "Revision", f"{revision.name}{why}")


def wait(
    target: "Target", expected: Sequence[Expected], timeout_s: float, ticker: output.Ticker,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> list[ServiceStatus]:  # fmt: skip
    """The status of each once all serve. Raises with the cause when one fails, TimedOut when time is up."""
    until = clock() + timeout_s
    open_, done = {each.key: each for each in expected}, dict[Key, ServiceStatus]()
    failing: dict[Key, float] = {}
    while open_:
        for one in list(open_.values()):
            status = target.status(one.key)
            seen = outlook(status, one)
            if seen.failed is None:
                failing.pop(one.key, None)
                ticker.say(seen.phase, _named(one, seen.message, len(expected)), seen.amount, of=one.key)
            elif clock() - failing.setdefault(one.key, clock()) >= FAILED_S:
                target.note(status)
                raise failure(target, one, status, seen.failed)
            unanswered = target.probe(status) if seen.done and seen.phase == "Ready" else ""
            if unanswered:
                ticker.say("Probed", _named(one, unanswered, len(expected)), of=one.key)
            if seen.done and not unanswered:
                target.note(status)
                done[one.key] = status
                del open_[one.key]
            elif clock() >= until:
                raise _late(target, one, status, seen, timeout_s)
        if open_:
            sleep(target.poll_s)
    return [done[each.key] for each in expected]


@dataclass(frozen=True, slots=True)
class Condition:
    """What one service is waited for; `name` says it to a person."""

    name: str
    holds: Callable[[ServiceStatus], bool]


def until(
    target: "Target", key: Key, condition: Condition, timeout_s: float, ticker: output.Ticker,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> ServiceStatus:  # fmt: skip
    deadline = clock() + timeout_s
    while not condition.holds(status := target.status(key)):
        ticker.say(status.phase, status.message or f"waiting for {condition.name}")
        if clock() >= deadline:
            raise TimedOut(f"{'/'.join(key)} is not {condition.name} after {timeout_s:g} s: {status.message}")
        sleep(target.poll_s)
    return status


def until_gone(
    target: "Target", key: Key, timeout_s: float, ticker: output.Ticker,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    deadline = clock() + timeout_s
    while True:
        try:
            status = target.status(key)
        except NotFound:
            return
        ticker.say(status.phase, status.message or "its replicas end")
        if clock() >= deadline:
            raise TimedOut(f"{'/'.join(key)} is not gone after {timeout_s:g} s: {status.message}")
        sleep(target.poll_s)


def _named(one: Expected, message: str, count: int) -> str:
    """A revision's name has the service's in front; with several services every line says which."""
    return message if count == 1 else f"{one.key[1]}  {message}"


def failure(target: "Target", one: Expected, status: ServiceStatus, revision: RevisionStatus) -> PlatformError:
    """The reason, what happened last, the end of the log, who serves meanwhile, and what to type next."""
    reason = revision.reason or "its model cannot be loaded"
    evidence, previous = _evidence(target, one, revision.name, reason)
    parts = [f"{revision.name} does not start: {reason}", *evidence, _serving(status, one)]
    ended = " --previous" if previous else ""
    return PlatformError(
        "\n".join(filter(None, parts)), f"platformctl logs {_typed(one.key)}{ended} --replica {revision.name}"
    )


def _late(target: "Target", one: Expected, status: ServiceStatus, seen: Outlook, timeout_s: float) -> TimedOut:
    message = f"{'/'.join(one.key)} is not ready after {timeout_s:g} s: {seen.phase}, {seen.message}"
    evidence, _ = _evidence(target, one, one.revisions[-1] if one.revisions else "")
    parts = [message, *evidence, _serving(status, one)]
    hint = f"it goes on: platformctl status {_typed(one.key)} -w; or give it longer: --timeout"
    return TimedOut("\n".join(filter(None, parts)), hint)


def _evidence(target: "Target", one: Expected, revision: str, known: str = "") -> tuple[list[str], bool]:
    """The last event, unless it says what is `known`, the end of the log, and whether whoever wrote it has ended."""
    try:
        events = list(target.events(one.key, follow=False))[-1:]
        lines, ended = last_lines(target, one.key, revision)
    except PlatformError:
        return [], False
    told = [f"  last event: {each.reason}: {each.message}" for each in events if not known or known not in each.message]
    return [*told, *(f"  | {logview.readable(line)}" for line in lines)], ended


def last_lines(target: "Target", key: Key, replica: str) -> tuple[list[str], bool]:
    """Of a replica that has ended, else of one that runs; and which of the two."""
    for previous in (True, False):
        lines = list(target.logs(key, follow=False, previous=previous, replica=replica, tail=LAST_LINES))
        if lines:
            return lines[-LAST_LINES:], previous
    return [], True


def _serving(status: ServiceStatus, one: Expected) -> str:
    others = [each.name for each in status.revisions if each.percent and each.name not in one.revisions]
    return f"  {', '.join(others)} still serves" if others else ""


def _typed(key: Key) -> str:
    namespace, name = key
    return name if namespace == "default" else f"{namespace}/{name}"


def kept(key: Key, overrides: Mapping[str, Mapping[str, object]]) -> list[str]:
    """One sentence for each workload that something was set of by hand, with the verbs that take it back."""
    from platformctl.views import overridden

    return [
        f"kept as set by hand: {workload} {overridden(written)} ({_cleared_by(key, written)})"
        for workload, written in overrides.items()
        if written
    ]


def _cleared_by(key: Key, written: Mapping[str, object]) -> str:
    verbs = ["traffic"] * ("traffic" in written) + ["scale"] * bool(set(written) - {"traffic"})
    return " and ".join(f"platformctl {verb} {_typed(key)} --reset" for verb in verbs) + " clears it"
