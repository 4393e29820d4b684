import json
from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    CATALOGUE,
    FOREIGN,
    GPU,
    annotated,
    changed,
    codes,
    container,
    env,
    in_mode,
    kserve,
    ome,
    planned,
    raw,
    reason,
    refusals,
    spec,
    with_component,
    workload,
)

from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities, Workload
from pilotlight.spec.service import ModelSpec, NodeGroup, Runtime, Service, SupportedFormat


def test_our_pods_meet_the_restricted_level() -> None:
    made = workload(ome())
    context = container(made)["securityContext"]
    assert made.pod_security == "restricted"
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["readOnlyRootFilesystem"] is True
    assert {"name": "scratch", "mountPath": "/tmp"} in container(made)["volumeMounts"]


def test_a_pod_that_wakes_with_its_model_in_the_image_waits_for_no_volume() -> None:
    """What fetches its model and what runs all the time keeps its /tmp."""

    in_image = "file:///models/iris/model.onnx"
    scratch = {"name": "scratch", "emptyDir": {}}
    woken = workload(kserve(uri=in_image), "predictor")
    assert "volumes" not in spec(woken)
    assert env(woken)["TMPDIR"] == "/dev/shm"
    for service in (kserve(), raw(kserve(uri=in_image))):
        kept = workload(service, "predictor")
        assert scratch in spec(kept)["volumes"]
        assert "TMPDIR" not in env(kept)


def test_serverless_pods_have_no_context_of_their_own_since_knative_wants_a_flag_for_it() -> None:
    assert "securityContext" in spec(workload(ome()))
    assert "securityContext" not in spec(workload(ome(min_replicas=0)))
    assert container(workload(ome(min_replicas=0)))["securityContext"]["runAsNonRoot"] is True


def test_a_foreign_image_meets_baseline_with_a_warning_unless_forced() -> None:
    made = planned(ome(runtime_name=FOREIGN))
    assert made.workloads[0].pod_security == "baseline"
    context = container(made.workloads[0])["securityContext"]
    assert "runAsNonRoot" not in context
    assert {"NET_RAW", "MKNOD"} <= set(context["capabilities"]["drop"])
    assert not {"SETUID", "CHOWN"} & set(context["capabilities"]["drop"])
    assert codes(made.warnings) == ["PL351"]
    forced = workload(ome(runtime_name=FOREIGN), capabilities=Capabilities(pod_security="restricted"))
    assert container(forced)["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("target", ["docker", "slurm"])
def test_where_there_are_no_pods_nobody_is_warned_about_their_security(target: str) -> None:
    options = {"partition": "cpu", "container": "pyxis"} if target == "slurm" else {}
    made = planned(ome(runtime_name=FOREIGN), capabilities=Capabilities(target=target, target_options=options))
    assert codes(made.warnings) == []
    assert made.workloads[0].pod_security == "baseline"


def test_what_reaches_into_the_node_is_warned_about() -> None:
    volumes = [{"name": "host", "hostPath": {"path": "/data"}}]
    made = planned(ome(pod={"volumes": volumes}))
    assert made.workloads[0].pod_security == "privileged"
    assert codes(made.warnings) == ["PL350"]


def test_a_folder_of_the_model_agent_is_a_requirement_said_once() -> None:
    split = {"args": ["--disaggregation-mode=prefill"]}
    made = planned(
        with_component(with_component(ome("onnode", FOREIGN, runner=split), "decoder", runner=split), "router")
    )
    assert [work.pod_security for work in made.workloads if work.role != "router"] == ["privileged"] * 2
    assert codes(made.warnings) == []
    assert [each.name for each in made.requirements if "privileged" in each.name] == [
        "a namespace that admits privileged pods"
    ]


def test_a_user_s_security_context_wins() -> None:
    made = workload(ome(runner={"securityContext": {"runAsUser": 7}}))
    assert container(made)["securityContext"]["runAsUser"] == 7


def test_the_predictor_is_told_who_it_is_and_what_it_serves() -> None:
    told = env(workload(ome()))
    assert told["PILOTLIGHT_SERVICE"] == told["INFERENCE_MODEL_NAME"] == "iris"
    assert told["PILOTLIGHT_NAMESPACE"] == "demo"
    assert told["INFERENCE_MODEL_PATH"] == "s3://models/small.onnx"
    assert told["PILOTLIGHT_REVISION"] == workload(ome()).revision
    assert "PILOTLIGHT_REVISION" not in env(workload(ome(min_replicas=0))), "Knative itself tells it"


def test_the_user_s_variables_win_over_ours() -> None:
    variables = [{"name": "INFERENCE_MODEL_NAME", "value": "mine"}, {"name": "EXTRA", "value": "1"}]
    told = env(workload(ome(runner={"env": variables})))
    assert (told["INFERENCE_MODEL_NAME"], told["EXTRA"]) == ("mine", "1")


def test_concurrency_timeout_and_batching_reach_our_predictor() -> None:
    batcher = {"maxBatchSize": 8, "maxLatency": 20}
    told = env(workload(raw(ome(container_concurrency=4, timeout_seconds=90, batcher=batcher))))
    assert told["INFERENCE_MAX_QUEUE_SIZE"] == "4"
    assert told["INFERENCE_TIMEOUT_SECONDS"] == told["INFERENCE_EXIT_TIMEOUT_SECS"] == "90"
    assert (told["INFERENCE_MAX_BATCH_SIZE"], told["INFERENCE_BATCH_TIMEOUT_MS"]) == ("8", "20")


def test_an_example_and_the_warm_up_reach_our_predictor_and_only_ours() -> None:
    body = {"instances": [[1, 2]]}
    service = with_component(ome(), "engine", example=body, warmup="none")
    variables = env(workload(service))
    assert json.loads(variables["INFERENCE_EXAMPLE"]) == body
    assert variables["INFERENCE_WARMUP"] == "none"
    assert reason(planned(service), "engine: warm-up") == ("the example", "spec.model.example is set")
    foreign = with_component(ome(runtime_name=FOREIGN), "engine", example=body)
    assert "INFERENCE_EXAMPLE" not in env(workload(foreign))
    (warning,) = [each for each in planned(foreign).warnings if each.path == "spec.model.example"]
    assert "this image has no warm-up" in warning.message


def test_an_example_of_openai_is_for_probes_only() -> None:
    service = with_component(ome(), "engine", example={"messages": []})
    assert "INFERENCE_EXAMPLE" not in env(workload(service))
    assert reason(planned(service), "engine: warm-up")[0] == "zeros"


def test_pods_carry_the_isolation_of_their_model() -> None:
    isolated = workload(annotated(ome(), **{"pilotlight.dev/isolation": "data"}))
    assert isolated.template["metadata"]["annotations"]["pilotlight.dev/isolation"] == "data"
    assert isolated.revision != workload(ome()).revision


@pytest.mark.parametrize(("service", "memory"), [(ome(), "2158Mi"), (kserve(), "auto")])
def test_gpu_memory_is_estimated_where_the_size_of_the_model_is_known(service: Service, memory: str) -> None:
    made = workload(annotated(service, **{"pilotlight.dev/gpu-memory": "auto"}))
    assert made.template["metadata"]["annotations"]["pilotlight.dev/gpu-memory"] == memory


def test_another_example_is_another_revision() -> None:
    one, two = (with_component(ome(), "engine", example={"instances": [n]}) for n in (1, 2))
    assert workload(one).revision != workload(two).revision


def test_parking_reaches_our_predictor_only_where_the_annotation_says_so() -> None:
    told = env(workload(annotated(ome(), **{"pilotlight.dev/park": "true"})))
    assert (told["INFERENCE_PARK_MEMORY"], told["INFERENCE_PARK_AFTER_S"]) == ("25%", "60")
    for other in (ome(), annotated(ome(), **{"pilotlight.dev/park": "false"})):
        assert not [name for name in env(workload(other)) if "PARK" in name]


def test_a_pod_that_ends_has_time_to_answer() -> None:
    assert spec(workload(ome(timeout_seconds=90)))["terminationGracePeriodSeconds"] == 105
    assert "terminationGracePeriodSeconds" not in spec(workload(ome(min_replicas=0)))


def test_generative_models_get_300_seconds_whatever_is_written() -> None:
    made = planned(ome(runtime_name="llm", timeout_seconds=30))
    assert made.workloads[0].timeout_seconds == 300
    assert "PL345" in codes(made.warnings)
    assert workload(ome(timeout_seconds=30)).timeout_seconds == 30
    assert workload(ome()).timeout_seconds == 300


def test_serverless_has_one_port_raw_shows_all_three() -> None:
    assert container(workload(ome(min_replicas=0)))["ports"] == [{"name": "http1", "containerPort": 8080}]
    assert [port["name"] for port in container(workload(ome()))["ports"]] == ["http", "grpc", "metrics"]
    grpc = workload(kserve(protocol="grpc-v2"))
    assert container(grpc)["ports"] == [{"name": "h2c", "containerPort": 8081}]
    assert (grpc.port, grpc.port_name) == (8081, "h2c")


def test_a_foreign_server_s_own_port_is_used() -> None:
    made = workload(ome(runtime_name=FOREIGN, runner={"ports": [{"containerPort": 8000}]}))
    assert made.port == 8000
    assert made.metrics_port is None


def collocated(name: str) -> Service:
    """A server without a port of its own, and beside it a container that has one."""
    sidecar = {"name": name, "image": "t:1", "ports": [{"containerPort": 8085, "name": "web"}]}
    return kserve(FOREIGN, pod={"containers": [sidecar]})


def ports(work: Workload) -> dict[str, Any]:
    return {each["name"]: each.get("ports") for each in spec(work)["containers"]}


def test_a_sidecar_that_alone_declares_a_port_gets_the_requests_of_a_knative_service() -> None:
    made = workload(collocated("transformer-container"))
    assert (made.port, made.port_name) == (8085, "http1")
    assert ports(made) == {"main": None, "transformer-container": [{"name": "http1", "containerPort": 8085}]}
    assert ports(workload(collocated("any"))) == {"main": None, "any": [{"name": "http1", "containerPort": 8085}]}


def test_a_deployment_leads_to_a_collocated_transformer_but_not_to_a_sidecar_s_metrics() -> None:
    assert workload(raw(collocated("transformer-container"))).port == 8085
    assert workload(raw(collocated("exporter"))).port == 8080


def test_ports_of_a_second_container_are_left_out_of_a_knative_service_with_a_warning() -> None:
    sidecar = {"name": "exporter", "image": "t:1", "ports": [{"containerPort": 9100}]}
    made = planned(ome(min_replicas=0, pod={"containers": [sidecar]}))
    assert ports(made.workloads[0]) == {"main": [{"name": "http1", "containerPort": 8080}], "exporter": None}
    assert [each.message for each in made.warnings] == [
        "ports of exporter are rejected by Knative next to those of main and removed"
    ]
    assert ports(workload(ome(pod={"containers": [sidecar]})))["exporter"] == sidecar["ports"]


MEMORY = [
    (ome(), "1Gi", "twice the model's 0.1 GB"),
    (ome("big"), "57221Mi", "twice the model's 30.0 GB"),
    (ome("unsized"), "2Gi", "unknown"),
    (ome(runner=GPU), "2Gi", "/dev/shm"),
]


@pytest.mark.parametrize(("service", "memory", "why"), MEMORY)
def test_memory_defaults_to_twice_the_model(service: Service, memory: str, why: str) -> None:
    made = planned(service)
    assert container(made.workloads[0])["resources"]["requests"]["memory"] == memory
    assert why in reason(made, "engine: memory")[1]


def test_memory_that_is_written_is_kept_and_warned_about_when_the_model_is_larger() -> None:
    limits = {"resources": {"limits": {"memory": "2Gi"}}}
    made = planned(ome("big", runner=limits))
    assert container(made.workloads[0])["resources"]["limits"]["memory"] == "2Gi"
    assert codes(made.warnings) == ["PL344"]


def with_runtime_memory(memory: Any, **engine: Any) -> Workload:
    runner = {"name": "main", "image": "example/llm:1", "args": ["$(LWS_WORKER_INDEX)"], "resources": memory}
    config = {"leader": {"runner": runner}, "worker": {"runner": runner}} if "worker" in engine else {"runner": runner}
    runtime = Runtime("llm", "ClusterServingRuntime", "ome", (SupportedFormat("onnx"),), engine=config)
    return plan(ome("big", "llm", **engine), replace(CATALOGUE, runtimes=(runtime,))).workloads[0]


def test_memory_of_a_runtime_is_raised_to_twice_the_model_and_that_of_the_document_is_kept() -> None:
    small = {"requests": {"memory": "4Gi"}}
    assert container(with_runtime_memory(small))["resources"]["requests"]["memory"] == "56Gi", "60 GB"
    assert "limits" not in container(with_runtime_memory(small))["resources"]
    limited = container(with_runtime_memory({"requests": {"memory": "4Gi"}, "limits": {"memory": "4Gi"}}))
    assert limited["resources"]["limits"]["memory"] == limited["resources"]["requests"]["memory"] == "56Gi"
    kept = with_runtime_memory(small, runner={"resources": {"requests": {"memory": "5Gi"}}})
    assert container(kept)["resources"]["requests"]["memory"] == "5Gi"
    plenty = {"requests": {"memory": "99Gi"}}
    assert container(with_runtime_memory(plenty))["resources"]["requests"]["memory"] == "99Gi"


def test_pods_of_a_group_share_the_memory_of_a_model() -> None:
    made = with_runtime_memory({"requests": {"memory": "1Gi"}}, worker=NodeGroup(size=3))
    assert made.worker_template is not None
    for template in (made.template, made.worker_template):
        resources = template["spec"]["containers"][0]["resources"]
        assert resources["requests"]["memory"] == "14Gi", "a quarter of 60 GB"


def test_cpu_defaults_to_a_core_for_each_gpu() -> None:
    two = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert container(workload(ome(runner=two)))["resources"]["requests"]["cpu"] == "2"
    assert container(workload(ome()))["resources"]["requests"]["cpu"] == "1"


def test_labels_and_annotations_travel_to_the_pods_but_for_those_that_decided() -> None:
    service = annotated(replace(ome(labels={"team": "a"}), labels={"cost": "b"}), note="kept")
    metadata = workload(raw(service)).template["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["cost"] == "b"
    assert metadata["labels"]["serving.ome.io/inferenceservice"] == "iris"
    assert metadata["annotations"] == {"note": "kept"}


def test_an_account_is_made_unless_every_component_names_one() -> None:
    assert planned(ome()).service_account == spec(workload(ome()))["serviceAccountName"] == "iris"
    named = planned(ome(pod={"serviceAccountName": "mine"}))
    assert (named.service_account, spec(named.workloads[0])["serviceAccountName"]) == ("", "mine")


def test_replicas_spread_over_nodes_where_it_needs_no_flag() -> None:
    assert spec(workload(ome()))["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert "topologySpreadConstraints" not in spec(workload(ome(min_replicas=0)))


def test_sidecars_and_pod_fields_are_passed_on() -> None:
    pod = {
        "containers": [{"name": "side", "image": "side:1"}],
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "high",
    }
    made = spec(workload(ome(pod=pod)))
    assert [item["name"] for item in made["containers"]] == ["main", "side"]
    assert made["priorityClassName"] == "high"
    assert made["tolerations"] == [{"operator": "Exists"}]


def test_a_transformer_is_told_where_the_predictor_is() -> None:
    pod = {"containers": [{"name": "kserve-container", "image": "t:1", "args": ["--model_name=mine"]}]}
    made = planned(in_mode(with_component(kserve(), "transformer", pod=pod), "Standard"))
    transformer = next(work for work in made.workloads if work.role == "transformer")
    assert container(transformer)["args"] == ["--model_name=mine", "--predictor_host", "iris-predictor.demo"]
    assert made.entry == "iris-transformer"
    assert {work.role: work.internal for work in made.workloads} == {"predictor": True, "transformer": False}


def test_a_container_without_image_and_runtime_is_refused() -> None:
    service = with_component(kserve(), "transformer", pod={"containers": [{"name": "kserve-container"}]})
    assert codes(refusals(service)) == ["PL307"]


def test_our_gateway_routes_by_the_settings_of_the_router() -> None:
    config = {"routing_strategy": "cache_aware", "health_check_interval": "30s"}
    routed = with_component(ome(), "router", config=config)
    told = env(workload(routed, "router"))
    assert "cache_aware is deprecated; use prefix_aware" in [each.message for each in planned(routed).warnings]
    assert told["PILOTLIGHT_ROUTER_STRATEGY"] == "prefix_aware"
    assert told["PILOTLIGHT_ROUTER_HEALTH_CHECK_INTERVAL_S"] == "30"
    assert told["PILOTLIGHT_ROUTER_ENGINE"] == "iris-engine"
    both = with_component(with_component(ome(), "decoder"), "router")
    assert env(workload(both, "router"))["PILOTLIGHT_ROUTER_STRATEGY"] == "prefill_decode"


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"routing_strategy": "fastest"}, "PL346"),
        ({"routing_strategy": "prefill_decode"}, "PL346"),
        ({"strategy": "round_robin"}, "PL347"),
        ({"health_check_interval": "often"}, "PL348"),
        ({"health_check_interval": "1ms"}, "PL348"),
    ],
)
def test_a_router_s_setting_that_means_nothing_is_refused(config: dict[str, str], code: str) -> None:
    assert codes(refusals(with_component(ome(), "router", config=config))) == [code]


@pytest.mark.parametrize("strategy", ["round_robin", "least_loaded", "prefix_aware"])
def test_a_strategy_that_sends_the_decoder_nothing_is_refused(strategy: str) -> None:
    routed = with_component(with_component(ome(), "decoder"), "router", config={"routing_strategy": strategy})
    (problem,) = refusals(routed)
    assert (problem.code, problem.path) == ("PL346", "spec.router.config.routing_strategy")
    assert "prefill_decode" in problem.message


def test_a_decoder_without_a_router_is_refused() -> None:
    (problem,) = refusals(with_component(ome(), "decoder"))
    assert (problem.code, problem.path) == ("PL377", "spec.decoder")


def test_a_kserve_model_s_own_container_fields_win() -> None:
    model = ModelSpec("onnx", runtime=FOREIGN, storage_uri="s3://m/x", container={"args": ["--fast"]})
    assert container(workload(changed(kserve(), model=model)))["args"] == ["--fast"]


def test_what_knative_would_reject_is_left_out_of_its_pods_with_a_warning() -> None:
    pod = {"hostname": "a", "automountServiceAccountToken": True, "restartPolicy": "Always"}
    runner = {"lifecycle": {"preStop": {}}, "securityContext": {"privileged": True, "runAsUser": 7}}
    made = planned(ome(min_replicas=0, pod=pod, runner=runner))
    left = made.workloads[0].template["spec"]
    assert not {"hostname", "automountServiceAccountToken", "restartPolicy"} & left.keys()
    assert "lifecycle" not in left["containers"][0]
    assert "privileged" not in left["containers"][0]["securityContext"]
    assert codes(made.warnings).count("PL359") == 5
    assert spec(workload(ome(pod={"hostname": "a"})))["hostname"] == "a"


def test_our_volumes_are_there_only_where_they_are_mounted() -> None:
    mine = {"volumeMounts": [{"name": "mine", "mountPath": "/tmp"}]}
    made = spec(workload(ome(min_replicas=0, runner=mine, pod={"volumes": [{"name": "mine", "emptyDir": {}}]})))
    assert [volume["name"] for volume in made["volumes"]] == ["model-cache", "mine"]


def test_braces_in_a_user_s_own_texts_are_left_alone() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert container(workload(ome(runner={"args": ["--chat-template", template]})))["args"][1] == template
