"""Microservices on a cluster, without one: objects that an API server would take, what is refused first, what is seen.

The same platform runs the contract on a real cluster in tests/cluster.
"""

import io
import json
import threading
from collections.abc import Callable
from dataclasses import replace as changed
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.judges.verdict import assert_valid
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster, named

from pilotlight.errors import PlatformError, TimedOut
from pilotlight.microservices.inference import client
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.service_document import service_document
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry, Job
from pilotlight.microservices.registry.registry_file import Registry
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.targets.kubernetes.target import KubernetesTarget
from platformctl.microservice import infer_request

SECRET = "hf_planted-value-that-nobody-may-see"
ENVIRON = {"HF_TOKEN": SECRET, "IMAGE_COSMOS_PREDICT25": "registry.example/predict:1"}
JOB_ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
NAME = f"ims-{JOB_ID}"
WORKLOAD = "ims-a"
ENTRY = Entry("kubernetes", "pilotlight", "http://x:8080", "2026-01-01T00:00:00+00:00", namespace="team")
NAMESPACE = named("v1", "Namespace", "", "team")
GPU_NODE = named("v1", "Node", "", "one", status={"allocatable": {"nvidia.com/gpu": "8"}})
PULL = named("v1", "Secret", "team", "ngc")


def job(arch: str = "pilotlight", *, remote: bool = False, **options: str) -> Job:
    wish = launcher.StartRequest(
        arch, "/models/x", "kubernetes", num_gpus=2, options={"namespace": "team", **options}, remote=remote
    )
    return launcher.build_job(wish, ENVIRON, JOB_ID)


def on(paper: PaperCluster) -> TargetService:
    return TargetService("kubernetes", ENVIRON, lambda *_, **__: KubernetesTarget(paper.cluster()))


def objects(made: Job, gpus: int = 0) -> list[dict[str, Any]]:
    text = io.StringIO(service_document(made, "kubernetes", gpus))
    documents = read(Sources(("-",), stdin=text, namespace="team"))
    (prepared,), _ = prepare(ReleaseRequest(documents, changed(Capabilities(), target="kubernetes")), None)
    return [dict(each) for each in prepared.release.manifests]


def pod_of(made: Job, gpus: int = 0) -> dict[str, Any]:
    (found,) = (each for each in objects(made, gpus) if each["kind"] == "StatefulSet")
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("arch", ["pilotlight", "cosmos-rl", "cosmos-predict2.5"])
def test_an_api_server_would_take_them(arch: str) -> None:
    assert_valid(objects(job(arch, image_pull_secret="ngc", volume_claim="models", cpu="500m", memory="1Gi"), 2))


def test_the_container_runs_the_inner_command_under_the_jobs_id() -> None:
    made = job("cosmos-rl", image_pull_secret="ngc", volume_claim="models", cpu="2", memory="8Gi")
    pod = pod_of(made, 2)
    (container,) = pod["containers"]
    assert (container["name"], container["image"]) == (JOB_ID, made.image)
    assert container["command"] == ["/bin/sh", "-c", made.command]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"},
    }  # fmt: skip
    assert pod["imagePullSecrets"] == [{"name": "ngc"}]
    assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/dev/shm", "/models"}
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["TAO_EXECUTION_BACKEND"] == "local-k8s"
    assert "runAsNonRoot" not in container["securityContext"], "another image may need root"


def test_the_predictor_has_no_rights_and_no_limit_that_nobody_asked_for() -> None:
    (container,) = pod_of(job())["containers"]
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "1Gi"}}
    assert container["securityContext"].items() >= {
        "allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]},
    }.items()  # fmt: skip


def test_a_model_of_a_store_is_fetched_before_an_image_that_reads_none() -> None:
    wish = launcher.StartRequest(
        "cosmos-rl", "s3://b/m", "kubernetes", env={"AWS_REGION": "eu-1"}, secrets=("HF_TOKEN",), remote=True,
        options={"namespace": "team", "image_pull_secret": "ngc", "volume_claim": "models"},
    )  # fmt: skip
    made, place = launcher.build_job(wish, ENVIRON, JOB_ID), f"/models/{JOB_ID}"
    assert_valid(objects(made, 1))
    pod = pod_of(made, 1)
    (fetches,), (container,) = pod["initContainers"], pod["containers"]
    assert fetches["command"][-3:] == ["fetch", "s3://b/m", place]
    assert {"AWS_REGION", "HF_TOKEN"} <= {each["name"] for each in fetches["env"]}
    assert f'"model_path": "{place}"' in container["command"][-1]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert [mounts[place], fetches["volumeMounts"][0]["name"]] == ["model", "model"]
    assert {"name": "model", "emptyDir": {}} in pod["volumes"]
    assert "/models" not in mounts, "nothing can be mounted below a volume that is read-only"


def balancers(made: Job) -> list[dict[str, Any]]:
    return [each for each in objects(made) if each["kind"] == "Service" and each["spec"].get("type") == "LoadBalancer"]


def test_it_is_exposed_on_8080_by_a_load_balancer_from_its_first_moment() -> None:
    (service,) = balancers(job())
    spec, (pod,) = service["spec"], (each for each in objects(job()) if each["kind"] == "StatefulSet")
    assert (spec["ports"][0]["port"], spec["publishNotReadyAddresses"]) == (8080, True)
    assert spec["selector"].items() <= pod["spec"]["template"]["metadata"]["labels"].items()
    assert service["metadata"]["name"] == NAME


def test_what_the_api_starts_has_no_address_outside_of_the_cluster() -> None:
    assert balancers(job(remote=True)) == []
    assert not [each for each in objects(job()) if each["kind"] == "HTTPRoute"]


def test_secrets_are_references_to_the_services_own() -> None:
    assert SECRET not in json.dumps(objects(job()))
    (container,) = pod_of(job())["containers"]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": NAME, "key": "HF_TOKEN"}}} in container["env"]


@pytest.mark.parametrize(
    ("wanted", "objects_there", "told"),
    [
        (job("cosmos-rl"), [NAMESPACE, GPU_NODE], "kubernetes needs image_pull_secret"),
        (job("cosmos-rl", image_pull_secret="ngc"), [NAMESPACE, GPU_NODE], "the Secret ngc, which team does not have"),
        (job("cosmos-rl", image_pull_secret="ngc"), [NAMESPACE, PULL], "nvidia.com/gpu, which no node of this cluster"),
        (job(volume_claim="disk"), [NAMESPACE], "the PersistentVolumeClaim disk, which team does not have"),
        (job(), [], "the namespace team does not exist"),
        (job(address_wait="soon"), [NAMESPACE], "address_wait = soon"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_made(
    wanted: Job, objects_there: list[Any], told: str, tmp_path: Path
) -> None:  # fmt: skip
    with PaperCluster(*objects_there) as paper, pytest.raises(PlatformError, match=told):
        launcher.start(wanted, on(paper), Registry(tmp_path / "registry.json"))


@pytest.mark.parametrize("plural", ["statefulsets", "secrets"])
def test_who_may_not_is_told(plural: str) -> None:
    with PaperCluster(NAMESPACE, denied=[plural]) as paper, pytest.raises(PlatformError, match=f"delete {plural}"):
        on(paper).start(job())


LABELS = {
    "pilotlight.dev/service": NAME,
    "pilotlight.dev/workload": WORKLOAD,
    "app.kubernetes.io/component": "predictor",
}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": JOB_ID, "image": "x"}]}}
STATEFUL_SET = named(
    "apps/v1", "StatefulSet", "team", WORKLOAD, metadata={"labels": LABELS}, spec={"replicas": 1, "template": TEMPLATE}
)


def pod(**status: Any) -> dict[str, Any]:
    return named(
        "v1", "Pod", "team", f"{WORKLOAD}-0", metadata={"labels": LABELS}, spec=TEMPLATE["spec"], status=status
    )


def state(restarts: int = 0, **of: Any) -> list[dict[str, Any]]:
    return [{"name": JOB_ID, "image": "x", "restartCount": restarts, "state": of}]


READY = [{"type": "Ready", "status": "True"}]
UNPULLED = {"reason": "ImagePullBackOff", "message": "denied"}
CRASHED = {"exitCode": 3}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pod(phase="Running", conditions=READY, containerStatuses=state(running={})), ("running", "Running", "")),
        (pod(phase="Running", containerStatuses=state(running={})), ("running", "Running", "")),
        (pod(phase="Running", containerStatuses=state(2, terminated=CRASHED)), ("failed", "Running", "with code 3")),
        (pod(phase="Pending", containerStatuses=state(waiting=UNPULLED)), ("failed", "Pending", "denied")),
        (pod(phase="Pending"), ("pending", "Pending", "is starting")),
        (pod(phase="Failed", message="evicted"), ("failed", "Failed", "evicted")),
        (None, ("pending", "Pending", "is starting")),
    ],
)
def test_a_look_tells_the_pod_its_status_and_the_reason(
    seen: dict[str, Any] | None, expected: tuple[str, str, str]
) -> None:
    with PaperCluster(STATEFUL_SET, *([seen] if seen else [])) as paper:
        paper.logs[f"{WORKLOAD}-0"] = ["2026-01-01T00:00:00Z first", f"2026-01-01T00:00:00Z with {SECRET}"]
        found = on(paper).status(JOB_ID, ENTRY)
    assert (found.state, found.pod_status) == expected[:2]
    assert expected[2] in found.reason
    if seen:
        assert found.pod_name == f"{WORKLOAD}-0"
        assert found.tail == ("first", "with <HF_TOKEN>")


def test_one_that_has_crashed_tells_its_last_words_without_secrets() -> None:
    seen = pod(phase="Running", containerStatuses=state(2, terminated=CRASHED))
    with PaperCluster(STATEFUL_SET, seen) as paper:
        paper.logs[f"{WORKLOAD}-0/previous"] = [f"2026-01-01T00:00:00Z Error: no checkpoint for {SECRET}"]
        found = on(paper).status(JOB_ID, ENTRY)
    assert found.tail == ("Error: no checkpoint for <HF_TOKEN>",)
    assert SECRET not in found.reason


def test_without_a_service_it_is_gone_and_without_a_workload_stopped() -> None:
    release = named("apps/v1", "ControllerRevision", "team", "r", metadata={"labels": LABELS}, revision=1)
    with PaperCluster() as paper:
        assert on(paper).status(JOB_ID, ENTRY).state == "gone"
        on(paper).stop(JOB_ID, ENTRY)
    with PaperCluster(release) as paper:
        assert on(paper).status(JOB_ID, ENTRY).state == "stopped"


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(202)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        return


def service(name: str, **fields: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8080}]
    metadata = {"labels": {"pilotlight.dev/service": NAME}}
    return named("v1", "Service", "team", name, metadata=metadata, spec={"clusterIP": "None", "ports": ports}, **fields)


READY_POD = named(
    "discovery.k8s.io/v1", "EndpointSlice", "team", "s", metadata={"labels": {"kubernetes.io/service-name": NAME}},
    ports=[{"name": "http", "port": 8080}], endpoints=[{"targetRef": {"kind": "Pod", "name": f"{WORKLOAD}-0"}}],
)  # fmt: skip


def test_where_no_address_answers_requests_go_through_a_port_forward() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        with PaperCluster(STATEFUL_SET, service(NAME), READY_POD) as paper:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            paper.ports[8080] = server.server_address[1]
            with on(paper).open_route(JOB_ID, ENTRY) as url:
                assert client.post_chat(url, client.PROBE, 60.0).status == 202
        server.shutdown()


def test_a_port_forward_waits_until_its_pod_is_ready() -> None:
    reasons: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        with PaperCluster(STATEFUL_SET, service(NAME), pod(phase="Pending")) as paper:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            paper.ports[8080], place = server.server_address[1], on(paper)
            wait = client.Wait(60.0, reasons.append, sleep=lambda _: paper.objects.append(READY_POD))
            with client.open_route(
                lambda: place.open_route(JOB_ID, ENTRY), lambda: place.status(JOB_ID, ENTRY), wait
            ) as url:
                assert client.post_chat(url, client.PROBE, 60.0).status == 202
        server.shutdown()
    assert len(reasons) == 1
    assert "is starting" in reasons[0]


def infer_at_once(max_wait_s: float) -> None:
    infer_request.infer(JOB_ID, ENTRY, client.PROBE, False, client.MIN_TIMEOUT_S, max_wait_s)


def start_and_wait(max_wait_s: float) -> None:
    infer_request.wait_for_model(JOB_ID, ENTRY, max_wait_s)


@pytest.mark.parametrize("verb", [infer_at_once, start_and_wait])
def test_the_verbs_wait_for_the_pod_too(
    verb: Callable[[float], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PaperCluster(STATEFUL_SET, service(NAME), pod(phase="Running", containerStatuses=state(running={}))) as paper:
        cluster = {"name": "paper", "cluster": {"server": f"http://127.0.0.1:{paper.port}"}}
        context = {"name": "paper", "context": {"cluster": "paper", "user": ""}}
        kubeconfig = {"current-context": "paper", "clusters": [cluster], "contexts": [context], "users": []}
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(TimedOut, match=r"not ready within 1 s: .* no ready pod"):
            verb(1.0)


def test_the_address_of_its_load_balancer_is_preferred() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        balanced = service(NAME, status={"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}})
        balanced["spec"]["ports"] = [{"port": server.server_address[1]}]
        with PaperCluster(STATEFUL_SET, balanced) as paper, on(paper).open_route(JOB_ID, ENTRY) as url:
            assert url == f"http://127.0.0.1:{server.server_address[1]}"


def test_the_context_that_it_was_started_in_is_the_one_that_is_asked() -> None:
    asked: list[str] = []
    with PaperCluster() as paper:

        def connect(*_: object, context: str, **__: object) -> KubernetesTarget:
            asked.append(context)
            return KubernetesTarget(paper.cluster())

        place = TargetService("kubernetes", ENVIRON, connect)
        for _ in range(2):
            place.status(JOB_ID, replace(ENTRY, instance_id="production"))
    assert asked == ["production"], "one connection is kept"


def test_an_image_of_another_registry_needs_no_pull_secret() -> None:
    with PaperCluster(NAMESPACE, GPU_NODE) as paper:
        on(paper).preflight(replace(job("cosmos-rl"), image="registry.example/cosmos:1"))
