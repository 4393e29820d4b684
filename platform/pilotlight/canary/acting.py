"""Execution of actions at the target: weights and ends are releases, probes are requests.

Every release is made over the observed generation: Conflict after a concurrent deployment.
"""

from contextlib import suppress

from msgspec.structs import replace

from pilotlight import history, releasing
from pilotlight.canary.looking import ROLLED_BACK_NOTE, RolloutState, revision_names, revision_status
from pilotlight.canary.model import Canary
from pilotlight.canary.moves import Action, Finish, Promote, RollBack, SendProbes, SetWeight, restart
from pilotlight.canary.probing import Deadline, example_error, send_probes
from pilotlight.errors import PlatformError
from pilotlight.targets.target import ServiceStatus, Target


def execute(target: Target, state: RolloutState, action: Action, deadline: Deadline) -> int:
    """Execute an action and return the generation of the service. The deadline is that of probes."""
    if isinstance(action, SetWeight):
        return _set_weight(target, state, action.percent)
    if isinstance(action, Promote):
        return _set_weight(target, state, 100)
    if isinstance(action, Finish) and action.phase == "Promoted":
        return _apply(target, state, history.redeploy_request(state.newest, None, "canary promoted"))
    if isinstance(action, RollBack):
        note = f"{ROLLED_BACK_NOTE}: {action.reason}"
        return _apply(target, state, history.redeploy_request(state.stable(), None, note))
    if isinstance(action, SendProbes):
        _send_probes(target, state, action, deadline)
    return state.newest.generation


def restart_superseded(target: Target, state: RolloutState, at: str) -> Canary | None:
    """Restart the canary for a newer release with a stable one; None if that release has all traffic."""
    try:
        revision, stable = revision_names(state.newest, state.stable())
    except PlatformError:
        return None
    if history.receives_all_traffic(state.newest):
        return None
    generation = _set_weight(target, state, 0)
    return replace(restart(state.canary, revision, generation, at), stable=stable)


def example_rejection(target: Target, state: RolloutState, deadline: Deadline) -> str:
    """Return why the example request cannot be a probe; empty if it can."""
    stable = revision_status(state.status, state.canary.stable)
    if stable is None:
        return ""
    return example_error(target, state.status, stable, state.canary.policy.example, deadline)


def apply_release(
    target: Target, wanted: releasing.ReleaseRequest, expected_generation: int | None = None
) -> ServiceStatus:
    """Apply the release of one service; manual traffic overrides end with it. Raise Conflict if its generation is not
    `expected_generation`; None: any."""
    prepared, _ = releasing.prepare(wanted, target)
    if expected_generation is None:
        ((_, status),) = releasing.apply(wanted, prepared, target)
    else:
        status = target.apply(replace(prepared[0].release, expected=expected_generation), reset=wanted.reset)
    overridden = any(each.get("traffic") for each in status.overrides.values())
    return target.traffic((status.namespace, status.name), None) if overridden else status


def _set_weight(target: Target, state: RolloutState, percent: int) -> int:
    return _apply(target, state, history.redeploy_request(state.newest, percent, f"canary {percent} %", judged=True))


def _apply(target: Target, state: RolloutState, wanted: releasing.ReleaseRequest) -> int:
    return apply_release(target, wanted, state.newest.generation).generation


def _send_probes(target: Target, state: RolloutState, action: SendProbes, deadline: Deadline) -> None:
    requested = ((state.canary.revision, action.count), (state.canary.stable, action.baseline))
    variants = [(revision_status(state.status, name), count) for name, count in requested if count]
    running = [(revision, count) for revision, count in variants if revision is not None]
    for index, (revision, count) in enumerate(running):
        part = deadline.part(len(running) - index)
        with suppress(PlatformError):  # the next measurement reports the missing requests and pauses the canary
            send_probes(target, state.status, revision, state.canary.policy.example, count, part)
