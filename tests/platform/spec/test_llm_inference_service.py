"""KServe's LLMInferenceService read into the internal model, and what is planned from it."""

import io
from typing import Any

import pytest
import yaml

from pilotlight.plan.types import Plan, Workload
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import InvalidDocument, Problems
from pilotlight.spec.service import Service

MODEL = {"uri": "hf://Qwen/Qwen2.5-7B-Instruct"}
GPUS = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}


def text(version: str = "v1alpha1", **spec: Any) -> str:
    document = {
        "apiVersion": f"serving.kserve.io/{version}", "kind": "LLMInferenceService",
        "metadata": {"name": "qwen"}, "spec": {"model": MODEL, **spec},
    }  # fmt: skip
    return yaml.safe_dump(document, sort_keys=False)


def read(**spec: Any) -> tuple[Service, Problems]:
    loaded = load(["-"], stdin=io.StringIO(text(**spec)))
    (service,) = loaded.services
    return service, loaded.problems


def planned(**spec: Any) -> Plan:
    (made,) = plan_all(Sources(["-"], stdin=io.StringIO(text(**spec)))).plans
    return made


def arguments(template: Any) -> list[str]:
    container: dict[str, Any] = template["spec"]["containers"][0]
    return list(container["args"])


def workload(plan: Plan, role: str) -> Workload:
    return next(work for work in plan.workloads if work.role == role)


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_a_model_alone_is_an_engine_within_the_cluster(version: str) -> None:
    service, problems = read(version=version)
    assert not problems.items
    assert list(service.components) == ["engine"]
    assert service.labels["networking.knative.dev/visibility"] == "cluster-local"
    assert "networking.knative.dev/visibility" not in read(router={"route": {}})[0].labels


def test_the_engine_is_vllm_with_the_document_s_arguments() -> None:
    main = {
        "name": "main", "image": "example/vllm:1", "args": ["--seed", "7"], **GPUS,
        "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--gpu_memory_utilization 0.5 --enforce-eager"}],
    }  # fmt: skip
    spec: dict[str, Any] = {"template": {"containers": [main]}, "parallelism": {"tensor": 2, "expert": True}}
    engine = workload(planned(**{**spec, "model": {**MODEL, "name": "Qwen/Qwen"}}), "engine")
    assert engine.annotations["pilotlight.dev/model-names"].startswith("Qwen/Qwen, ")
    container = engine.template["spec"]["containers"][0]
    assert container["image"] == "example/vllm:1"
    assert container["args"] == [
        "$(MODEL_PATH)", "--port=8080", "--served-model-name=Qwen/Qwen", "--tensor-parallel-size=2",
        "--gpu-memory-utilization", "0.5", "--enable-expert-parallel", "--enforce-eager", "--seed", "7",
    ]  # fmt: skip
    assert "VLLM_ADDITIONAL_ARGS" not in {variable["name"] for variable in container["env"]}


def test_a_container_with_a_command_is_taken_as_it_stands() -> None:
    probe = {"httpGet": {"path": "/up", "port": 9000}}
    main = {"name": "main", "image": "x:1", "command": ["serve"], "readinessProbe": probe}
    engine = workload(planned(template={"containers": [main, {"name": "side", "image": "y:1"}]}), "engine")
    container, sidecar = engine.template["spec"]["containers"]
    assert (container["command"], container.get("args") or []) == (["serve"], [])
    assert container["readinessProbe"]["httpGet"]["port"] == 9000
    assert sidecar["name"] == "side"


def test_the_main_workload_decodes_beside_a_prefill() -> None:
    prefill = {"replicas": 2, "template": {"containers": [{"name": "main", **GPUS}]}}
    made = planned(replicas=3, prefill=prefill, router={"route": {}})
    bounds = {work.role: work.scaling.min_replicas for work in made.workloads}
    assert (bounds["engine"], bounds["decoder"]) == (2, 3)
    assert workload(made, "router").name == made.entry
    assert "--kv-transfer-config" in str(arguments(workload(made, "decoder").template))


def test_workers_are_the_further_stages_of_a_pipeline() -> None:
    pod = {"containers": [{"name": "main", **GPUS}]}
    made = planned(template=pod, worker=pod, parallelism={"pipeline": 3, "tensor": 2})
    engine = workload(made, "engine")
    assert engine.group_size == 3
    assert engine.worker_template is not None
    assert {"--pipeline-parallel-size=3", "--nnodes=$(LWS_GROUP_SIZE)", "--headless"} <= {
        *arguments(engine.worker_template)
    }
    spread = workload(planned(template=pod, worker=pod, parallelism={"data": 8, "dataLocal": 4}), "engine")
    assert (spread.group_size, spread.template["spec"]["containers"][0]["command"]) == (2, ["vllm", "serve"])
    _, problems = read(template=pod, worker=pod, parallelism={"tensor": 4})
    assert [(problem.code, problem.path) for problem in problems.errors] == [("PL119", "spec.worker")]


def test_triggers_of_keda_scale_within_the_bounds() -> None:
    query = {"serverAddress": "http://prometheus:9090", "query": "sum(rate(tokens[1m]))", "threshold": "50"}
    scaling = {"maxReplicas": 4, "keda": {"triggers": [{"type": "prometheus", "metadata": query}]}}
    made = workload(planned(scaling=scaling), "engine").scaling
    assert (made.scaler, made.min_replicas, made.max_replicas) == ("keda", 1, 4)
    assert "sum(rate(tokens[1m]))" in str(made.triggers)
    _, problems = read(scaling=scaling, replicas=2)
    assert [problem.code for problem in problems.errors] == ["PL111"]


@pytest.mark.parametrize(
    ("spec", "code", "path"),
    [
        ({"baseRefs": [{"name": "x"}]}, "PL119", "spec.baseRefs[0]"),
        (
            {"model": {**MODEL, "lora": {"adapters": 2 * [{"uri": "s3://a", "name": "x"}]}}},
            "PL104",
            "spec.model.lora.adapters[1].name",
        ),
        ({"router": {"route": {"http": {"refs": [{"name": "x"}]}}}}, "PL119", "spec.router.route.http.refs"),
        ({"router": {"scheduler": {"config": {"inline": {}}}}}, "PL114", "spec.router.scheduler.config"),
        ({"prefill": {"scaling": {"maxReplicas": 2, "wva": {}}}}, "PL114", "spec.prefill.scaling.wva"),
        ({"storageInitializer": {"enabled": False}}, "PL114", "spec.storageInitializer.enabled"),
        ({"replicas": 0}, "PL104", "spec.replicas"),
        (
            {"template": {"containers": [{"name": "main", "env": [{"value": "1"}]}]}},
            "PL103",
            "spec.template.containers[0].env[0].name",
        ),
        (
            {"template": {"containers": [{"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "'"}]}]}},
            "PL104",
            "spec.template",
        ),
        ({"template": {"containers": [{"name": "main", "readinessProbe": {}}]}}, "PL114", "spec.template"),
    ],
)
def test_a_field_without_meaning_is_named_with_its_place(spec: dict[str, Any], code: str, path: str) -> None:
    _, problems = read(**spec)
    (problem,) = problems.items
    assert (problem.code, problem.path) == (code, path)
    assert problem.location.line > 5


def test_a_problem_of_planning_is_at_the_line_of_the_field() -> None:
    service, _ = read(template={"containers": [{"name": "main", "image": "x"}]}, prefill={"worker": {"containers": []}})
    assert (
        service.location("spec.decoder.runner.image").line
        == service.locations["spec.template.containers[0].image"].line
    )
    assert service.location("spec.engine.worker").line == service.locations["spec.prefill.worker"].line


@pytest.mark.parametrize(
    ("planned", "written"),
    [
        ("spec.engine.model.storageUri", "spec.model.uri"),
        ("spec.decoder.model.storageUri", "spec.model.uri"),
        ("spec.engine", "spec.prefill.template"),
        ("spec.decoder.runner.env[0].name", "spec.template.containers[0].env[0].name"),
        ("spec.decoder.minReplicas", "spec.decoder.minReplicas"),
        ("metadata.name", "metadata.name"),
    ],
)
def test_a_problem_of_planning_names_the_field_of_the_document(planned: str, written: str) -> None:
    service, _ = read(template={"containers": [{"name": "main", "image": "x"}]}, prefill={})
    assert service.written_path(planned) == written


def test_a_model_that_cannot_be_fetched_is_told_once_for_prefill_and_decode() -> None:
    with pytest.raises(InvalidDocument) as raised:
        planned(model={"uri": "huggingface://a/b"}, prefill={})
    (problem,) = [each for each in raised.value.problems if each.severity == "error"]
    assert (problem.code, problem.path, problem.location.line > 5) == ("PL340", "spec.model.uri", True)


def test_a_document_is_laid_over_the_configs_that_it_names() -> None:
    def config(name: str, replicas: int, *containers: Any) -> str:
        template = {"containers": list(containers)}
        return (
            text(replicas=replicas, template=template)
            .replace("name: qwen", f"name: {name}")
            .replace("LLMInferenceService", "LLMInferenceServiceConfig")
        )

    variables = [{"name": name, "value": "1"} for name in ("A", "B")]
    first = config("first", 2, {"name": "main", "image": "x:1", "env": variables}, {"name": "side", "image": "y:1"})
    own = {"containers": [{"name": "main", "env": [{"name": "B", "value": "2"}]}]}
    document = text(baseRefs=[{"name": "first"}, {"name": "second"}], template=own)
    loaded = load(["-"], stdin=io.StringIO("---\n".join((document, first, config("second", 3)))))
    assert not loaded.problems.items
    (service,) = loaded.services
    engine = service.components["engine"]
    assert (engine.min_replicas, engine.runner, len(engine.pod["containers"])) == (
        3, {"image": "x:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, 1,
    )  # fmt: skip
    assert "baseRefs" not in service.document["spec"]


def test_devices_are_those_of_the_document() -> None:
    def limits(container: dict[str, Any] | None = None, **resources: Any) -> Any:
        template = {
            "containers": [{"name": "main", **(container or {}), **({"resources": resources} if resources else {})}]
        }
        return workload(planned(template=template), "engine").template["spec"]["containers"][0]["resources"]["limits"]

    assert limits()["nvidia.com/gpu"] == "1"
    assert limits(requests={"cpu": "1"})["nvidia.com/gpu"] == "0"
    assert limits({"image": "x:1", "command": ["serve"]}, limits={"cpu": "1"})["nvidia.com/gpu"] == "0"
    assert limits(limits={"amd.com/gpu": "2"}) == {"nvidia.com/gpu": "0", "amd.com/gpu": "2"}
