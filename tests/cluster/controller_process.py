"""`platformctl controller` as a process of this machine, which a test may kill; with the CRDs that it needs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.real_cluster import Cluster

CRDS: Final = Path(__file__).parents[2] / "helm/inference-platform/files/crds"
KIND: Final = "inferenceservices.serving.kserve.io"


class Controller:
    """It acts on one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, log: Path) -> None:
        self.cluster, self.namespace, self.log = cluster, namespace, log
        self.start()

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "platformctl"), "controller", "-n", self.namespace]
        command += ["--lease-namespace", self.namespace]
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def running(cluster: Cluster, namespace: str, log: Path) -> Iterator[Controller]:
    """A controller; at the end the InferenceServices of the namespace are deleted by it."""
    controller = Controller(cluster, namespace, log)
    try:
        yield controller
    finally:
        # Before it ends: what it reconciles has a finalizer.
        cluster.kubectl("-n", namespace, "delete", KIND, "--all", "--timeout=90s")
        controller.stop()
    assert "this is a bug" not in log.read_text()


@contextmanager
def our_kinds(cluster: Cluster) -> Iterator[None]:
    """The CRDs of the chart; they go again, unless they were there before."""
    installed = cluster.get("crd", KIND)
    if installed and "pilotlight.dev/crd" not in (installed["metadata"].get("annotations") or {}):
        pytest.skip("this cluster has InferenceServices of somebody else")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=60s")
    try:
        yield
    finally:
        if not installed:
            cluster.kubectl("delete", "-f", str(CRDS), "--wait=false")
