"""The document of a microservice, planned and interpreted as the control process does it."""

import io
import json
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from pilotlight import __version__
from pilotlight.errors import UsageError
from pilotlight.microservices.jobs.service_document import service_document
from pilotlight.microservices.registry.records import Job
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.targets.local.capabilities import capabilities_of
from pilotlight.targets.local.manifests.interpret import interpret
from pilotlight.targets.local.manifests.service_spec_types import Mount, ServiceSpec
from pilotlight.targets.local.scaling.types import Fixed

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
TAO = Job(ID, "cosmos-rl", "hf_model://a/b", "nvcr.io/nvidia/tao:6", "umask 0 && run --job '{}'", host_port=8083)
OWN = Job(
    ID, "pilotlight", "/m", "pilotlight/predictor:0.1.0",
    'umask 0 && exec "${PILOTLIGHT_PYTHON:-python}" -m pilotlight_predictor --microservice', host_port=8083,
)  # fmt: skip


def spec(job: Job, target: str = "docker", gpus: int = 0) -> ServiceSpec:
    documents = read(Sources(("-",), stdin=io.StringIO(service_document(job, target, gpus)), namespace="acme"))
    capabilities = changed(Capabilities(), **capabilities_of(target, {}))
    (prepared,), _ = prepare(ReleaseRequest(documents, capabilities), None)
    return interpret(prepared.release.manifests)


def container(job: Job, target: str = "docker", gpus: int = 0) -> Any:
    (workload,) = spec(job, target, gpus).workloads
    return workload.revision.container


def test_a_microservice_is_one_replica_with_the_jobs_name_and_port_and_no_route() -> None:
    service = spec(TAO)
    (workload,) = service.workloads
    assert (service.exposed, workload.revision.scaling) == (False, Fixed(1))
    assert (workload.revision.grace_s, spec(OWN).workloads[0].revision.grace_s) == (10, 40)
    found = workload.revision.container
    assert (found.name, found.port, found.host_port, found.host_ip) == (ID, 8080, 8083, "0.0.0.0")


def test_what_the_api_starts_and_processes_of_this_machine_are_reached_from_it_alone() -> None:
    assert container(replace(TAO, closed=True)).host_ip == "127.0.0.1"
    assert container(OWN, "local").host_ip == "127.0.0.1"


def test_what_the_api_starts_as_a_process_has_sockets_and_the_isolation_of_its_org() -> None:
    text = f"{OWN.command} --model-path /m"
    for isolation in ("", "data", "sandbox"):
        found = container(replace(OWN, command=text, closed=True, isolation=isolation), "local")
        assert (found.host_port, found.isolation) == (0, isolation)
        assert found.args[-2:] == ("--model-path", "/m")


def test_the_command_follows_the_entry_point_of_other_images_and_replaces_ours() -> None:
    assert (container(TAO).command, container(TAO).args) == ((), ("/bin/sh", "-c", TAO.command))
    assert container(OWN).command == ("/bin/sh", "-c", OWN.command)


@pytest.mark.parametrize("text", ["$(HOME) $$ ${PATH} $HOME", "$$(A)", "$", "a$$$(b)"])
def test_dollars_arrive_as_they_were_written(text: str) -> None:
    found = container(replace(TAO, env={"NOTE": text}, command=f"echo '{text}'"))
    assert found.env["NOTE"] == text
    assert found.args[2] == f"echo '{text}'"


def test_secrets_are_references_to_the_services_own() -> None:
    job = replace(TAO, secrets=("HF_TOKEN",))
    assert container(job).secret_env == (("HF_TOKEN", f"ims-{ID}", "HF_TOKEN"),)


def test_it_has_the_memory_of_its_machine_and_its_gpus_where_there_are_some() -> None:
    assert (container(TAO).memory_limit, container(TAO).gpus) == (None, 0)
    assert container(replace(TAO, num_gpus=2), gpus=2).gpus == 2


def test_a_model_that_loads_for_long_or_fails_is_left_to_answer_for_itself() -> None:
    """Only its port is probed, and one that listens late is waited for."""
    for found in (container(TAO), container(OWN)):
        assert (found.readiness.kind, found.startup.kind, found.liveness) == ("tcp", "tcp", None)
        assert found.startup.failure_threshold * found.startup.period_s >= 3600
        assert not found.own_health


def test_folders_of_the_machine_are_mounted() -> None:
    job = replace(TAO, options={"mounts": "/models:/models:ro,/out:/out"})
    assert container(job).mounts == (Mount("/models", "/models", True), Mount("/out", "/out", False))
    with pytest.raises(UsageError, match="mounts = out:/out, must be FOLDER:PATH or FOLDER:PATH:ro"):
        service_document(replace(TAO, options={"mounts": "out:/out"}), "docker", 0)


def test_a_model_of_a_store_is_fetched_with_the_credentials_of_the_job() -> None:
    job = replace(TAO, fetch="s3://b/m", env={"AWS_REGION": "eu"}, secrets=("AWS_SECRET_ACCESS_KEY",))
    (fetch,) = container(job).fetches
    assert (fetch.uri, fetch.folder) == ("s3://b/m", f"/models/{ID}")
    assert fetch.env["AWS_REGION"] == "eu"
    for image in ("", "registry.local/pilotlight/predictor:2"):
        document = json.loads(service_document(replace(job, fetch_image=image), "kubernetes", 0))
        (init,) = document["spec"]["predictor"]["initContainers"]
        assert init["image"] == (image or f"pilotlight/predictor:{__version__}")
    assert fetch.secret_env == (("AWS_SECRET_ACCESS_KEY", f"ims-{ID}", "AWS_SECRET_ACCESS_KEY"),)
