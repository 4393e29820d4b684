"""The web console before a real cluster: `platformctl api` shows services live, and a request by form reaches them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import Run
from tests.cluster.iris import document
from tests.cluster.real_cluster import Cluster
from tests.platform.console.test_routes import Visitor

from pilotlight.console.sessions import HEADER_PROOF

TOKEN = "a-token-of-this-test"
FLOWER = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}


@pytest.fixture(scope="module")
def visitor(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """Logged in to an API that stands beside the cluster."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "token").write_text(TOKEN)
    command = ["api", "--target", "kubernetes", "--port", "0", "--token-file", str(folder / "token")]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PILOTLIGHT_HOME": str(folder / "home")}
    program = str(Path(sys.executable).parent / "platformctl")
    with subprocess.Popen([program, *command], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Visitor(int(process.stdout.readline().strip().rpartition(":")[2]))
        assert made.enter(TOKEN) == 200
        yield made
        process.terminate()


def rows(visitor: Visitor) -> dict[str, Any]:
    """What the feed tells at first, by service."""
    connection = HTTPConnection("127.0.0.1", visitor.port, timeout=60)
    connection.request("GET", "/console/api/feed", headers={"Cookie": visitor.cookie, HEADER_PROOF: visitor.proof})
    stream = connection.getresponse()
    assert stream.readline() == b"event: services\n"
    told = json.loads(stream.readline().removeprefix(b"data: "))
    connection.close()
    return {row["id"]: row for row in told["changed"]}


@pytest.mark.parametrize("mode", ["Serverless", "Standard"])
def test_a_service_is_seen_and_asked(visitor: Visitor, platformctl: Run, namespace: str, mode: str) -> None:
    name = f"seen-{mode.lower()}"
    done = platformctl("deploy", "-f", "-", text=document(name, namespace, mode))
    assert done.returncode == 0, done.stderr
    seen = rows(visitor)[f"{namespace}/{name}"]
    assert (seen["phase"], seen["revisions"][0]["ready"]) == ("Ready", 1)
    path = f"/console/api/v1/namespaces/{namespace}/services/{name}"
    status, told = visitor.ask("POST", f"{path}/ask/v2/models/{name}/infer", FLOWER)
    assert (status, told["status"]) == (200, 200), told
    scores = json.loads(told["body"])["outputs"][0]["data"]
    assert scores.index(max(scores)) == 0
    kinds = {each["kind"] for each in visitor.ask("GET", f"{path}/live")[1]}
    assert ("Service" if mode == "Serverless" else "Deployment") in kinds
