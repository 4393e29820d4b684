"""Updates, scaling and sleep under load: no request fails, though replicas come and go all the time."""

from pathlib import Path
from threading import Event, Thread

import pytest
from tests.embedded import FLOWER, Load, Platform, load, serverless
from tests.faults import asked_at_once, begun, model, served

from pilotlight.targets.target import Share

KEY = ("default", "iris")
FEW, MANY = 2_000, 10_000  # requests over one update or one canary
STANDARD = "    serving.kserve.io/deploymentMode: Standard"
PLACES = "    containerConcurrency: {}"


def raw(places: int) -> str:
    """A Deployment of two replicas; each number of places is another template."""
    document = serverless(annotations=STANDARD, extra=PLACES.format(places))
    return document.replace("minReplicas: 0", "minReplicas: 2")


def rolled(platform: Platform, places: int) -> None:
    before = platform.status().revisions[0].name
    platform.deploy(raw(places))
    # Two or more: under load the CPU may ask for a third.
    platform.wait(
        lambda: [(row.ready >= 2, row.name != before) for row in platform.status().revisions] == [(True, True)],
        "the new ones",
    )


def revised(platform: Platform, places: int) -> None:
    """A canary of 20 %, half and half by hand, then all of it."""
    stable = platform.status().revisions[0].name
    one = serverless(extra=PLACES.format(places)).replace("minReplicas: 0", "minReplicas: 1")
    platform.deploy(one.replace("maxReplicas: 3", "maxReplicas: 3\n    canaryTrafficPercent: 20"))
    platform.wait(lambda: {row.percent for row in platform.status().revisions} == {20, 80}, "the canary")
    newest = platform.status().revisions[0].name
    platform.target.traffic(KEY, [Share(stable, 50), Share(newest, 50)])
    platform.target.traffic(KEY, None)
    platform.deploy(one)
    platform.wait(lambda: platform.status().revisions[0].percent == 100, "all of it")
    platform.wait(lambda: len(platform.replicas()) == 1, "the old one to end")


def kept_up(platform: Platform, traffic: Load, count: int) -> None:
    platform.wait(lambda: len(traffic.answers) >= count, f"{count} answers", 600)
    assert not traffic.failed, traffic.failed[:5]


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_rolling_update_fails_no_request(platform: Platform, count: int) -> None:
    platform.deploy(raw(40))
    platform.wait(lambda: platform.status().revisions[0].ready == 2, "two replicas")
    with load(platform) as traffic:
        rolled(platform, 41)
        for turn in range(count // MANY * 4):
            rolled(platform, 42 + turn)
        kept_up(platform, traffic, count)
    assert not traffic.failed, traffic.failed[:5]


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_canary_that_becomes_the_service_fails_no_request(platform: Platform, count: int) -> None:
    platform.deploy(serverless().replace("minReplicas: 0", "minReplicas: 1"))
    platform.wait_phase("Ready")
    with load(platform) as traffic:
        revised(platform, 41)
        for turn in range(count // MANY * 4):
            revised(platform, 42 + turn)
        kept_up(platform, traffic, count)
    assert not traffic.failed, traffic.failed[:5]


def test_bounds_that_go_up_and_down_fail_no_request(platform: Platform) -> None:
    platform.deploy(serverless().replace("minReplicas: 0", "minReplicas: 1"))
    platform.wait_phase("Ready")
    with load(platform) as traffic:
        for number in (3, 1, 2, 1):
            platform.target.scale(KEY, {"minReplicas": number, "maxReplicas": number})
            platform.wait(lambda n=number: len(platform.replicas()) == n, f"{number} replicas")  # type: ignore[misc]
    assert traffic.answers
    assert not traffic.failed, traffic.failed[:5]


class Drip:
    """One request after the other on a connection of its own, until told to stop."""

    def __init__(self, platform: Platform) -> None:
        self.failed: list[object] = []
        self.count = 0
        self._platform, self._ending = platform, Event()
        self._thread = Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._ending.is_set():
            self.count += 1
            try:
                reply = self._platform.ask(body=FLOWER)
            except OSError as error:
                self.failed.append(error)
            else:
                if reply.status != 200:
                    self.failed.append(reply)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_requests_inside_every_shutdown_window_are_answered(platform: Platform, rounds: int) -> None:
    """They begin in the very moment in which the decision for zero shows, while the last replica ends."""
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    for turn in range(rounds):
        platform.wait(lambda: platform.status().revisions[0].desired == 0, f"zero, round {turn}")
        drip = Drip(platform)
        try:
            platform.wait(lambda: drip.count > 20, "requests", 120)  # noqa: B023
        finally:
            drip.stop()
        assert not drip.failed, drip.failed[:5]
    assert sum("no requests for 6 s" in event for event in platform.events()) >= rounds


def test_requests_that_are_slow_are_answered_though_their_replicas_must_go(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(served(model(tmp_path / "slow"), least=3, most=3))
    platform.wait(lambda: platform.status("slow").revisions[0].ready == 3, "three replicas")
    before = platform.replicas()
    with asked_at_once(platform, 6, 1.0) as asked:
        platform.wait(lambda: begun(tmp_path / "slow") >= 3, "every replica to be busy")
        platform.target.scale(("default", "slow"), {"minReplicas": 1, "maxReplicas": 1})
        platform.wait(lambda: len(platform.replicas()) == 1, "two to end")
    assert [answer.result().status for answer in asked] == [200] * 6
    assert set(platform.replicas()) < set(before)


def held(platform: Platform) -> int:
    """Requests that the gateway has, waiting or with a replica."""
    page = platform.ask("/metrics", None).body.decode()
    names = ("pilotlight_gateway_requests_waiting{", "pilotlight_gateway_requests_in_flight{")
    return sum(int(float(line.rpartition(" ")[2])) for line in page.splitlines() if line.startswith(names))


def test_requests_that_are_slow_are_answered_though_the_service_is_deleted(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(served(model(tmp_path / "slow")))
    platform.wait_phase("Ready", name="slow")
    with asked_at_once(platform, 3, 0.5) as asked:
        platform.wait(lambda: sum(answer.done() for answer in asked) + held(platform) >= 3, "all of them to have come")
        platform.target.delete(("default", "slow"))
    assert [answer.result().status for answer in asked] == [200] * 3
