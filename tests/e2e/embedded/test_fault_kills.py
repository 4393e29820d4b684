"""kill -9 and SIGSTOP of what serves: what is lost is what was in flight there, and only for a moment."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import Platform, commands_of, load, serverless
from tests.faults import asked_at_once, model, seconds, served

PAIR = "    containerConcurrency: 2"
OFTEN = "httpGet: {path: /v2/health/ready, port: 8080}, periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 1"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with Platform(tmp_path / "home") as running:
        yield running


def pair(platform: Platform, folder: Path, probe: str = "") -> None:
    """Two replicas of the slow model, each with at most two requests at a time."""
    mode = "    serving.kserve.io/deploymentMode: Standard" if probe else ""  # Knative's probes have no period
    platform.deploy(served(model(folder), least=2, most=2, predictor=PAIR, probe=probe, annotations=mode))
    platform.wait(lambda: platform.status("slow").revisions[0].ready == 2, "two replicas")


def gateway_of(platform: Platform) -> int:
    return next(pid for pid, command in commands_of(platform.home) if "pilotlight.gateway" in command.split("\0"))


def test_a_killed_replica_loses_what_it_had_and_is_replaced(platform: Platform, tmp_path: Path) -> None:
    pair(platform, tmp_path / "slow")
    before = set(platform.replicas())
    with asked_at_once(platform, 12, 0.2) as asked:
        platform.wait(lambda: any(answer.done() for answer in asked), "the first answer")
        os.kill(min(before), signal.SIGKILL)
    replies = [answer.result() for answer in asked]
    lost = [reply for reply in replies if reply.status != 200]
    assert len(lost) <= 2, lost
    assert all(reply.status == 502 for reply in lost), lost
    # Two are ready until its end is noticed, too.
    platform.wait(lambda: any("ended by signal 9" in event for event in platform.events()), "its end to be told")
    platform.wait(lambda: platform.status("slow").revisions[0].ready == 2, "the replacement")
    assert len(set(platform.replicas()) - before) == 1


def test_load_goes_on_over_a_killed_replica(platform: Platform) -> None:
    platform.deploy(serverless().replace("minReplicas: 0", "minReplicas: 2"))
    platform.wait(lambda: platform.status().revisions[0].ready == 2, "two replicas")
    with load(platform, clients=4) as traffic:
        platform.wait(lambda: len(traffic.answers) > 100, "the load")
        victim = platform.replicas()[0]
        os.kill(victim, signal.SIGKILL)
        platform.wait(lambda: platform.status().revisions[0].ready == 2, "the replacement")
        seen = len(traffic.answers)
        platform.wait(lambda: len(traffic.answers) > seen + 100, "more answers")
    assert len(traffic.failed) <= 4, traffic.failed
    assert victim not in platform.replicas()


def test_a_killed_gateway_refuses_nobody_and_comes_back_by_itself(platform: Platform) -> None:
    platform.deploy(serverless().replace("minReplicas: 0", "minReplicas: 1"))
    platform.wait_phase("Ready")
    replicas, gateway = platform.replicas(), gateway_of(platform)
    with load(platform, clients=4) as traffic:
        platform.wait(lambda: len(traffic.answers) > 100, "the load")
        os.kill(gateway, signal.SIGKILL)
        assert platform.ask().status == 200  # its connection waits in the socket until somebody takes it
        seen = len(traffic.answers)
        platform.wait(lambda: len(traffic.answers) > seen + 100, "more answers")
    assert not [answer for answer in traffic.failed if "Refused" in answer[1]]
    assert len(traffic.failed) <= 4, traffic.failed  # one for each connection that died
    assert gateway_of(platform) != gateway
    assert platform.replicas() == replicas


def test_a_gateway_killed_while_requests_wait_for_a_first_replica_serves_the_next_ones(platform: Platform) -> None:
    """What is at zero wakes as ever: the new gateway knows the table and asks anew."""
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    platform.wait_phase("Standby")
    os.kill(gateway_of(platform), signal.SIGKILL)
    reply = platform.ask()
    assert reply.status == 200
    assert int(reply.headers["x-pilotlight-cold-start"]) > 0


def test_a_replica_that_hangs_is_ejected_and_others_answer(platform: Platform, tmp_path: Path) -> None:
    pair(platform, tmp_path / "slow", OFTEN)
    victim = min(platform.replicas())
    os.kill(victim, signal.SIGSTOP)
    try:
        platform.wait(lambda: platform.status("slow").revisions[0].ready == 1, "it to be found out")
        path = "/slow/v2/models/slow/infer"
        assert {platform.ask(path, seconds(0.01)).status for _ in range(20)} == {200}
    finally:
        os.kill(victim, signal.SIGCONT)
    platform.wait(lambda: platform.status("slow").revisions[0].ready == 2, "two that answer")


def test_a_request_to_a_replica_that_hangs_ends_with_504_at_its_deadline(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(served(model(tmp_path / "slow"), predictor="    timeout: 2"))
    platform.wait_phase("Ready", name="slow")
    (victim,) = platform.replicas()
    os.kill(victim, signal.SIGSTOP)
    began = time.monotonic()
    reply = platform.ask("/slow/v2/models/slow/infer", seconds(0.01))
    assert reply.status == 504, reply
    assert 2 <= time.monotonic() - began < 30
    os.kill(victim, signal.SIGCONT)


@pytest.mark.long
def test_a_service_wakes_from_zero_after_any_number_of_crashes(platform: Platform) -> None:
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    for count in range(1, 5):  # the fourth one begins behind a backoff
        assert platform.ask().status == 200
        os.kill(platform.replicas()[0], signal.SIGKILL)
        platform.wait(lambda count=count: sum(" 9 " in event for event in platform.events()) == count, "its end")
    assert platform.ask().status == 200
    platform.wait_phase("Standby")
    assert platform.ask().status == 200
    assert "FailedToLoad" not in {row.model_state for row in platform.status().revisions}


def test_requests_wait_for_the_replacement_of_a_replica_that_was_terminated(platform: Platform) -> None:
    platform.deploy(serverless().replace("minReplicas: 0", "minReplicas: 1"))
    platform.wait_phase("Ready")
    with load(platform, clients=2) as traffic:
        for _ in range(5):
            seen = len(traffic.answers)
            platform.wait(lambda seen=seen: len(traffic.answers) > seen + 20, "answers")
            os.kill(platform.replicas()[0], signal.SIGTERM)
        seen = len(traffic.answers)
        platform.wait(lambda: len(traffic.answers) > seen + 20, "answers of the last replacement")
    assert not [answer for answer in traffic.failed if answer[0] == 503], traffic.failed
