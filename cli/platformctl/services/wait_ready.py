"""Wait from applied to ready: `progress` reads one status, `wait` polls until all serve or one fails."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pilotlight.errors import NotFound, PlatformError, RolledBack, TimedOut
from pilotlight.targets.target import STATUS_READ, Key, RevisionStatus, ServiceStatus, find_revision, service_argument
from platformctl import output
from platformctl.services import status_views

if TYPE_CHECKING:
    from pilotlight.targets.target import Target

# A failed start may succeed on retry: it counts once it has lasted this long.
FAILED_S: Final = 1.0
LAST_LINES: Final = 20
SERVING: Final = ("Ready", "Standby", "Parked")
PROVEN: Final = ("Loaded", "Standby", "Parked")
NO_PROCESS: Final = ("ModelChanged:", "could not be started:")  # reasons of starts that ended before a process ran
NO_CREDENTIALS: Final = "no credentials were found"  # of stores, by the predictor


@dataclass(frozen=True, slots=True)
class Expected:
    """An applied release: the service at this or a later generation, with these revisions."""

    key: Key
    generation: int
    revisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    phase: str
    message: str
    amount: str = ""
    done: bool = False
    failed: RevisionStatus | None = None


def progress(status: ServiceStatus, expected: Expected) -> Progress:
    """Return how far a deploy is. The least advanced of its revisions decides."""
    rows = {name: row for name in expected.revisions if (row := find_revision(status, name)) is not None}
    missing = [name for name in expected.revisions if name not in rows]
    if missing and status.generation > expected.generation and status.rolled_back:
        raise RolledBack(status.rolled_back, f"platformctl events {service_argument(expected.key)}")
    if missing and status.generation > expected.generation:
        return Progress("Superseded", f"replaced by generation {status.generation} of another deploy", done=True)
    if status.generation < expected.generation or missing:
        return Progress("Applied", f"generation {expected.generation}")
    revisions = [rows[name] for name in expected.revisions]
    unproven = [each for each in revisions if each.model_state not in PROVEN]
    broken = next((each for each in unproven if each.model_state == "FailedToLoad"), None)
    if broken is not None:
        return Progress("Failed", f"{broken.name}: {broken.reason or 'the model cannot be loaded'}", failed=broken)
    if unproven:
        return _starting(unproven[0])
    refused = next((each for each in status.adapters if each.model_state == "FailedToLoad"), None)
    if refused is not None:
        return Progress("Failed", f"adapter {refused.tags[0]} was not loaded: {refused.reason}", failed=refused)
    loading = [each.tags[0] for each in status.adapters if each.model_state == "Loading"]
    if loading:
        return Progress("Loading", f"adapter {', '.join(loading)}")
    shares = ", ".join(f"{each.percent} % to {each.name}" for each in status.revisions if each.percent)
    # At zero, what its first answers were does not change before the next request.
    failing = status.phase == "Degraded" and not status.verified and not any(each.desired for each in revisions)
    if status.phase in SERVING or failing:
        message = shares or status.message or "nothing to run"
        if not status.verified:
            return Progress(status_views.phase(status), f"{message}; {status.message}", done=True)
        return Progress(status.phase, message, done=True)
    return Progress("Probed", status.message or ", ".join(each.name for each in revisions))


def _starting(revision: RevisionStatus) -> Progress:
    why = f": {revision.reason}" if revision.reason else ""
    if revision.model_state == "Loading":
        done, total = (int(revision.progress.get(name) or 0) for name in ("done_bytes", "total_bytes"))
        if done < total:
            message = f"{revision.name}: {output.size(total)} to fetch"
            return Progress("Fetching", message, output.bar(done, total))
        return Progress("Loading", revision.name)  # the reason is that of an earlier attempt
    if any(replica.state == "pending" for replica in revision.replicas):
        return Progress("Pending", f"{revision.name}{why}")
    state = "Starting" if revision.starting else "Failed" if revision.model_state == "FailedToLoad" else "Pending"
    return Progress(state, f"{revision.name}{why}")


def wait(
    target: "Target", expected: Sequence[Expected], timeout_s: float, ticker: output.ProgressLog,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> list[ServiceStatus]:  # fmt: skip
    """Return the statuses once all services serve. Raises the cause if one fails, TimedOut at the deadline."""
    deadline = clock() + timeout_s
    pending, done = {each.key: each for each in expected}, dict[Key, ServiceStatus]()
    failing: dict[Key, float] = {}
    while pending:
        for one in list(pending.values()):
            status = target.status(one.key)
            state = progress(status, one)
            if state.failed is None:
                failing.pop(one.key, None)
                if state.message != STATUS_READ:
                    ticker.log(state.phase, _with_service(one, state.message, len(expected)), state.amount, of=one.key)
            elif clock() - failing.setdefault(one.key, clock()) >= FAILED_S:
                target.record_status(status)
                raise failure(target, one, status, state.failed)
            unanswered = target.probe(status) if state.done and status.phase == "Ready" else ""
            if unanswered:
                ticker.log("Probed", _with_service(one, unanswered, len(expected)), of=one.key)
            if state.done and not unanswered:
                target.record_status(status)
                done[one.key] = status
                del pending[one.key]
            elif clock() >= deadline:
                raise _timeout_error(target, one, status, state, timeout_s)
        if pending:
            sleep(target.poll_s)
    return [done[each.key] for each in expected]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition to wait for; `name` is for messages."""

    name: str
    holds: Callable[[ServiceStatus], bool]


def until(
    target: "Target", key: Key, condition: Condition, timeout_s: float, ticker: output.ProgressLog,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> ServiceStatus:  # fmt: skip
    deadline = clock() + timeout_s
    while not condition.holds(status := target.status(key)):
        ticker.log(status.phase, status.message or f"waiting until it is {condition.name}")
        if clock() >= deadline:
            decisions = (f"last decision: {each.decision}" for each in status.revisions if each.decision)
            reason = status.message or next(decisions, f"phase {status.phase}")
            raise TimedOut(f"{'/'.join(key)} is not {condition.name} after {timeout_s:g} s: {reason}")
        sleep(target.poll_s)
    return status


def wait_deleted(
    target: "Target", key: Key, timeout_s: float, ticker: output.ProgressLog,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    deadline = clock() + timeout_s
    while True:
        try:
            status = target.status(key)
        except NotFound:
            return
        ticker.log(status.phase, status.message or "its replicas end")
        if clock() >= deadline:
            raise TimedOut(f"{'/'.join(key)} is not gone after {timeout_s:g} s: {status.message}")
        sleep(target.poll_s)


def _with_service(one: Expected, message: str, count: int) -> str:
    """Prefix the message with the service's name if several are waited for."""
    return message if count == 1 else f"{one.key[1]}  {message}"


def failure(target: "Target", one: Expected, status: ServiceStatus, revision: RevisionStatus) -> PlatformError:
    """Return the error: reason, last event, end of the log, serving revisions, and the command to type next."""
    reason = revision.reason or "its model cannot be loaded"
    if revision in status.adapters:
        message = f"adapter {revision.tags[0]} of {service_argument(one.key)} was not loaded: {reason}"
        return PlatformError(message, "fix it and deploy again; the service serves its other models")
    evidence, previous = _evidence(target, one, revision.name, reason)
    service, left = service_arguments(target, one.key), _serving(status, one)
    if status.phase in ("Failed", "Progressing"):
        left = left or f"  nothing of it serves; fix it and deploy again, or: platformctl delete {service}"
    message = "\n".join(filter(None, [f"{revision.name} does not start: {reason}", *evidence, left]))
    if NO_CREDENTIALS in reason and target.name == "local":
        fix = "the platform has the variables of the shell that started it"
        return PlatformError(message, f"{fix}: set them, then platformctl down; platformctl up")
    if reason.startswith(NO_PROCESS):
        return PlatformError(message, f"platformctl events {service}")
    return PlatformError(message, f"platformctl logs {service}{' --previous' * previous} --replica {revision.name}")


def service_arguments(target: "Target", key: Key) -> str:
    """Return the service as the next command must name it: `iris --target docker`."""
    return service_argument(key) + ("" if target.name == "local" else f" --target {target.name}")


def _timeout_error(
    target: "Target", one: Expected, status: ServiceStatus, seen: Progress, timeout_s: float
) -> TimedOut:
    message = f"{'/'.join(one.key)} is not ready after {timeout_s:g} s: {seen.phase}, {seen.message}"
    evidence, _ = _evidence(target, one, one.revisions[-1] if one.revisions else "")
    parts = [message, *evidence, _serving(status, one)]
    hint = f"it continues: platformctl status {service_arguments(target, one.key)} -w; or wait longer: --timeout"
    return TimedOut("\n".join(filter(None, parts)), hint)


def _evidence(target: "Target", one: Expected, revision: str, known: str = "") -> tuple[list[str], bool]:
    """Return the last event, unless an event says `known`, the end of the log, and whether its replica has ended.

    Of a start without a process there is no log: what `last_lines` would find is another replica's.
    """
    try:
        events = list(target.events(one.key, follow=False))
        lines, ended = ([], True) if known.startswith(NO_PROCESS) else last_lines(target, one.key, revision)
    except PlatformError:
        return [], False
    reported = bool(known) and any(known in each.message for each in events)
    event_lines = [] if reported else [f"  last event: {each.reason}: {each.message}" for each in events[-1:]]
    quoted = "\n".join(without_reason(lines, known)).splitlines()  # a traceback has several
    return [*event_lines, *(f"  | {line}" for line in quoted)], ended


def without_reason(lines: Sequence[str], reason: str) -> list[str]:
    """Return a log as text; if it repeats `reason`, without that and without the routine lines around it."""
    text = [output.readable(line) for line in lines]
    cause = re.sub(r"^model '[^']*': ", "", reason).partition("; ")[0]  # the supervisor may have added a fix
    if not cause or not any(cause in each for each in text):
        return text
    tracebacks = (each.partition("\n")[2] if cause in each else each for each in text)
    return [each for each in tracebacks if each and not re.match(r"[\d:.]+ INFO ", each)]


def last_lines(target: "Target", key: Key, replica: str) -> tuple[list[str], bool]:
    """Return the log's end of an ended replica, else of a running one; and whether it has ended."""
    for previous in (True, False):
        lines = list(target.logs(key, follow=False, previous=previous, replica=replica, tail=LAST_LINES))
        if lines:
            return lines[-LAST_LINES:], previous
    return [], True


def _serving(status: ServiceStatus, one: Expected) -> str:
    others = [each.name for each in status.revisions if each.percent and each.name not in one.revisions]
    return f"  {', '.join(others)} still serves" if others else ""


def override_notes(key: Key, overrides: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return a note per workload with manual overrides, with the commands that reset them."""
    return [
        f"override kept: {workload} {status_views.format_overrides(written)} ({_reset_hint(key, written)})"
        for workload, written in overrides.items()
        if written
    ]


def _reset_hint(key: Key, written: Mapping[str, object]) -> str:
    verbs = ["traffic"] * ("traffic" in written) + ["scale"] * bool(set(written) - {"traffic"})
    return " and ".join(f"platformctl {verb} {service_argument(key)} --reset" for verb in verbs) + " clears it"
