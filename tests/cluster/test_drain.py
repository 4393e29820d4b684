"""What people are told while Knative drains a replica that holds the only device its successor could have."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from tests.cluster.one_device import DEVICE, one_device
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.scenarios import Story, document

DRAINED = f"the pod requests 1 {DEVICE}; at most 0 is free, on"
HELD = "still holds 1 and is terminating: Knative drains it for 30 s"


def with_device(memory: str) -> str:
    window = ("autoscaling.knative.dev/window: 6s",)
    made = yaml.safe_load(document("scarce", annotations=window, most=1, memory=memory))
    made["spec"]["predictor"]["model"]["resources"]["limits"][DEVICE] = "1"
    return json.dumps(made)


@pytest.fixture(scope="module")
def service(cluster: Cluster, namespace: str) -> Iterator[Story]:
    with one_device(cluster):
        story = Story(cluster, namespace, "scarce")
        story.deploy(with_device("512Mi"))
        yield story
        story.do("delete", story.name)


def wait_ending(story: Story) -> None:
    seconds_until(lambda: not story.pods(), "its last pod is told to end")
    assert story.cluster.get("pods", "-n", story.namespace)["items"], "which takes Knative 30 s"


def test_status_names_the_replica_that_a_waiting_request_waits_for(service: Story) -> None:
    wait_ending(service)
    host = service.status()["url"].removeprefix("http://")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.cluster.ask, host, f"/v2/models/{service.name}", timeout=90)
        said: list[str] = []

        def cause() -> bool:
            said.append(service.run("status", service.name, "-o", "json").stdout)
            return DRAINED in said[-1] and HELD in said[-1]

        seconds_until(cause, "status names the cause", 25)
        assert waiting.result().status == 200


def test_deploy_names_the_replica_that_its_revision_waits_for(service: Story) -> None:
    wait_ending(service)
    done = service.run("deploy", "-f", "-", text=with_device("640Mi"))
    assert done.returncode == 0, done.stderr
    assert HELD in done.stderr
