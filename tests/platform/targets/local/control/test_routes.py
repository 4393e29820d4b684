"""The gateway's routes, from shares and replicas."""

from collections.abc import Sequence

from tests.platform.targets.local.runs import revision, revision_of, running, service, workload

from pilotlight.gateway.routing_table import Backend, Replica, Route
from pilotlight.targets.local.control.gateway_routes import routes
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.scaling.types import Fixed
from pilotlight.targets.target import Share

ONE, TWO = "iris-predictor-1", "iris-predictor-2"
ANSWERS = {ONE: (Replica("a", 1001),), TWO: (Replica("b", 1002),)}


def made(run: ServiceRun, answers: dict[str, tuple[Replica, ...]] | None = None) -> list[Route]:
    known = ANSWERS if answers is None else answers

    def ready(namespace: str, name: str) -> Sequence[Replica]:
        assert namespace == "default"
        return known.get(name, ())

    return list(routes(run, ready, lambda namespace, name: f"key of {namespace}/{name}"))


def split(*shares: Share) -> ServiceRun:
    run = running(service(workload(revision())))
    run.update(2, service(workload(revision(TWO, concurrency=4, timeout_s=20.0), *shares)), 0.0)
    revision_of(run, TWO).ready_once = True
    return run


def test_each_revision_that_can_be_reached_is_a_backend_with_its_share_and_tags() -> None:
    (route,) = made(split(Share(ONE, 80, "prev"), Share(TWO, 15, "latest"), Share(TWO, 5)))
    assert [(one.revision, one.weight, one.tags, one.replicas) for one in route.backends] == [
        (ONE, 80, ("prev",), ANSWERS[ONE]),
        (TWO, 20, ("latest",), ANSWERS[TWO]),
    ]
    assert route.backends[1].concurrency == 4
    assert route.timeout_s == 20.0
    assert (route.internal, route.key, route.hosts) == (False, "", ("iris.default.localhost",))


def test_a_service_has_failed_until_a_revision_of_it_has_been_ready() -> None:
    run = running(service(workload(revision())))
    revision_of(run).ready_once = False
    assert not made(run, {})[0].failed, "it starts"
    revision_of(run).failure = "exit code 1"
    assert made(run, {})[0].failed
    run = split(Share(ONE, 100))
    revision_of(run, TWO).failure = "exit code 1"
    assert not made(run, {})[0].failed, "it is at zero, or wakes"


def test_a_service_has_failed_if_one_of_its_components_has() -> None:
    """A transformer that is ready has no models without its predictor; an explainer serves none."""
    names = ("iris-transformer", "iris-explainer", "iris-predictor")
    run = running(service(*(workload(revision(f"{name}-1", name)) for name in names)))

    def failed(name: str) -> bool:
        for found in run.revisions.values():
            found.ready_once, found.failure = found.name != name, "exit code 1" if found.name == name else ""
        return made(run, {})[0].failed

    assert [failed(f"{name}-1") for name in names] == [True, False, True]


def test_a_canary_that_fails_does_not_fail_its_service() -> None:
    stable, canary = workload(revision(), mode="raw"), workload(revision("blue-predictor-1", "blue-predictor"))
    run = running(service(stable, canary, entry=(("iris-predictor", 90), ("blue-predictor", 10))))
    found = revision_of(run, "blue-predictor-1")
    found.ready_once, found.failure = False, "exit code 1"
    assert not made(run, {})[0].failed


def test_nobody_waits_longer_than_the_request_may_take_or_than_a_start_is_given() -> None:
    def hold(timeout_s: float, deadline_s: float) -> float:
        spec = revision(timeout_s=timeout_s, progress_deadline_s=deadline_s)
        return made(running(service(workload(spec))))[0].backends[0].hold_s

    assert (hold(30.0, 600.0), hold(300.0, 60.0)) == (30.0, 60.0)


def test_a_deployment_is_one_backend_whichever_template_its_replicas_have() -> None:
    run = running(service(workload(revision(scaling=Fixed(1)), mode="raw")))
    run.update(2, service(workload(revision(TWO, scaling=Fixed(1)), mode="raw")), 0.0)
    (route,) = made(run)
    assert [(one.revision, one.weight) for one in route.backends] == [(TWO, 100)]
    assert set(route.backends[0].replicas) == {*ANSWERS[ONE], *ANSWERS[TWO]}


def test_two_deployments_share_the_requests_of_a_canary() -> None:
    stable = workload(revision(scaling=Fixed(1)), mode="raw")
    canary = workload(revision("iris-blue-predictor-1", "iris-blue-predictor", Fixed(1)), mode="raw")
    spec = service(stable, canary, entry=(("iris-predictor", 90), ("iris-blue-predictor", 10)))
    (route,) = made(running(spec))
    assert [(one.workload, one.weight) for one in route.backends] == [
        ("iris-predictor", 90), ("iris-blue-predictor", 10),
    ]  # fmt: skip


def test_components_behind_another_have_ways_of_their_own_that_ask_for_a_key() -> None:
    spec = service(
        workload(revision("iris-transformer-1", "iris-transformer")), workload(revision()),
        access={"pilotlight.dev/rate-limit": "5/s"},
    )  # fmt: skip
    outer, inner = made(running(spec))
    assert [one.workload for one in outer.backends] == ["iris-transformer"]
    assert outer.rate is not None
    assert (outer.internal, outer.key) == (False, "key of default/iris")
    assert (inner.name, inner.internal, inner.key) == ("iris-predictor", True, "key of default/iris-predictor")
    assert (inner.rate, inner.access, inner.hosts) == (None, None, ())
    assert inner.backends[0].replicas == ANSWERS[ONE]


def test_the_gateway_has_no_route_of_a_service_that_is_not_exposed() -> None:
    spec = service(workload(revision("iris-transformer-1", "iris-transformer")), workload(revision()), exposed=False)
    assert [route.name for route in made(running(spec))] == ["iris-predictor"]
    assert made(running(service(workload(revision()), exposed=False))) == []


def failing(run: ServiceRun, answers: dict[str, tuple[Replica, ...]]) -> Backend:
    found = revision_of(run)
    found.failure, found.failures, found.start_failed, found.next_start = "no such file", 3, True, 7.0
    return made(run, answers)[0].backends[0]


def test_requests_are_not_held_for_a_revision_that_cannot_start_unless_a_replica_answers() -> None:
    run = running(service(workload(revision())))
    assert failing(run, {}).unavailable == f"{ONE} cannot start: no such file"
    assert failing(run, {}).starts_at == 7.0
    assert failing(run, ANSWERS).unavailable == ""
