"""Microservices on a real cluster: held to the contract of all platforms, and lived with from the command line."""

import json
import os
from pathlib import Path

import pytest
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.platform.microservices.jobs.contract import SECRET, Ground, PlatformContract, clean_environment

from pilotlight.errors import PlatformError
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import registry

MODEL = "/models/iris/model.onnx"  # in the bed's image
KINDS = "statefulsets,services,secrets,serviceaccounts,poddisruptionbudgets,controllerrevisions,pods"


@pytest.fixture
def ground(cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    environ = clean_environment(tmp_path)
    monkeypatch.setenv("KUBECONFIG", os.fspath(cluster.kubeconfig))
    options = {"namespace": namespace, "address_wait": "0", "cpu": "50m", "memory": "512Mi"}

    def written() -> str:
        """Everything but the Secret itself, which is where values belong."""
        kinds = "statefulsets,services,pods,events,configmaps,controllerrevisions"
        return cluster.kubectl("-n", namespace, "get", kinds, "--output=json")

    return Ground(TargetService("kubernetes", environ), environ, registry(environ), options, MODEL, written=written)


class TestKubernetes(PlatformContract):
    def never_was(self, ground: Ground) -> Entry:
        started = "2026-01-01T00:00:00+00:00"
        return Entry("kubernetes", "pilotlight", "http://nowhere:8080", started, namespace=ground.options["namespace"])


def left(cluster: Cluster, namespace: str, job_id: str) -> list[str]:
    found = cluster.get(KINDS, "-n", namespace, "-l", f"pilotlight.dev/service=ims-{job_id}")
    return [f"{each['kind']}/{each['metadata']['name']}" for each in (found or {"items": []})["items"]]


def test_its_objects_come_and_go_together(cluster: Cluster, namespace: str, ground: Ground) -> None:
    job = ground.job()
    with ground.started(job) as entry:
        ground.until_ready(job, entry)
        there = left(cluster, namespace, job.id)
        assert {f"Secret/ims-{job.id}", f"Service/ims-{job.id}"} <= set(there)
        assert [each.partition("/")[0] for each in there].count("StatefulSet") == 1
        service = cluster.get("service", f"ims-{job.id}", "-n", namespace)
        assert (service["spec"]["type"], service["spec"]["ports"][0]["port"]) == ("LoadBalancer", 8080)
        assert entry.host_url == f"http://ims-{job.id}.{namespace}.svc.cluster.local:8080"
        assert entry.platform_job_id == f"ims-{job.id}"
    seconds_until(lambda: left(cluster, namespace, job.id) == [], "nothing of it is left", 120)


def test_one_whose_stateful_set_somebody_deleted_is_stopped_and_a_stop_removes_the_rest(
    cluster: Cluster, namespace: str, ground: Ground
) -> None:
    job = ground.job()
    with ground.started(job) as entry:
        cluster.kubectl("-n", namespace, "delete", "statefulset", "-l", f"pilotlight.dev/service=ims-{job.id}")
        assert ground.until(job, entry, "stopped").reason
    seconds_until(lambda: left(cluster, namespace, job.id) == [], "the Secret and the Service are gone", 120)


def test_a_start_that_the_cluster_refuses_halfway_leaves_nothing(
    cluster: Cluster, namespace: str, ground: Ground
) -> None:  # fmt: skip
    ground.options = {**ground.options, "memory": "plenty"}
    job = ground.job()
    with pytest.raises(PlatformError, match=r"plenty|quantities"), ground.started(job):
        pass
    assert left(cluster, namespace, job.id) == []


def test_an_image_that_cannot_be_had_is_told(ground: Ground) -> None:
    ground.image = "dev.local/pilotlight/predictor:none"
    job = ground.job()
    with ground.started(job) as entry:
        seen = ground.until(job, entry, "failed")
    assert "dev.local/pilotlight/predictor:none cannot be pulled" in seen.reason
    assert seen.pod_name.startswith(f"ims-{job.id[:-1]}")
    assert seen.pod_status == "Pending"


@pytest.fixture
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_MICROSERVICE_REGISTRY", str(tmp_path / "registry.json"))
    monkeypatch.setenv("HF_TOKEN", SECRET)


@pytest.mark.usefixtures("own_registry")
def test_a_life_from_the_command_line(cluster: Cluster, namespace: str) -> None:
    def ctl(*words: str, code: int = 0) -> str:
        done = cluster.platformctl(namespace, "microservice", *words)
        assert done.returncode == code, done.stderr
        assert SECRET not in done.stdout + done.stderr
        return done.stdout

    words = ("--platform", "kubernetes", "--model-path", MODEL, "--address-wait", "0", "--ready", "-o", "json")
    started = json.loads(ctl("start", "pilotlight", *words))
    assert started["namespace"] == namespace
    status = json.loads(ctl("status", "-o", "json"))
    assert (status["state"], status["pod_status"], status["model"]) == ("running", "Running", "ready")
    assert status["pod_name"].startswith(f"ims-{started['job_id'][:-1]}")
    assert "ready" in ctl("logs")
    ctl("infer", "--prompt", "x", "--accept-defaults", code=2)  # iris is no model for a chat, and says so
    assert ctl("stop", "--yes") == f"stopped {started['job_id']}\n"
    seconds_until(lambda: left(cluster, namespace, started["job_id"]) == [], "nothing of it is left", 120)
