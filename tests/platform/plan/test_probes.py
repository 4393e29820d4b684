from typing import Any

from tests.platform.plan.building import (
    FOREIGN,
    OURS,
    annotated,
    codes,
    kserve,
    ome,
    planned,
    reason,
    refusals,
    workload,
)

from pilotlight.plan.types import Capabilities
from pilotlight.spec.service import ModelSpec, Service


def container(service: Service, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = workload(service, **how).template["spec"]["containers"][0]
    return found


def test_raw_pods_tell_starting_from_serving_from_hanging() -> None:
    made = container(ome("big"))
    startup, ready, live = (made[name] for name in ("startupProbe", "readinessProbe", "livenessProbe"))
    assert startup["httpGet"]["path"] == ready["httpGet"]["path"] == "/v2/health/ready"
    assert live["httpGet"]["path"] == "/v2/health/live"
    assert startup["periodSeconds"] * startup["failureThreshold"] == 360, "30 GB at 200 MB/s, twice, and a minute"


def test_a_faster_node_gets_a_shorter_budget() -> None:
    made = container(ome("big"), capabilities=Capabilities(load_rate_bytes_s=3_000_000_000))
    assert made["startupProbe"]["periodSeconds"] * made["startupProbe"]["failureThreshold"] == 80


def test_serverless_pods_leave_knative_its_quick_probing() -> None:
    made = container(ome(min_replicas=0))
    assert "startupProbe" not in made
    assert "periodSeconds" not in made["readinessProbe"]


def test_a_startup_probe_that_is_brought_counts_into_the_deadline_in_serverless_mode() -> None:
    probe = {"httpGet": {"path": "/up", "port": 80}, "periodSeconds": 10, "failureThreshold": 120}
    slow = {"httpGet": {"path": "/up", "port": 80}, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 1}
    made = planned(ome(min_replicas=0, runner={"startupProbe": probe, "readinessProbe": slow}))
    main = made.workloads[0].template["spec"]["containers"][0]
    assert "startupProbe" not in main
    assert main["readinessProbe"] == {"httpGet": {"path": "/up", "port": 80}}
    assert made.workloads[0].progress_deadline_seconds == 1500


def test_probes_that_are_brought_are_kept_in_raw_mode() -> None:
    probe = {"exec": {"command": ["true"]}}
    assert container(ome(runner={"readinessProbe": probe}))["readinessProbe"] == probe


def test_a_probe_without_a_port_asks_the_serving_port() -> None:
    """KServe's documents have such probes; Knative fills the port in, Kubernetes refuses them."""
    probes = {"readinessProbe": {"httpGet": {"path": "/up"}}, "livenessProbe": {"tcpSocket": {}}}
    for made in (container(ome(runner=probes)), container(ome(min_replicas=0, runner=probes))):
        assert made["readinessProbe"]["httpGet"] == {"path": "/up", "port": 8080}
        assert made["livenessProbe"]["tcpSocket"] == {"port": 8080}


def test_a_key_for_health_is_refused_since_no_probe_has_it() -> None:
    flags = (
        {"args": ["--http-restricted-api=health,metadata:key=secret"]},
        {"args": ["--http_restricted_api", "inference:a=b", "--http-restricted-api", "health:key=secret"]},
        {"env": [{"name": "INFERENCE_HTTP_RESTRICTED_API", "value": "inference:a=b health:key=secret"}]},
    )
    for runner in flags:
        for replicas in (0, 1):
            assert codes(refusals(ome(min_replicas=replicas, runner=runner))) == ["PL392"], runner
    assert not refusals(ome(runner={"args": ["--http-restricted-api=inference:health=secret"]}))
    grpc = {"args": ["--grpc-restricted-protocol=health:key=secret"]}
    assert not refusals(ome(runner=grpc)), "probes use HTTP"
    model = ModelSpec("onnx", runtime=OURS, storage_uri="s3://models/iris.onnx", protocol="grpc-v2", container=grpc)
    assert codes(refusals(kserve(model=model))) == ["PL392"]


def test_a_foreign_server_is_only_asked_whether_it_listens() -> None:
    made = container(ome(runtime_name=FOREIGN))
    assert made["readinessProbe"]["tcpSocket"] == {"port": 8080}
    assert "livenessProbe" not in made, "a server that hangs still listens"
    assert "readinessProbe" not in container(kserve(FOREIGN)), "Knative's own is the same"


def test_grpc_is_asked_over_grpc_where_it_is_the_only_port() -> None:
    assert container(kserve(protocol="grpc-v2"))["readinessProbe"] == {"grpc": {"port": 8081}}


def test_the_deadline_leaves_room_for_the_model_and_is_the_user_s_where_it_is_written() -> None:
    assert workload(ome()).progress_deadline_seconds == 600
    made = planned(ome("big", min_replicas=0), Capabilities(load_rate_bytes_s=20_000_000))
    assert made.workloads[0].progress_deadline_seconds == 60 + 2 * 1500 + 300
    written = annotated(ome(min_replicas=0), **{"serving.knative.dev/progress-deadline": "20m"})
    assert workload(written).progress_deadline_seconds == 1200
    wrong = annotated(ome(), **{"serving.knative.dev/progress-deadline": "soon"})
    assert codes(refusals(wrong)) == ["PL343"]


def test_the_deadline_s_reason_adds_up_with_a_probe_that_is_brought() -> None:
    probe = {"httpGet": {"path": "/up", "port": 80}, "periodSeconds": 10, "failureThreshold": 180}
    made = planned(ome("big", runner={"startupProbe": probe}))
    assert reason(made, "engine: startup budget") == ("1800 s", "the container's own startupProbe")
    deadline, because = reason(made, "engine: progress deadline")
    assert (deadline, because) == ("2100 s", "1800 s for the start and 5 minutes for image and node")


def test_the_cold_start_is_told_where_it_is_chosen() -> None:
    assert reason(planned(ome("big", min_replicas=0)), "engine: cold start")[0] == "about 165 s"
