"""Observe, follow and command canaries, for `platformctl canary` and `deploy`; checks and view of those with --percent.

The embedded platform and `platformctl api` tick judged canaries themselves. On a cluster without the API, a command
that follows a canary holds its lease and ticks it; another process may take over at any time.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pilotlight.canaries import stored_history
from pilotlight.canaries.start_request import running_canary
from pilotlight.errors import Conflict, NotFound, PlatformError, RolledBack, TimedOut, UsageError
from pilotlight.release import apply, history
from platformctl import output
from platformctl.canary import view
from platformctl.services import status_views, wait_ready

if TYPE_CHECKING:
    from pilotlight.canaries.canary_state import Canary, CanaryCommand, CanaryHistory
    from pilotlight.canaries.runner import CanaryRunner
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus, Target

POLL_S: Final = 0.3
RETRY_S: Final = 5.0
MAX_RETRIES: Final = 8


def read_history(target: "Target", key: "Key") -> "CanaryHistory":
    return stored_history.decode_history(target.canary(key))


def follow(
    target: "Target", key: "Key", ticker: output.ProgressLog, max_pause_s: float, *, wait_through_pauses: bool = True,
    timeout_s: float = math.inf,
) -> "Canary":  # fmt: skip
    """Wait until the canary ends and tick it if no other process does.

    Raises RolledBack, and TimedOut if a pause lasts longer than `max_pause_s` or all of it longer than `timeout_s`.
    Without `wait_through_pauses` an automatic pause raises PlatformError, or returns the canary if it only awaits
    promotion.
    """
    first = read_history(target, key).current
    if first is None:
        raise stored_history.no_running_canary(key)
    follower = CanaryFollower(target, key, first, max_pause_s, wait_through_pauses=wait_through_pauses)
    deadline = time.monotonic() + timeout_s
    try:
        while (canary := follower.poll()).phase not in ("Promoted", "RolledBack", "Superseded"):
            ticker.log(*view.line(canary))
            if not wait_through_pauses and _paused_itself(canary):
                break
            if time.monotonic() >= deadline:
                where = f"{canary.phase} at {canary.weight} %"
                raise TimedOut(f"the canary of {'/'.join(key)} has not ended after {timeout_s:g} s: {where}")
            time.sleep(max(POLL_S, target.poll_s))
    except KeyboardInterrupt:
        output.note(f"\n{describe_unattended(target, key)}")
        raise
    finally:
        follower.release()
        ticker.close()
    return _outcome(target, key, canary)


def describe_unattended(target: "Target", key: "Key") -> str:
    if target.embedded:
        return f"the canary continues: platformctl canary status {wait_ready.service_arguments(target, key)} -w"
    command = f"platformctl canary follow {wait_ready.service_arguments(target, key)}"
    return f"its state is kept; unless a controller runs it, continue with {command}"


class CanaryFollower:
    """Polls one canary until it ends, and ticks it when due if no other process holds the lease."""

    def __init__(
        self, target: "Target", key: "Key", canary: "Canary", max_pause_s: float,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep, *,
        wait_through_pauses: bool = True,
    ) -> None:  # fmt: skip
        self._target, self._key, self._canary, self._max_pause_s = target, key, canary, max_pause_s
        self._clock, self._sleep, self._wait_through_pauses = clock, sleep, wait_through_pauses
        self._runner = _runner(target)
        self._next_tick = 0.0
        self._failures = 0
        self._paused_at: float | None = None
        self._ticking_noted = False

    def poll(self) -> "Canary":
        """Return the current canary, or the last one read while the target is unreachable."""
        try:
            self._canary = self._find_canary()
            if self._runner is not None and self._clock() >= self._next_tick and not self._canary.ended_at:
                self._tick(self._runner)
            self._failures = 0
        except NotFound:
            raise
        except PlatformError as error:
            # A cluster may be unreachable for a while: only repeated failures end the wait.
            self._failures += 1
            if self._failures > MAX_RETRIES:
                raise
            output.note(f"next attempt in {RETRY_S:g} s: {error}")
            self._sleep(RETRY_S)
        self._check_pause(self._canary)
        return self._canary

    def _find_canary(self) -> "Canary":
        """Return the followed canary, even if another has replaced it since."""
        known = read_history(self._target, self._key)
        for canary in (*([known.current] if known.current else []), *known.past):
            if (canary.revision, canary.started_at) == (self._canary.revision, self._canary.started_at):
                return canary
        raise stored_history.no_running_canary(self._key)

    def release(self) -> None:
        """Release the lease; never raises."""
        if self._runner is not None:
            with suppress(PlatformError):
                self._runner.release_lease(self._key)

    def _tick(self, runner: "CanaryRunner") -> None:
        after = runner.tick(self._key)
        self._next_tick = self._clock() + runner.tick_interval_s(after or self._canary)
        self._canary = self._find_canary()
        if after is not None and not self._ticking_noted:
            self._ticking_noted = True
            output.note("this command runs the canary until it ends; Ctrl-C leaves it at its present step")

    def _check_pause(self, canary: "Canary") -> None:
        if canary.phase != "Paused" or (not self._wait_through_pauses and _paused_itself(canary)):
            self._paused_at = None
            return
        commands = _next_commands(self._target, self._key)
        if self._paused_at is None:
            self._paused_at = self._clock()
            output.note(f"waiting up to {self._max_pause_s:g} s for it to continue: {commands}")
        if self._clock() - self._paused_at >= self._max_pause_s:
            hint = f"{commands}, or wait longer: --timeout"
            raise TimedOut(f"the canary of {'/'.join(self._key)} is paused: {canary.reason}", hint)


def _paused_itself(canary: "Canary") -> bool:
    from pilotlight.canaries.next_action import PAUSED_MANUALLY

    return canary.phase == "Paused" and canary.reason != PAUSED_MANUALLY and not canary.command


def _next_commands(target: "Target", key: "Key") -> str:
    return f"platformctl canary resume {wait_ready.service_arguments(target, key)}, or promote, or abort"


def _outcome(target: "Target", key: "Key", canary: "Canary") -> "Canary":
    """Return a canary that was promoted or awaits promotion; raise for any other end."""
    from pilotlight.canaries.next_action import AWAITING_PROMOTION

    service, arguments = "/".join(key), wait_ready.service_arguments(target, key)
    if canary.phase == "Paused" and canary.reason == AWAITING_PROMOTION:
        output.note(f"paused at {canary.weight} % until you continue: platformctl canary promote {arguments}, or abort")
    elif canary.phase == "Paused":
        message = f"the canary of {service} has paused itself at {canary.weight} %: {canary.reason}"
        raise PlatformError(message, _next_commands(target, key))
    if canary.phase == "RolledBack":
        logs = f"platformctl logs {arguments} --replica {canary.revision}"
        hint = f"its logs: {logs}; what was measured: platformctl canary status {arguments}"
        raise RolledBack(f"{canary.revision} of {service} was rolled back: {canary.reason}", hint)
    if canary.phase == "Superseded":
        raise PlatformError(f"the canary {canary.revision} of {service} has ended: {canary.reason}")
    return canary


def request_action(target: "Target", key: "Key", command: "CanaryCommand") -> None:
    """Store a command for the process that ticks the canary."""
    for _ in range(stored_history.MAX_ATTEMPTS):
        state, version = stored_history.with_command(target.canary(key), key, command)
        with suppress(Conflict):
            target.save_canary(key, state, version)
            return
    raise stored_history.too_many_conflicts(key)


def wait_for_action(target: "Target", key: "Key", timeout_s: float, ticker: output.ProgressLog) -> "Canary":
    """Wait until the stored command has been executed; ticks the canary here if no other process does."""
    deadline, runner = time.monotonic() + timeout_s, _runner(target)
    try:
        while True:
            if runner is not None and running_canary(target, key) is not None:
                runner.tick(key)
            canary = read_history(target, key).current
            if canary is None:
                raise stored_history.no_running_canary(key)
            if not canary.command:
                return canary
            ticker.log("Requested", f"{canary.command}; run by {canary.holder or 'no process yet'}")
            if time.monotonic() >= deadline:
                hint = f"platformctl canary follow {wait_ready.service_arguments(target, key)} runs it from here"
                raise TimedOut(f"no process has executed {canary.command} within {timeout_s:g} s", hint)
            time.sleep(max(POLL_S, 2 * target.poll_s))
    finally:
        if runner is not None:
            runner.release_lease(key)


def _runner(target: "Target") -> "CanaryRunner | None":
    """Return a runner where no control process ticks canaries; imported here: most deploys need none."""
    if target.embedded:
        return None
    from pilotlight.canaries.runner import CanaryRunner

    return CanaryRunner(target)


def check(target: "Target", service: "Service", request: apply.ReleaseRequest) -> None:
    """Raise UsageError if the document equals the stable one or the traffic is set manually."""
    key = (service.namespace, service.name)
    overrides = target.status(key).overrides
    stable = history.stable_release(history.releases(target, key))
    document = history.comparable_document(service, request.capabilities)
    if document == history.released_document(stable):
        message = f"the document is the one that {'/'.join(key)} runs, so there is nothing to try"
        raise UsageError(message, "change it, or give another: -f FILE")
    if any(each.get("traffic") for each in overrides.values()):
        raise UsageError(f"the traffic of {'/'.join(key)} is set manually", f"platformctl traffic {key[1]} --reset")


def note_replaced(target: "Target", key: "Key") -> None:
    """Print a note if another canary of the service is replaced."""
    running = history.running_canary(history.releases(target, key))
    if running is not None:
        output.note(f"replaces the running canary: {', '.join(sorted(running.new_revisions))}")


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
    status_views.show([status], one=True, default="table")


def share(canary: history.RunningCanary, status: "ServiceStatus") -> str:
    """Return the current share, and the requested one if it differs."""
    has = max((each.percent for each in status.revisions if each.name in canary.new_revisions), default=canary.percent)
    if has == canary.percent:
        return f"has {has} %"
    overridden = any(each.get("traffic") for each in status.overrides.values())
    return f"should have {canary.percent} %, has {has} % {'as set manually' if overridden else 'until it responds'}"


def check_promotable(revision: "RevisionStatus", name: str) -> None:
    """Raise PlatformError unless the revision has traffic or has passed its probes."""
    if revision.model_state == "FailedToLoad":
        why = f"does not start: {revision.reason or 'its model cannot be loaded'}"
    elif not revision.percent and revision.model_state not in wait_ready.PROVEN:
        why = f"has never responded; it is {revision.model_state}"
    else:
        return
    hint = f"platformctl canary abort {name}, or wait for it: platformctl status {name} -w"
    raise PlatformError(f"{revision.name} cannot be promoted: it {why}", hint)
