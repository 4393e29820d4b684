"""A device that the cluster's node has once, of a kind that nothing else asks for; nothing is behind it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.cluster.real_cluster import Cluster, seconds_until

Json = Any
DEVICE: Final = "example.com/gpu"


@contextmanager
def one_device(cluster: Cluster, device: str = DEVICE) -> Iterator[None]:
    """As a device plugin would advertise it: the kubelet makes it allocatable, the scheduler counts it."""
    names = [each["metadata"]["name"] for each in cluster.get("nodes")["items"]]
    assert len(names) == 1, f"a second replica could get a device of another node: {names}"
    place = f"/status/capacity/{device.replace('/', '~1')}"

    def patch(*change: Json) -> None:
        words = ("patch", "node", names[0], "--subresource=status", "--type=json", "-p", json.dumps(change))
        cluster.kubectl(*words)

    def allocatable() -> str:
        return str(cluster.get("node", names[0])["status"]["allocatable"].get(device, ""))

    patch({"op": "add", "path": place, "value": "1"})
    try:
        seconds_until(lambda: allocatable() == "1", f"one {device} can be had", 60)
        yield
    finally:
        patch({"op": "remove", "path": place}, {"op": "remove", "path": place.replace("capacity", "allocatable")})
