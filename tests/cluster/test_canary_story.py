"""Canaries that judge themselves on a real cluster, by its real Prometheus: Knative's revisions, and two Deployments.

A good revision of the iris example promotes itself, one that answers late takes itself back, and no request is lost.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import Asker, failures, steady
from tests.cluster.scenarios import Story, document

MODES = {"Serverless": "hpa", "Standard": "keda"}
# Bounds that a busy machine does not cross, and that requests which wait for a batch do.
PROVE = (
    "--steps", "30,100", "--bake", "6s", "--interval", "2s", "--min-requests", "20", "--keep-stable", "2s",
    "--check", "error_rate<25%", "--check", "p50_ms<500", "--timeout", "240",
)  # fmt: skip


def iris(name: str, mode: str, memory: str = "512Mi", *, late: bool = False) -> str:
    text = document(name, mode=mode, scaler=MODES[mode], least=1, most=2, memory=memory)
    waits = "    batcher: {maxBatchSize: 32, maxLatency: 2000}\n"
    return text.replace("    minReplicas", f"{waits}    minReplicas") if late else text


@pytest.fixture(params=MODES)
def story(request: pytest.FixtureRequest, cluster: Cluster, namespace: str) -> Iterator[Story]:
    name = f"iris-{request.param.lower()}"
    told = Story(cluster, namespace, name)
    told.deploy(iris(name, request.param))
    yield told
    told.do("delete", name)
    told.wait_gone()  # the Lease goes with the service


def mode_of(story: Story) -> str:
    return next(mode for mode in MODES if story.name.endswith(mode.lower()))


def asked(story: Story) -> Any:
    """Clients of the service, through whatever leads to it."""
    base = story.cluster.ingress if mode_of(story) == "Serverless" else story.cluster.gateway
    host = story.status()["url"].removeprefix("http://")
    return steady(base, host, story.name, clients=3)


def canary(story: Story) -> Any:
    return json.loads(story.do("canary", "status", story.name, "-o", "json"))["canary"]


def test_a_bad_revision_takes_itself_back_and_a_good_one_promotes_itself(story: Story) -> None:
    (stable,) = story.shares()
    mode = mode_of(story)
    with asked(story) as askers:
        _answers(askers)
        late = story.run("canary", "start", "-f", "-", *PROVE, text=iris(story.name, mode, late=True))
        assert late.returncode == 5, late.stderr
        assert "p50_ms" in late.stderr
        seconds_until(lambda: story.shares() == {stable: 100}, "everything led back")

        good = story.run("canary", "start", "-f", "-", *PROVE, text=iris(story.name, mode, "640Mi"))
        assert good.returncode == 0, good.stderr
        assert "this command runs the canary" in good.stderr
    assert failures(askers) == []
    found = canary(story)
    assert (found["phase"], found["stable"]) == ("Promoted", stable)
    seconds_until(lambda: story.shares() == {found["revision"]: 100}, "everything led on")
    assert "RolledBack" in story.do("canary", "history", story.name)
    reasons = story.do("events", story.name)
    assert "CanaryRolledBack" in reasons
    assert "CanaryPromoted" in reasons
    lease = story.cluster.get("lease", f"{story.name}-canary", "-n", story.namespace)
    assert lease["spec"]["holderIdentity"] == found["holder"]


def _answers(askers: list[Asker]) -> None:
    seconds_until(lambda: all(asker.answered > 5 for asker in askers), "answers")


@pytest.mark.parametrize("story", ["Serverless"], indirect=True)
def test_another_machine_goes_on_where_one_was_killed(story: Story) -> None:
    own = {
        "KUBECONFIG": str(story.cluster.kubeconfig), "PILOTLIGHT_TARGET": "kubernetes",
        "PILOTLIGHT_NAMESPACE": story.namespace,
    }  # fmt: skip
    command = [str(Path(sys.executable).parent / "platformctl"), "canary", "start", "-f", "-", *PROVE, "--bake", "20s"]
    with asked(story) as askers:
        _answers(askers)
        started = subprocess.Popen(command, env={**os.environ, **own}, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert started.stdin is not None
        started.stdin.write(iris(story.name, "Serverless", "576Mi").encode())
        started.stdin.close()
        seconds_until(lambda: _weight(story) == 30, "its first step", 120)
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        assert started.stderr is not None
        started.stderr.close()
        done = story.run("canary", "follow", story.name, "--timeout", "240")
        assert done.returncode == 0, done.stderr
    assert failures(askers) == []
    assert canary(story)["phase"] == "Promoted"


def _weight(story: Story) -> int:
    done = story.run("canary", "status", story.name, "-o", "json")
    found = json.loads(done.stdout).get("canary", {}) if done.returncode == 0 else {}  # released, and not kept yet
    return int(found.get("weight", 0))


@pytest.mark.parametrize("story", ["Standard"], indirect=True)
def test_without_requests_either_side_is_asked_and_abort_leads_everything_back(story: Story) -> None:
    """A Deployment has no address of its own outside: probes go to its Service."""
    (stable,) = story.shares()
    words = (*PROVE, "--no-wait", "--manual", "--compare", "baseline", "--ratio", "50")
    story.do("canary", "start", "-f", "-", *words, text=iris(story.name, "Standard", "576Mi"))

    def waits() -> bool:
        followed = story.run("canary", "follow", story.name, "--timeout", "5")
        assert followed.returncode == 4, f"it waits for somebody to promote it: {followed.stderr}"
        found = canary(story)
        return (found["phase"], found["weight"]) == ("Paused", 30) and "every check passed" in found["reason"]

    seconds_until(waits, "every check has passed")
    assert story.run("canary", "abort", story.name).returncode == 0
    assert canary(story)["phase"] == "RolledBack"
    seconds_until(lambda: story.shares() == {stable: 100}, "everything led back")
