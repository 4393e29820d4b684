"""What if: the recorded requests of a service replayed against other scaling settings, beside what happened.

The service times are the medians of the recorded latencies, the cold start is the latest one; a profile that
`platformctl profile` measures and `platformctl simulate` uses is more exact. It runs in the threads of the manifest
editor: the gateway is another process, so requests do not notice it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from pilotlight.api.history import checked_range
from pilotlight.api.route_types import Route
from pilotlight.api.services import SERVICE, key_of
from pilotlight.api.streams import int_parameter
from pilotlight.api.target_adapters import BACKEND, ENGINE
from pilotlight.console.manifest_routes import THREADS
from pilotlight.console.sessions import PREFIX
from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s.quantities import parse_duration

if TYPE_CHECKING:
    from pilotlight.simulation.result import Simulation
    from pilotlight.targets.local.history.points import ServiceHistory
    from pilotlight.targets.target import Release

COUNTS: Final = ("minReplicas", "maxReplicas", "scaleTarget")
WINDOW: Final = 'metadata.annotations["autoscaling.knative.dev/window"]'
MAX_REQUESTS: Final = 50_000  # two to three seconds of a core


async def what_if(request: web.Request) -> web.Response:
    """Return predicted replicas and p99 for the times of the recorded history of the last `seconds`."""
    if ENGINE not in request.app:
        raise NotFound("this target records no history", "platformctl simulate --trace prometheus:NAME")
    key, seconds = key_of(request), checked_range(int_parameter(request, "seconds", 900))
    history = await request.app[ENGINE].history(key, seconds, 0)
    status = await request.app[BACKEND].call(lambda target: target.status(key))
    settings = {name: request.query[name] for name in (*COUNTS, "window") if request.query.get(name)}
    release = request.app[ENGINE].releases(key)[0]
    component = "engine" if "engine" in {each.role for each in status.revisions} else "predictor"
    sets = sets_of(settings, component)
    cold_start = next((each.cold_start["total"] for each in status.revisions if each.cold_start), None)
    threads, loop = request.app[THREADS], asyncio.get_running_loop()
    return web.json_response(await loop.run_in_executor(threads, predicted, release, history, cold_start, sets))


def sets_of(settings: Mapping[str, str], component: str) -> list[str]:
    """Return the settings as `--set` takes them. Raise UsageError for one that is not a number or a duration."""
    for name, value in settings.items():
        if not (value.isdecimal() if name in COUNTS else parse_duration(value)):
            kind = "a whole number" if name in COUNTS else "a duration such as 30s"
            raise UsageError(f"{name} is {value[:50]}, must be {kind}")
    return [f"{WINDOW if name == 'window' else f'spec.{component}.{name}'}={value}" for name, value in settings.items()]


def predicted(
    release: "Release", history: "ServiceHistory", cold_start_s: float | None, sets: Sequence[str]
) -> dict[str, Any]:
    """Simulate the recorded requests with the changed settings; columns have an entry for each time of the history."""
    from pilotlight.release.apply import read_release
    from pilotlight.release.plan_and_render import plan_documents
    from pilotlight.simulation.scenario import scenario_of
    from pilotlight.simulation.service_times import Profile, ServiceTimes
    from pilotlight.simulation.simulate import simulate
    from pilotlight.simulation.traces.recorded import history_trace

    trace = history_trace("the history", history, zeros=True)
    if trace.requests > MAX_REQUESTS:
        hint = "choose a shorter range, or use platformctl simulate --trace history:NAME"
        raise UsageError(f"the range has {trace.requests} requests; at most {MAX_REQUESTS} are simulated here", hint)
    planned = plan_documents(*read_release(release, sets))
    scenario = scenario_of(planned.plans[0], planned.manifests(), embedded=True)
    measured = [value / 1000 for value in history.service.p50_ms if value is not None]
    profile = Profile(ServiceTimes((median(measured),)) if measured else ServiceTimes())
    if cold_start_s is not None:
        profile = profile.with_cold_start("process", cold_start_s)
    result = simulate(scenario, profile, trace)
    begin = next(
        at for at, rate in zip(history.at, history.service.requests_per_second, strict=True) if rate is not None
    )
    known = [0 if value is None else value for value in history.service.ready]
    return {
        **aligned(history, result, begin), "replica_seconds": result.replica_seconds,
        "cold_starts": result.cold_starts, "requests": result.requests,
        "recorded_replica_seconds": history.step * sum(known),
        "recorded_cold_starts": sum(filter(None, history.service.cold_starts)), "assumptions": list(result.assumptions),
    }  # fmt: skip


def aligned(history: "ServiceHistory", result: "Simulation", begin: int) -> dict[str, Any]:
    """Return replicas (the most in each interval) and p99 (the worst) at the times of the history."""
    changes = [at for at, _ in result.ready]
    ready, p99 = list[int | None](), list[float | None]()
    for at in history.at:
        start, end = at - begin, at - begin + history.step
        if end <= 0:
            ready.append(None)
            p99.append(None)
            continue
        first, last = bisect_right(changes, start), bisect_right(changes, end - 1e-9)
        ready.append(max((count for _, count in result.ready[max(0, first - 1) : last]), default=0))
        tails = [tail for second, _, tail in result.latency_over_time if start <= second < end]
        p99.append(1000 * max(tails) if tails else None)
    service = history.service
    return {"at": history.at, "step": history.step, "end": history.end, "ready": ready, "p99_ms": p99,
            "recorded_ready": service.ready, "recorded_p99_ms": service.p99_ms}  # fmt: skip


ROUTES: Final = (Route("GET", f"{PREFIX}{SERVICE}/what-if", what_if),)
