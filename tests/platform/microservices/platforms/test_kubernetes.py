"""Pods of a cluster, without one: objects that an API server would take, what is refused first, what a look tells.

The same platform runs the contract on a real cluster in tests/cluster.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from msgspec.structs import replace
from tests.judges.verdict import assert_valid
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster, named

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.inference import client
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.platforms import kubernetes
from pilotlight.microservices.platforms.kubernetes import Kubernetes, address
from pilotlight.microservices.registry.records import Entry, Job

SECRET = "hf_planted-value-that-nobody-may-see"
ENVIRON = {"HF_TOKEN": SECRET, "IMAGE_COSMOS_PREDICT25": "registry.example/predict:1"}
JOB_ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"
ENTRY = Entry("kubernetes", "pilotlight", "http://x:8080", "2026-01-01T00:00:00+00:00", namespace="team")
NAMESPACE = named("v1", "Namespace", "", "team")
GPU_NODE = named("v1", "Node", "", "one", status={"allocatable": {"nvidia.com/gpu": "8"}})


def job(arch: str = "pilotlight", **options: str) -> Job:
    wish = launcher.StartRequest(arch, "/models/x", "kubernetes", num_gpus=2, options={"namespace": "team", **options})
    return launcher.build_job(wish, ENVIRON, JOB_ID)


def on(paper: PaperCluster) -> Kubernetes:
    return Kubernetes(ENVIRON, lambda _: paper.cluster())


@pytest.mark.parametrize("arch", ["pilotlight", "cosmos-rl", "cosmos-predict2.5"])
def test_an_api_server_would_take_them(arch: str) -> None:
    made = job(arch, image_pull_secret="ngc", volume_claim="models", cpu="500m", memory="1Gi")
    documents = [kubernetes.stateful_set(made, "team", True), kubernetes.service_manifest(made, "team")]
    assert_valid([*documents, kubernetes.secret(made, "team", ENVIRON)])


def test_the_container_runs_the_inner_command_under_the_jobs_id() -> None:
    made = job("cosmos-rl", image_pull_secret="ngc")
    pod = kubernetes.stateful_set(made, "team", True)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["name"], container["image"]) == (JOB_ID, made.image)
    assert container["command"] == ["/bin/sh", "-c", made.command]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert pod["imagePullSecrets"] == [{"name": "ngc"}]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["TAO_EXECUTION_BACKEND"] == "local-k8s"


def test_what_the_api_starts_has_no_address_outside_of_the_cluster() -> None:
    wish = launcher.StartRequest("pilotlight", "/models/x", "kubernetes", options={"namespace": "team"}, remote=True)
    made = launcher.build_job(wish, ENVIRON, JOB_ID)
    assert kubernetes.service_manifest(made, "team")["spec"]["type"] == "ClusterIP"
    assert_valid([kubernetes.service_manifest(made, "team")])


def test_it_is_exposed_on_8080_by_a_load_balancer_from_its_first_moment() -> None:
    spec = kubernetes.service_manifest(job(), "team")["spec"]
    assert (spec["type"], spec["ports"][0]["port"], spec["publishNotReadyAddresses"]) == ("LoadBalancer", 8080, True)


def test_only_the_secret_holds_values_and_it_goes_with_the_stateful_set() -> None:
    made = job()
    workload = kubernetes.stateful_set(made, "team", False)
    assert SECRET not in json.dumps([workload, kubernetes.service_manifest(made, "team")])
    assert kubernetes.secret(made, "team", ENVIRON)["stringData"] == {"HF_TOKEN": SECRET}
    workload["metadata"]["uid"] = "u"
    (owner,) = kubernetes.owned_by(workload)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("StatefulSet", f"ims-{JOB_ID}", "u")


def test_a_stop_deletes_whatever_a_start_makes() -> None:
    made = job()
    documents = (
        kubernetes.stateful_set(made, "team", False),
        kubernetes.service_manifest(made, "team"),
        kubernetes.secret(made, "team", {}),
    )
    identities = [(each["kind"], each["metadata"]["name"], each["metadata"]["namespace"]) for each in documents]
    deleted = [(each["kind"], *each["metadata"].values()) for each in kubernetes.parts(JOB_ID, "team")]
    assert deleted == identities  # the StatefulSet first, so that nothing brings a pod back


def test_ours_asks_for_no_gpu_where_there_is_none() -> None:
    workload = kubernetes.stateful_set(job(), "team", False)
    assert workload["spec"]["template"]["spec"]["containers"][0]["resources"] == {}


@pytest.mark.parametrize(
    ("wanted", "objects_there", "told"),
    [
        (job("cosmos-rl"), [NAMESPACE, GPU_NODE], "needs image_pull_secret for nvcr.io"),
        (job("cosmos-rl", image_pull_secret="ngc"), [NAMESPACE, GPU_NODE], "image_pull_secret = ngc"),
        (job("cosmos-rl", image_pull_secret="ngc"), [NAMESPACE, named("v1", "Secret", "team", "ngc")], "has a GPU"),
        (job(volume_claim="disk"), [NAMESPACE], "volume_claim = disk"),
        (job(), [], "namespace = team, which the cluster does not have"),
        (job(address_wait="soon"), [NAMESPACE], "address_wait = soon"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_made(
    wanted: Job, objects_there: list[Any], told: str
) -> None:  # fmt: skip
    with PaperCluster(*objects_there) as paper, pytest.raises(PlatformError, match=told):
        on(paper).preflight(wanted)


def test_what_is_there_passes_and_who_may_not_is_told() -> None:
    with PaperCluster(NAMESPACE, GPU_NODE, named("v1", "Secret", "team", "ngc")) as paper:
        on(paper).preflight(job("cosmos-rl", image_pull_secret="ngc"))
        on(paper).preflight(job())
    with PaperCluster(NAMESPACE, denied=["statefulsets"]) as paper, pytest.raises(PlatformError, match="statefulsets"):
        on(paper).preflight(job())


def pod(**status: Any) -> dict[str, Any]:
    metadata = {"labels": {kubernetes.LABEL: JOB_ID}}
    spec = {"containers": [{"name": JOB_ID, "image": "x"}]}
    return named("v1", "Pod", "team", f"ims-{JOB_ID}-0", metadata=metadata, spec=spec, status=status)


def state(**of: Any) -> list[dict[str, Any]]:
    return [{"name": JOB_ID, "image": "x", "restartCount": 0, "state": of}]


READY = [{"type": "Ready", "status": "True"}]
UNPULLED = {"reason": "ImagePullBackOff", "message": "denied"}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pod(phase="Running", conditions=READY, containerStatuses=state(running={})), ("running", "Running", "")),
        (pod(phase="Pending", containerStatuses=state(waiting=UNPULLED)), ("failed", "Pending", "denied")),
        (pod(phase="Pending"), ("pending", "Pending", "being made")),
        (pod(phase="Failed", message="evicted"), ("failed", "Failed", "evicted")),
        (None, ("pending", "Pending", "no pod yet")),
    ],
)
def test_a_look_tells_the_pod_its_status_and_the_reason(
    seen: dict[str, Any] | None, expected: tuple[str, str, str]
) -> None:
    workload = named("apps/v1", "StatefulSet", "team", f"ims-{JOB_ID}")
    with PaperCluster(workload, *([seen] if seen else [])) as paper:
        paper.logs[f"ims-{JOB_ID}-0"] = ["first", f"with {SECRET}"]
        found = on(paper).status(JOB_ID, ENTRY)
    assert (found.state, found.pod_status) == expected[:2]
    assert expected[2] in found.reason
    if seen:
        assert found.pod_name == f"ims-{JOB_ID}-0"
        assert found.tail == ("first", "with <HF_TOKEN>")


def test_a_log_that_the_node_has_dropped_is_no_word_of_the_model() -> None:
    workload = named("apps/v1", "StatefulSet", "team", f"ims-{JOB_ID}")
    seen = pod(phase="Running", containerStatuses=state(terminated={"exitCode": 3}))
    with PaperCluster(workload, seen) as paper:
        paper.logs[f"ims-{JOB_ID}-0"] = ["unable to retrieve container logs for containerd://540587ec"]
        paper.logs[f"ims-{JOB_ID}-0/previous"] = ["no such checkpoint"]
        assert on(paper).status(JOB_ID, ENTRY).tail == ("no such checkpoint",)


def test_without_a_stateful_set_it_is_gone() -> None:
    with PaperCluster() as paper:
        assert on(paper).status(JOB_ID, ENTRY).state == "gone"


BALANCED = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}


@pytest.mark.parametrize(
    ("status", "url"),
    [(BALANCED, "http://203.0.113.7:8080"), ({}, f"http://ims-{JOB_ID}.team.svc.cluster.local:8080")],
)
def test_its_address_is_the_load_balancers_and_else_the_services_own(status: dict[str, Any], url: str) -> None:
    service = named("v1", "Service", "team", f"ims-{JOB_ID}", spec={}, status=status)
    with PaperCluster(service) as paper:
        assert address(paper.cluster(), JOB_ID, "team", 0.0) == url


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(202)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        return


def test_where_no_address_answers_requests_go_through_a_port_forward() -> None:
    service = named("v1", "Service", "team", f"ims-{JOB_ID}", spec={"clusterIP": "None"})
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server, PaperCluster(service) as paper:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        paper.ports[8080] = server.server_address[1]
        with on(paper).open_route(JOB_ID, ENTRY) as url:
            assert client.post_chat(url, client.PROBE, 60.0).status == 202
        server.shutdown()


def test_a_pod_that_listens_to_nobody_yet_is_asked_again() -> None:
    service = named("v1", "Service", "team", f"ims-{JOB_ID}", spec={"clusterIP": "None"})
    with PaperCluster(service) as paper, on(paper).open_route(JOB_ID, ENTRY) as url, pytest.raises(ConnectionError):
        client.post_chat(url, client.PROBE, 60.0)


def test_the_context_that_it_was_started_in_is_the_one_that_is_asked() -> None:
    asked: list[str] = []
    with PaperCluster() as paper:
        place = Kubernetes(ENVIRON, lambda context: asked.append(context) or paper.cluster())  # type: ignore[func-returns-value]
        place.status(JOB_ID, replace(ENTRY, instance_id="production"))
    assert asked == ["production"]


def test_an_image_of_another_registry_needs_no_pull_secret() -> None:
    with PaperCluster(NAMESPACE, GPU_NODE) as paper:
        on(paper).preflight(replace(job("cosmos-rl"), image="registry.example/cosmos:1"))
    with pytest.raises(UsageError, match="image_pull_secret"), PaperCluster() as paper:
        on(paper).preflight(job("cosmos-rl"))
