"""A model that loads longer than KEDA's cooldown, with a real KEDA: it is loaded before anything goes to zero."""

import json
from contextlib import suppress
from typing import Any, Final

import pytest
import yaml
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.scenarios import Story, document

LOAD_S: Final = 40
COOLDOWN_S: Final = 6
# The least that KEDA allows a service that nobody has asked yet; as planned both are longer than a start may take.
TIMING: Final = {"cooldownPeriod": COOLDOWN_S, "initialCooldownPeriod": 0, "pollingInterval": 5}
MODEL: Final = f"""
import time

INPUTS = {{"x": ("FP32", [-1, 4])}}
OUTPUTS = {{"y": ("FP32", [-1, 4])}}
time.sleep({LOAD_S})


def predict(x):
    return {{"y": x}}
"""


def slow_to_load() -> str:
    made = yaml.safe_load(document("patient", mode="Standard", scaler="keda", most=1, uri="file:///code"))
    predictor = made["spec"]["predictor"]
    predictor["volumes"] = [{"name": "code", "configMap": {"name": "code"}}]
    predictor["model"] |= {
        "modelFormat": {"name": "python"},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    return str(yaml.safe_dump(made))


@pytest.fixture(scope="module")
def service(cluster: Cluster, namespace: str, gateway: Any) -> Story:
    story = Story(cluster, namespace, "patient")
    cluster.kubectl("create", "configmap", "code", "-n", namespace, f"--from-literal=model.py={MODEL}")
    story.deploy(slow_to_load(), "--no-wait")
    patch = json.dumps({"spec": TIMING})
    cluster.kubectl("patch", "scaledobject", "patient-predictor", "-n", namespace, "--type=merge", "-p", patch)
    return story


def loads_and_goes_to_zero(story: Story) -> None:
    """It never has fewer replicas than one while it loads, and none after that."""
    wanted: list[int] = []

    def deployment() -> Any:
        return story.cluster.get("deployment", "patient-predictor", "-n", story.namespace)

    def loaded() -> bool:
        found = deployment()
        wanted.append(int(found["spec"]["replicas"]))
        return bool(found["status"].get("readyReplicas"))

    took = seconds_until(loaded, "the model is loaded", 3 * LOAD_S)
    assert set(wanted) == {1}, f"replicas while it loaded: {wanted}"
    assert took > 2 * COOLDOWN_S, "a load that KEDA has had the time to end"
    seconds_until(lambda: deployment()["spec"]["replicas"] == 0, "zero, since nobody asks")


def test_a_first_load_that_nobody_asked_for_is_not_ended(service: Story) -> None:
    loads_and_goes_to_zero(service)


def test_a_load_whose_request_has_given_up_is_not_ended(service: Story) -> None:
    cluster, namespace = service.cluster, service.namespace
    host = service.status()["url"].removeprefix("http://")
    with suppress(TimeoutError):
        cluster.ask(host, "/v2/models/patient", through=cluster.gateway, timeout=2)
    seconds_until(lambda: bool(service.pods()), f"a request wakes {namespace}")
    loads_and_goes_to_zero(service)
    service.do("delete", service.name, "--no-wait")
