"""The file of docs/how-to/targets.md, "One file, four targets", on a real cluster, by the page's own command."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.bed.places import NODE_IP, places
from tests.cluster.real_cluster import Cluster
from tests.e2e.targets.one_file import command, deploy_ask_watch_scale_and_delete, model_store
from tests.object_stores import moto


@pytest.fixture
def shell(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The variables that the file names, of a store on this machine, where pods reach it."""
    if cluster.kubeconfig != places(os.environ).kubeconfig:
        pytest.skip("only the pods of the test bed reach a server of this machine")
    with moto(NODE_IP) as endpoint:
        for name, value in model_store(endpoint).env.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.usefixtures("shell")
def test_one_file_is_deployed_asked_scaled_and_deleted(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    words = [namespace if word == "models" else word for word in command("kubernetes", tmp_path)]
    deploy_ask_watch_scale_and_delete(partial(cluster.platformctl, namespace), words, "kubernetes")
    assert cluster.get("secret", "model-store", "-n", namespace), "it may be of other services too"
