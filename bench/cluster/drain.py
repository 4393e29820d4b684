"""A request right after a scale to zero, while the replica that ends holds a device that its successor needs.

The node advertises one device of a kind that nothing else asks for, so that the next pod cannot be scheduled before
the last one has ended. Beside that: a request at true zero, and how long the ending pod holds the device.
"""

import json
import os
import sys
import time
from typing import Any, Final

from tests.cluster.one_device import DEVICE, one_device
from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until

from bench.cluster.scalers import MODES, hurry
from bench.cluster.subjects import BODY, DOCUMENT, REQUESTS, WINDOW, deploy_documents
from bench.load import BenchError
from bench.rounds import Result, note_failure

Json = Any
ROUNDS: Final = 3
ZERO_S: Final = 180.0
ANSWER_S: Final = 120.0
AFTER_S: Final = 2.0  # a request that comes at once may still reach the replica that ends
LOOK_S: Final = 0.02  # a replica that drains nothing is gone in less than a second


def measure(cluster: Cluster, result: Result, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """Seconds of each round, by the autoscaler; one that fails is noted."""
    figures: dict[str, dict[str, list[float]]] = {}
    with one_device(cluster):
        for mode in MODES:
            try:
                figures[mode] = _rounds(cluster, mode, rounds)
            except BenchError as error:
                note_failure(result, f"drain, {mode}: {error}")
    return figures


def document(mode: str) -> dict[str, Json]:
    made: dict[str, Json] = json.loads(json.dumps(DOCUMENT))
    made["metadata"]["annotations"] = {**MODES[mode], **(WINDOW if mode == "knative" else {})}
    made["spec"]["predictor"]["model"]["resources"] = {
        "requests": {**REQUESTS, DEVICE: "1"}, "limits": {"memory": "1Gi", DEVICE: "1"},
    }  # fmt: skip
    return made


def _rounds(cluster: Cluster, mode: str, rounds: int) -> dict[str, list[float]]:
    namespace = cluster.new_namespace(f"bench-drain-{mode}")
    figures: dict[str, list[float]] = {"draining": [], "holding": [], "zero": [], "load": []}
    try:
        host = deploy_documents(cluster, namespace, document(mode))
        if mode == "keda":
            hurry(cluster, namespace, "iris")
        service = _Service(cluster, namespace, host, cluster.ingress if mode == "knative" else cluster.gateway)
        for number in range(rounds):
            service.ask()
            service.wait_ending()
            time.sleep(AFTER_S)
            figures["draining"].append(service.ask())
            since = service.wait_ending()
            seconds_until(lambda: not service.pods(), f"{mode} at zero", ZERO_S)
            figures["holding"].append(round(time.monotonic() - since, 3))
            figures["zero"].append(service.ask())
            figures["load"].append(os.getloadavg()[0])
            shown = "  ".join(f"{name} {values[-1]:.2f}" for name, values in figures.items())
            print(f"drain {mode} {number + 1}/{rounds}  {shown}", file=sys.stderr)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    return figures


class _Service:
    def __init__(self, cluster: Cluster, namespace: str, host: str, through: str) -> None:
        from kubernetes import client

        self._api: Any = client.CoreV1Api(our_cluster(cluster).connection.api)
        self._cluster, self._namespace, self._host, self._through = cluster, namespace, host, through

    def pods(self) -> list[Any]:
        """By the client library: kubectl takes longer to start than some replicas take to end."""
        return list(self._api.list_namespaced_pod(self._namespace).items)

    def wait_ending(self) -> float:
        """Return the time at which every pod is Terminating or gone."""
        deadline = time.monotonic() + ZERO_S
        while any(pod.metadata.deletion_timestamp is None for pod in self.pods()):
            if time.monotonic() > deadline:
                raise BenchError(f"{self._host} did not go to zero within {ZERO_S:g} s")
            time.sleep(LOOK_S)
        return time.monotonic()

    def ask(self) -> float:
        begin = time.monotonic()
        reply = self._cluster.ask(self._host, "/v2/models/iris/infer", BODY, through=self._through, timeout=ANSWER_S)
        if reply.status != 200:
            raise BenchError(f"{self._host} answered {reply.status}: {reply.body[:200]!r}")
        return round(time.monotonic() - begin, 3)
