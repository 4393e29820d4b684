"""Devices of pods: their number, their nodes, shared memory, and groups of several nodes."""

from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    CATALOGUE,
    GB,
    GPU,
    annotated,
    changed,
    codes,
    container,
    in_mode,
    kserve,
    ome,
    planned,
    refusals,
    spec,
    workload,
)

from pilotlight.plan import plan
from pilotlight.plan.types import Workload
from pilotlight.spec.service import BaseModel, Catalogue, NodeGroup, Runtime, SupportedFormat


def test_a_gpu_request_gets_its_limit_and_shared_memory() -> None:
    made = workload(ome(runner=GPU))
    assert container(made)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    volume = next(volume for volume in spec(made)["volumes"] if volume["name"] == "shared-memory")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container(made)["volumeMounts"]
    assert "shared-memory" not in str(workload(ome()).template)


def test_shared_memory_that_the_user_mounts_is_left_alone() -> None:
    mine = {**GPU, "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm"}]}
    assert "shared-memory" not in str(workload(ome(runner=mine, pod={"volumes": [{"name": "mine"}]})).template)


def test_leader_and_workers_have_templates_of_their_own() -> None:
    made = workload(ome(runner=GPU, leader=NodeGroup(), worker=NodeGroup(size=3, runner={"args": ["--worker"]})))
    assert made.group_size == 4
    assert made.worker_template is not None
    worker = made.worker_template["spec"]["containers"][0]
    assert worker["args"] == ["--worker"]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "readinessProbe" not in worker


@pytest.mark.parametrize(("image", "address"), [("sglang", "dist-init-addr"), ("vllm-openai", "master-addr")])
def test_an_engine_of_several_nodes_gets_its_ranks(image: str, address: str) -> None:
    made = workload(changed(ome(runner={"image": f"example/{image}:1", "args": ["--a"]}), worker=NodeGroup(size=3)))
    assert made.worker_template is not None
    leader, worker = container(made)["args"], made.worker_template["spec"]["containers"][0]["args"]
    assert leader[:3] == ["--a", "--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)"]
    assert leader[3].startswith(f"--{address}=$(LWS_LEADER_ADDRESS)")
    assert worker == leader + (["--headless"] if image == "vllm-openai" else [])


@pytest.mark.parametrize(
    "runner",
    [
        {"image": "example/other:1"},
        {"image": "sglang:1", "command": ["bash", "-c", "x"]},
        {"image": "vllm:1", "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]},
    ],
)
def test_a_group_whose_pods_would_not_find_each_other_is_refused(runner: dict[str, Any]) -> None:
    (problem,) = refusals(changed(ome(runner=runner), worker=NodeGroup(size=1)))
    assert (problem.code, problem.path) == ("PL378", "spec.engine.worker")
    arranged = {**runner, "args": ["--rank=$(LWS_WORKER_INDEX)"]}
    assert container(workload(changed(ome(runner=arranged), worker=NodeGroup(size=1))))["args"] == arranged["args"]


def test_a_leader_alone_needs_no_rank() -> None:
    assert workload(ome(runner={"image": "example/other:1"}, leader=NodeGroup())).group_size == 1


def test_ray_runs_a_group_by_annotation() -> None:
    service = in_mode(ome(worker=NodeGroup(size=1)), "MultiNodeRayVLLM")
    assert workload(service).cluster == "ray"
    elsewhere = annotated(ome(), **{"ome.io/deploymentMode": "MultiNodeRayVLLM"})
    assert workload(elsewhere).cluster == "leader-worker-set", "a Deployment has nothing to do with Ray"


def test_a_runtime_that_is_not_made_for_ray_is_warned_about() -> None:
    for_sets = ome(worker=NodeGroup(size=1), runner={"args": ["--nnodes=$(LWS_GROUP_SIZE)"]})
    assert codes(planned(in_mode(for_sets, "MultiNodeRayVLLM")).warnings) == ["PL365"]
    assert not planned(for_sets).warnings


def test_an_accelerator_class_brings_its_node_and_devices() -> None:
    service = replace(ome("big"), accelerator={"acceleratorClass": "h100"})
    made = spec(workload(service))
    assert made["nodeSelector"] == {"gpu": "h100"}
    assert made["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert codes(refusals(replace(ome(), accelerator={"acceleratorClass": "h999"}))) == ["PL306"]


def on_h100(runtime: Runtime, model_bytes: int, **engine: Any) -> Workload:
    models = (BaseModel("m", "ClusterBaseModel", "onnx", storage_uri="s3://m/x", size_bytes=model_bytes),)
    runtime = replace(runtime, accelerators={"acceleratorClasses": ["*"]})
    service = replace(ome("m", runtime.name, **engine), accelerator={"acceleratorClass": "h100"})
    return plan(service, replace(CATALOGUE, runtimes=(runtime,), models=models)).workloads[0]


def test_a_model_gets_the_devices_it_fits_into_unless_the_user_counts_them() -> None:
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    runner = {"name": "main", "image": "example/llm:1", **one}
    runtime = Runtime("one", "ClusterServingRuntime", "ome", (SupportedFormat("onnx"),), engine={"runner": runner})

    def devices(size: int, **engine: Any) -> str:
        return str(container(on_h100(runtime, size, **engine))["resources"]["limits"]["nvidia.com/gpu"])

    assert devices(16 * GB) == "1"
    assert devices(140 * GB) == "4", "140 GB, their cache and overhead do not fit into 2 of 80 GiB"
    assert devices(70 * GB, runner=one) == "1", "the user's word"


def test_the_devices_of_a_model_are_spread_over_its_nodes_and_every_node_knows_their_number() -> None:
    runner = {"name": "main", "image": "example/llm:1"}
    runtime = Runtime(
        "many", "ClusterServingRuntime", "ome", (SupportedFormat("onnx"),),
        engine={"leader": {"runner": runner}, "worker": {"runner": runner, "size": 1}},
    )  # fmt: skip
    made = on_h100(runtime, 600 * GB, worker=NodeGroup(size=1))
    assert made.worker_template is not None
    for template in (made.template, made.worker_template):
        main = template["spec"]["containers"][0]
        assert main["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert {"name": "PARALLELISM_SIZE", "value": "16"} in main["env"]


def test_kserve_s_parallelism_is_told_to_every_node_with_its_devices() -> None:
    several = Catalogue(
        (Runtime("many", "ClusterServingRuntime", "kserve", (SupportedFormat("onnx"),),
                 pod={"containers": [{"name": "kserve-container", "image": "s:1"}]},
                 workers={"containers": [{"name": "worker-container", "image": "s:1"}]}),),
    )  # fmt: skip
    worker = NodeGroup(size=1, parallelism={"tensor": 4, "pipeline": 2})
    service = changed(kserve("many", protocol=""), worker=worker)
    made = plan(in_mode(service, "Standard"), several).workloads[0]
    assert made.worker_template is not None
    for template in (made.template, made.worker_template):
        main = template["spec"]["containers"][0]
        assert {"name": "TENSOR_PARALLEL_SIZE", "value": "4"} in main["env"]
        assert main["resources"]["limits"]["nvidia.com/gpu"] == "4"
