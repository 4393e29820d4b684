"""Rendered manifests as services of one machine: what each field becomes."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.local.manifests.objects import deployment, knative, refusals
from tests.platform.targets.local.rendering import document, rendered, revision

from pilotlight.errors import PlatformError
from pilotlight.k8s.access_annotations import check as check_access
from pilotlight.plan.types import Current, Traffic
from pilotlight.targets.local.manifests.interpret import check_queries, interpret, revisions_of
from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Kpa
from pilotlight.targets.target import Share

Json = Any


def test_a_knative_service_becomes_a_serverless_workload(tmp_path: Path) -> None:
    resources = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "2Gi", "cpu": "2"}}
    made = document({"resources": resources}, minReplicas=0, maxReplicas=3, containerConcurrency=8, timeout=60)
    spec = interpret(rendered(tmp_path, made))
    assert (spec.namespace, spec.name, spec.entry) == ("default", "iris", (("iris-predictor", 100),))
    (workload,) = spec.workloads
    assert (workload.name, workload.role, workload.mode) == ("iris-predictor", "predictor", "serverless")
    found = workload.revision
    assert found.name.startswith("iris-predictor-")
    assert workload.traffic == (Share(found.name, 100),)
    assert isinstance(found.scaling, Kpa)
    assert (found.scaling.min_scale, found.scaling.max_scale) == (0, 3)
    assert (found.concurrency, found.timeout_s, found.grace_s, found.progress_deadline_s) == (8, 60.0, 60.0, 900.0)
    main = found.container
    assert main.env["INFERENCE_MODEL_PATH"] == "/models/iris.onnx"
    assert main.env["PILOTLIGHT_REVISION"] == found.name
    assert (main.port, main.command, main.startup) == (8080, (), None)
    assert main.readiness == Probe("/v2/health/ready", 8080)
    assert (main.cpu_request, main.cpu_limit, main.memory_limit) == (0.25, 2.0, 2**31)


def test_a_deployment_becomes_a_raw_workload_with_its_autoscaler(tmp_path: Path) -> None:
    spec = interpret(rendered(tmp_path, document(raw=True, minReplicas=2, maxReplicas=5, timeout=100)))
    (workload,) = spec.workloads
    assert (workload.mode, workload.surge, workload.unavailable) == ("raw", 1, 0)
    found = workload.revision
    assert workload.traffic == (Share(found.name, 100),)
    assert isinstance(found.scaling, Hpa)
    assert (found.scaling.min_replicas, found.scaling.max_replicas) == (2, 5)
    assert (found.timeout_s, found.grace_s, found.progress_deadline_s) == (100.0, 115.0, 900.0)
    assert found.container.startup == Probe("/v2/health/ready", 8080, period_s=1.0, failure_threshold=600)
    assert found.container.liveness == Probe("/v2/health/live", 8080, timeout_s=5.0, failure_threshold=6)
    assert "iris-default.example.com" in spec.hosts


def test_a_revision_can_be_told_again_from_what_the_store_keeps_of_it(tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"key": "s3cret"}}
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}}]
    manifests = rendered(tmp_path, document({"env": env}, raw=True, minReplicas=2), secret)
    ((workload, name, objects),) = revisions_of(manifests)
    again = interpret(objects).workloads[0]
    assert (again.name, again.revision.name) == (workload, name)
    assert again.revision == interpret(manifests).workloads[0].revision
    assert again.revision.container.env["TOKEN"] == "s3cret"
    assert len(objects) < len(manifests)


def test_a_stateful_service_has_a_fixed_number_of_replicas_one_replaced_after_the_other(tmp_path: Path) -> None:
    made = document(annotations={"serving.kserve.io/deploymentMode": "Stateful"}, minReplicas=2, maxReplicas=2)
    (workload,) = interpret(rendered(tmp_path, made)).workloads
    assert (workload.mode, workload.revision.scaling, workload.surge, workload.unavailable) == (
        "stateful", Fixed(2), 0, 1,
    )  # fmt: skip


def test_a_start_may_take_as_long_as_its_probe_lets_it() -> None:
    slow = {"httpGet": {"path": "/ready", "port": 8080}, "initialDelaySeconds": 5, "failureThreshold": 200}
    assert interpret([deployment({"startupProbe": slow})]).workloads[0].revision.progress_deadline_s == 2005.0
    written = deployment({"startupProbe": slow}, progressDeadlineSeconds=60)
    assert interpret([written]).workloads[0].revision.progress_deadline_s == 60.0


def test_grpc_is_served_on_its_own_port_and_probed_over_http(tmp_path: Path) -> None:
    found = revision(tmp_path, document({"protocolVersion": "grpc-v2"})).container
    assert (found.port, found.readiness) == (8081, Probe("/v2/health/ready", 8080))


# Traffic.


def test_a_canary_splits_by_revision_with_tags(tmp_path: Path) -> None:
    current = Current(
        {"iris-predictor": ("iris-predictor-old",)}, {"iris-predictor": (Traffic("iris-predictor-old", 100),)}
    )
    made = document(canaryTrafficPercent=20)
    (workload,) = interpret(rendered(tmp_path, made, current={("default", "iris"): current})).workloads
    new = workload.revision.name
    assert workload.traffic == (Share(new, 20), Share("iris-predictor-old", 80, "prev"))


def test_the_latest_revision_is_the_one_that_the_manifest_describes() -> None:
    traffic = [{"latestRevision": True, "percent": 100}, {"revisionName": "iris-predictor-old", "tag": "old"}]
    (workload,) = interpret([knative({"metadata": {"name": "iris-predictor-new"}}, traffic=traffic)]).workloads
    assert workload.traffic == (Share("iris-predictor-new", 100), Share("iris-predictor-old", 0, "old"))


def test_a_template_without_a_name_gets_one_by_its_content() -> None:
    first, same, other = (
        interpret([knative({"metadata": {"annotations": {"note": note}}})]).workloads[0].revision.name
        for note in ("a", "a", "b")
    )
    assert first == same != other
    assert first.startswith("iris-predictor-")


def test_two_deployments_share_by_the_weights_of_their_route(tmp_path: Path) -> None:
    made = document(raw=True)
    other = {"modelFormat": {"name": "onnx"}, "storageUri": "/models/next.onnx"}
    made["spec"]["canary"] = [{"trafficPercent": 10, "predictor": {"name": "next", "model": other}}]
    manifests = rendered(tmp_path, made)
    spec = interpret(manifests)
    assert spec.entry == (("iris-predictor", 90), ("iris-next-predictor", 10))
    stable = spec.workload("iris-predictor").revision.name
    by_hand = {"traffic": [{"revision": stable, "percent": 30}, {"revision": "latest", "percent": 70}]}
    assert interpret(manifests, {"iris-predictor": by_hand}).entry == (
        ("iris-predictor", 30), ("iris-next-predictor", 70),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("roles", "entry"), [(["engine", "router"], "router"), (["predictor", "transformer"], "transformer")]
)
def test_without_a_route_the_foremost_component_is_asked(roles: list[str], entry: str) -> None:
    manifests = []
    for role in roles:
        made = knative({"metadata": {"labels": {"component": role}}})
        made["metadata"]["name"] = f"iris-{role}"
        manifests.append(made)
    assert interpret(manifests).entry == ((f"iris-{entry}", 100),)


def test_a_service_that_a_gateway_of_the_cluster_would_hold_is_entered_at_its_own_workload(tmp_path: Path) -> None:
    annotations = {"serving.kserve.io/autoscalerClass": "keda", "pilotlight.dev/triggers": "latency=0.2"}
    manifests = rendered(tmp_path, document(annotations=annotations, raw=True, minReplicas=0))
    assert interpret(manifests).entry == (("iris-predictor", 100),)


# What was set by hand.


def test_bounds_and_shares_set_by_hand_win(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, document(minReplicas=0, maxReplicas=3))
    shares = [{"revision": "latest", "percent": 5, "tag": "new"}, {"revision": "iris-predictor-old", "percent": 95}]
    by_hand = {"minReplicas": 2, "maxReplicas": 4, "traffic": shares}
    (workload,) = interpret(manifests, {"iris-predictor": by_hand}).workloads
    assert isinstance(workload.revision.scaling, Kpa)
    assert (workload.revision.scaling.min_scale, workload.revision.scaling.max_scale) == (2, 4)
    assert workload.traffic == (
        Share(workload.revision.name, 5, "new"), Share("iris-predictor-old", 95),
    )  # fmt: skip
    assert replace(workload.revision, scaling=Fixed(1)) == replace(
        interpret(manifests).workloads[0].revision, scaling=Fixed(1)
    )


# Rolling updates.


@pytest.mark.parametrize(
    ("strategy", "room"),
    [
        ({"type": "Recreate"}, (0, 0)),
        ({"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}, (2, 1)),
        ({"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}}, (3, 2)),  # of 5: up, and down
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}, (0, 1)),  # Kubernetes never stands still
        ({}, (2, 1)),  # 25 % each
    ],
)
def test_the_room_of_a_rolling_update_is_counted_as_kubernetes_does(strategy: Json, room: tuple[int, int]) -> None:
    (workload,) = interpret([deployment(strategy=strategy, replicas=5)]).workloads
    assert (workload.surge, workload.unavailable) == room


# Variables.


# Folders.


# What one machine cannot do.


def test_everything_that_cannot_be_done_is_said_at_once() -> None:
    sidecar, first = {"name": "proxy", "image": "envoy:1"}, {"name": "prepare", "image": "busybox"}
    made = deployment(
        {
            "resources": {"limits": {"amd.com/gpu": 1}},
            "readinessProbe": {"exec": {"command": ["true"]}},
            "command": ["sh"],
        }
    )
    pod = made["spec"]["template"]["spec"]
    pod |= {"containers": [*pod["containers"], sidecar], "initContainers": [first]}
    lines = refusals(made, {"kind": "LeaderWorkerSet", "metadata": {"name": "big"}})
    assert lines[0] == "LeaderWorkerSet big: needs several nodes; use --target kubernetes"
    assert [line.removeprefix("Deployment iris-engine: ").partition(":")[0] for line in lines[1:]] == [
        "container proxy (envoy", "init container prepare (busybox)", "resource amd.com/gpu", "readinessProbe",
        "command sh",
    ]  # fmt: skip


def test_a_rule_of_scaling_that_makes_no_sense_is_refused_with_its_object() -> None:
    made = knative({"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "many"}}})
    (line,) = refusals(made)
    assert line.startswith("Knative Service iris-predictor: ")
    assert "min-scale" in line


def test_a_query_of_ones_own_beyond_what_our_metrics_answer_needs_a_prometheus(tmp_path: Path) -> None:
    """OME's customPromQuery, in a document of its own kind."""
    made = {
        "apiVersion": "ome.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris"},
        "spec": {
            "model": {"name": "iris"},
            "engine": {"minReplicas": 1, "maxReplicas": 3},
            "kedaConfig": {
                "enableKeda": True,
                "customPromQuery": "topk(3, my_metric) offset 5m",
                "scalingThreshold": "5",
            },
        },
    }
    model = {
        "apiVersion": "ome.io/v1beta1",
        "kind": "BaseModel",
        "metadata": {"name": "iris", "namespace": "default"},
        "spec": {"modelFormat": {"name": "onnx"}, "storage": {"storageUri": "s3://models/iris.onnx"}},
    }
    with pytest.raises(PlatformError, match=r"iris-engine: the query .*topk.* needs --prometheus ADDRESS"):
        check_queries(interpret(rendered(tmp_path, made, model)))


def test_the_queries_that_we_write_ourselves_are_answered_here(tmp_path: Path) -> None:
    annotations = {"serving.kserve.io/autoscalerClass": "keda", "pilotlight.dev/triggers": "latency=0.2, queue-depth=4"}
    spec = interpret(rendered(tmp_path, document(annotations=annotations, raw=True, minReplicas=1, maxReplicas=3)))
    assert isinstance(spec.workloads[0].revision.scaling, Hpa)
    check_queries(spec)


def test_names_that_are_paths_of_the_gateway_are_refused() -> None:
    made = knative()
    made["metadata"] |= {"namespace": "api", "labels": {"pilotlight.dev/service": "v2"}}
    assert refusals(made) == [
        "namespace = api, which is a path of the gateway; choose another",
        "name = v2, which is a path of the gateway; choose another",
    ]


def test_manifests_of_two_services_are_refused() -> None:
    other = knative()
    other["metadata"] = {**other["metadata"], "labels": {"pilotlight.dev/service": "other"}}
    assert refusals(knative(), other)[0].endswith("found lab/iris and lab/other")


PLACES = [("containers", 0, "env", 0), ("containers", 0, "volumeMounts"), ("containers", 0, "ports", 0), ("volumes", 0),
          ("containers", 0, "readinessProbe"), ("terminationGracePeriodSeconds",), ("containers",)]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: str(place[-2:]))
@pytest.mark.parametrize("value", ["x", -1, ["a"], {"a": ["b"]}], ids=str)
def test_manifests_that_nobody_checked_do_no_harm(tmp_path: Path, place: tuple[Any, ...], value: Json) -> None:
    manifests = rendered(tmp_path, document({"storageUri": "s3://models/iris"}, raw=True))
    (workload,) = (found for found in manifests if found["kind"] == "Deployment")
    part = workload["spec"]["template"]["spec"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with suppress(PlatformError):
        interpret(manifests)


def test_a_document_that_stops_its_service_is_no_deploy(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, document(annotations={"serving.kserve.io/stop": "true"}))
    assert "annotation stop = true" in refusals(*manifests)[0]


# Who may ask.


@pytest.mark.parametrize("raw", [False, True], ids=["serverless", "raw"])
def test_annotations_about_access_reach_the_service_and_no_file_its_replicas(tmp_path: Path, raw: bool) -> None:
    annotations = {"pilotlight.dev/auth-tokens-sha256": "aa" * 32, "pilotlight.dev/rate-limit": "100/1m"}
    names = {"pilotlight.dev/planned-with": "x", "pilotlight.dev/model-names": "iris, gpt-4o"}
    manifests = rendered(tmp_path, document(annotations={**annotations, **names}, raw=raw))
    assert "Secret" in {found["kind"] for found in manifests}, "as for a cluster"
    service = interpret(manifests)
    assert (service.access, service.models) == (annotations, ("iris", "gpt-4o"))
    assert "INFERENCE_ACCESS_FILE" not in service.workloads[0].revision.container.env, "the gateway enforces them"
    rotated = rendered(tmp_path, document(annotations={**annotations, "pilotlight.dev/rate-limit": "9/1s"}, raw=raw))
    assert interpret(rotated).workloads[0].revision.name == service.workloads[0].revision.name


@pytest.mark.parametrize("place", ["object", "template"])
def test_a_misspelt_annotation_about_access_is_refused_on_manifests_too(tmp_path: Path, place: str) -> None:
    manifests = [dict(found) for found in rendered(tmp_path, document())]
    workload = next(found for found in manifests if found["kind"] == "Service")
    metadata = workload["metadata"] if place == "object" else workload["spec"]["template"]["metadata"]
    metadata.setdefault("annotations", {})["pilotlight.dev/auth-token"] = "aa"
    with pytest.raises(PlatformError, match=r"annotation pilotlight\.dev/auth-token is unknown"):
        check_access(interpret(manifests).access)
