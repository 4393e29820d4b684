"""Makes a move of a canary true at the target: shares and ends are releases, probes are requests. Called by runner.

Every release is made over the generation that was looked at and no other: Conflict where anybody has deployed since.
"""

from contextlib import suppress

from msgspec.structs import replace

from pilotlight import history, releasing
from pilotlight.canary.looking import ROLLED_BACK, Standing, revision_names, row_of
from pilotlight.canary.model import Canary
from pilotlight.canary.moves import Finish, Move, Probe, Promote, RollBack, SetWeight, restarted
from pilotlight.canary.probing import Deadline, probe, unfit
from pilotlight.errors import PlatformError
from pilotlight.targets.target import ServiceStatus, Target


def act(target: Target, standing: Standing, move: Move, deadline: Deadline) -> int:
    """The generation that the service has then. The deadline is that of probes."""
    if isinstance(move, SetWeight):
        return _shared(target, standing, move.percent)
    if isinstance(move, Promote):
        return _shared(target, standing, 100)
    if isinstance(move, Finish) and move.phase == "Promoted":
        return _released(target, standing, history.again(standing.newest, None, "canary promoted"))
    if isinstance(move, RollBack):
        back = history.again(standing.stable(), None, f"{ROLLED_BACK}: {move.reason}")
        return _released(target, standing, back)
    if isinstance(move, Probe):
        _probe(target, standing, move, deadline)
    return standing.newest.generation


def begun_anew(target: Target, standing: Standing, at: str) -> Canary | None:
    """A deploy beside the stable side begins the canary anew; one that has taken its place ends all trying."""
    try:
        revision, before = revision_names(standing.newest, standing.stable())
    except PlatformError:
        return None
    if history.alone(standing.newest):
        return None
    generation = _shared(target, standing, 0)
    return replace(restarted(standing.canary, revision, generation, at), stable=before)


def why_unfit(target: Target, standing: Standing, deadline: Deadline) -> str:
    """Why no probe can be made of the example request; empty where one can."""
    stable = row_of(standing.status, standing.canary.stable)
    if stable is None:
        return ""
    return unfit(target, standing.status, stable, standing.canary.policy.example, deadline)


def released(target: Target, wanted: releasing.Wanted, over: int | None = None) -> ServiceStatus:
    """One service's release; shares that were set by hand end with it, so that its own hold. `over` is the generation
    whose place it takes: Conflict where another is there. Without it, whatever is there is planned against anew."""
    prepared, _ = releasing.prepare(wanted, target)
    if over is None:
        ((_, status),) = releasing.apply(wanted, prepared, target)
    else:
        status = target.apply(replace(prepared[0].release, expected=over), reset=wanted.reset)
    by_hand = any(each.get("traffic") for each in status.overrides.values())
    return target.traffic((status.namespace, status.name), None) if by_hand else status


def _shared(target: Target, standing: Standing, percent: int) -> int:
    shared = history.again(standing.newest, percent, f"canary {percent} %", judged=True)
    return _released(target, standing, shared)


def _released(target: Target, standing: Standing, wanted: releasing.Wanted) -> int:
    return released(target, wanted, standing.newest.generation).generation


def _probe(target: Target, standing: Standing, move: Probe, deadline: Deadline) -> None:
    named = ((standing.canary.revision, move.count), (standing.canary.stable, move.baseline))
    sides = [(row, count) for name, count in named if count and (row := row_of(standing.status, name)) is not None]
    for place, (row, count) in enumerate(sides):
        part = deadline.part(len(sides) - place)
        with suppress(PlatformError):  # the next measurement says what is missing, and the canary is paused by it
            probe(target, standing.status, row, standing.canary.policy.example, count, part)
