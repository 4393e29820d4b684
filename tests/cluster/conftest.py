"""Fixtures of the tests that need a real cluster: `make cluster-test`.

Whatever uses one of them is marked `cluster`, and left out of `make unit`.
"""

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from tests.cluster.real_cluster import Cluster, find_cluster
from tests.cluster.real_helm import SYSTEM, require_gateway
from tests.http_reply import Reply

Run = Callable[..., subprocess.CompletedProcess[str]]
Ask = Callable[..., Reply]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The bed, or the cluster that KUBECONFIG names."""
    found = find_cluster(os.environ)
    if isinstance(found, str):
        if os.environ.get("PILOTLIGHT_REQUIRE_CLUSTER"):
            pytest.fail(found)
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh one for each module, under Pod Security `restricted`."""
    name = cluster.new_namespace(request.module.__name__.rpartition(".")[2].removeprefix("test_"))
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def platformctl(cluster: Cluster, namespace: str) -> Run:
    """platformctl(*words): with `--target kubernetes` and the module's namespace."""

    def run(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return cluster.platformctl(namespace, *words, text=text)

    return run


@pytest.fixture(scope="session")
def ask(cluster: Cluster) -> Ask:
    """ask(host, path, body, …): one request through the ingress; `through=cluster.gateway` takes the Gateway API's."""
    return cluster.ask


@pytest.fixture(scope="session")
def gateway(cluster: Cluster) -> Callable[[], list[str]]:
    """Names of the gateway's pods that are ready."""
    require_gateway(cluster)

    def ready() -> list[str]:
        found = cluster.get("pods", "-n", SYSTEM, "-l", "pilotlight.dev/gateway=pilotlight-gateway")["items"]
        return [
            pod["metadata"]["name"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and all(each["ready"] for each in pod["status"].get("containerStatuses") or [{"ready": False}])
        ]

    return ready
