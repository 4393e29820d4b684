"""Somebody who has the chart's role of deployers in one namespace, and no other right, uses a real cluster."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.cluster.iris import document
from tests.cluster.real_cluster import Cluster
from tests.cluster.real_helm import CHARTS, find_helm


@pytest.fixture(scope="module")
def deployer(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster with the eyes of that account."""
    role = f"deployer-of-{namespace}"
    words = (f"--set=roles.deployer={role}", "--show-only=templates/roles.yaml", "--kube-version=1.34.0")
    rendered = find_helm(cluster, namespace)("template", "x", str(CHARTS / "inference-platform"), *words)
    cluster.apply(next(each for each in yaml.safe_load_all(rendered) if each and each["metadata"]["name"] == role))
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "dev")
    account = f"--serviceaccount={namespace}:dev"
    cluster.kubectl("-n", namespace, "create", "rolebinding", "dev", f"--clusterrole={role}", account)
    yield replace(cluster, kubeconfig=kubeconfig(cluster, namespace, tmp_path_factory.mktemp("dev")))
    cluster.kubectl("delete", "clusterrole", role)


def kubeconfig(cluster: Cluster, namespace: str, folder: Path) -> Path:
    """The cluster's own, with the account's token in place of the credentials."""
    made = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
    token = cluster.kubectl("-n", namespace, "create", "token", "dev").strip()
    users = [{"name": each["name"], "user": {"token": token}} for each in made["users"]]
    path = folder / "kubeconfig"
    path.write_text(json.dumps({**made, "users": users}))
    return path


def test_doctor_finds_every_right_that_the_role_gives(deployer: Cluster, namespace: str) -> None:
    done = deployer.platformctl(namespace, "doctor", "-o", "json")
    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert (found["rights"]["level"], found["reading"]["level"]) == ("ok", "ok")
    assert found["gpus"]["message"] == "no right to look at nodes of the whole cluster"


@pytest.mark.parametrize("mode", ["Serverless", "Standard"])
def test_a_service_is_deployed_and_told_of(deployer: Cluster, namespace: str, mode: str) -> None:
    name = mode.lower()
    done = deployer.platformctl(namespace, "deploy", "-f", "-", text=document(name, namespace, mode))
    assert done.returncode == 0, done.stderr
    assert "model.loaded" in deployer.platformctl(namespace, "logs", name).stdout
    assert "Scheduled" in deployer.platformctl(namespace, "events", name).stdout
    done = deployer.platformctl(namespace, "delete", name)
    assert done.returncode == 0, done.stderr


def test_a_raw_service_is_asked_past_a_gateway_that_may_not_be_seen(deployer: Cluster, namespace: str) -> None:
    done = deployer.platformctl(namespace, "deploy", "-f", "-", text=document("asked", namespace, "Standard"))
    assert done.returncode == 0, done.stderr
    done = deployer.platformctl(namespace, "infer", "asked", "--data", "[5.1, 3.5, 1.4, 0.2]", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 3]
