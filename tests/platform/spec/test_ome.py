"""OME's InferenceService read into the internal model: its guide's documents as they stand, and every field."""

import io
from pathlib import Path

import pytest
from tests.doc_pages import page_section

from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import SourceLocation
from pilotlight.spec.service import Component, Service

GUIDE = Path(__file__).parent / "documents" / "ome-guide"
HEAD = "apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: chat}\n"


def service(text: str, *, warnings: int = 0) -> Service:
    loaded = load(["-"], stdin=io.StringIO(text))
    assert not loaded.problems.errors
    assert len(loaded.problems.warnings) == warnings
    (found,) = loaded.services
    return found


@pytest.mark.parametrize("path", sorted(GUIDE.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_document_of_the_guide_reads_without_a_word(path: Path) -> None:
    loaded = load([str(path)])
    assert not loaded.problems.items
    assert len(loaded.services) == 1


def guide(name: str) -> Service:
    (found,) = load([str(GUIDE / f"{name}.yaml")]).services
    return found


def test_resources_on_a_component_are_the_runners() -> None:
    engine = guide("component-resources").components["engine"]
    assert engine.runner == {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    assert "resources" not in engine.pod


def test_resources_on_a_component_complete_a_runner() -> None:
    found = service(HEAD + "spec: {engine: {resources: {limits: {cpu: 2}}, runner: {image: a}}}")
    assert found.components["engine"].runner == {"image": "a", "resources": {"limits": {"cpu": "2"}}}


def test_resources_of_leader_and_worker_are_their_runners_too() -> None:
    text = "spec: {engine: {leader: {resources: {limits: {cpu: 1}}}, worker: {resources: {limits: {cpu: 2}}}}}"
    engine = service(HEAD + text).components["engine"]
    assert engine.leader is not None
    assert engine.worker is not None
    assert engine.leader.runner == {"resources": {"limits": {"cpu": "1"}}}
    assert engine.worker.runner == {"resources": {"limits": {"cpu": "2"}}}


def test_a_model_has_an_engine_also_where_only_its_other_components_are_written() -> None:
    found = service(HEAD + "spec: {model: {name: m}, decoder: {minReplicas: 2}, router: {}}")
    assert list(found.components) == ["engine", "decoder", "router"]
    assert found.components["engine"] == Component("engine")


def test_an_engine_with_pod_fields_scaling_and_a_runner() -> None:
    engine = guide("engine").components["engine"]
    assert engine.pod == {"serviceAccountName": "custom-sa", "nodeSelector": {"accelerator": "nvidia-a100"}}
    assert (engine.min_replicas, engine.max_replicas) == (1, 10)
    assert (engine.scale_metric, engine.scale_target) == ("cpu", 70)
    assert engine.runner is not None
    assert engine.runner["image"] == "custom-vllm:latest"
    assert engine.runner["env"] == [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]


def test_engine_decoder_and_router_beside_each_other() -> None:
    found = guide("disaggregated")
    assert list(found.components) == ["engine", "decoder", "router"]
    assert found.components["decoder"].max_replicas == 8
    assert guide("router").components["router"].config == {
        "routing_strategy": "round_robin",
        "health_check_interval": "30s",
    }


def test_a_worker_makes_a_group() -> None:
    worker = guide("multi-node").components["engine"].worker
    assert worker is not None
    assert worker.size == 1


def test_references_get_the_kinds_that_ome_gives_them() -> None:
    found = guide("component-resources")
    assert found.model is not None
    assert found.runtime is not None
    assert (found.model.name, found.model.kind, found.model.group) == (
        "llama-3-70b-instruct",
        "ClusterBaseModel",
        "ome.io",
    )
    assert (found.runtime.name, found.runtime.kind) == ("vllm-text-generation", "ClusterServingRuntime")


def test_a_model_alone_is_served_by_an_engine() -> None:
    found = service(HEAD + "spec: {model: {name: llama, kind: BaseModel, fineTunedWeights: [lora]}}")
    assert found.components == {"engine": Component("engine")}
    assert found.model is not None
    assert found.model.kind == "BaseModel"
    assert [each.name for each in found.adapters] == ["lora"]


def test_keda_of_the_service_and_of_a_component() -> None:
    found = service(
        HEAD + "spec:\n  kedaConfig: {enableKeda: true, promServerAddress: 'http://p:9090', scalingThreshold: '0.5'}\n"
        "  engine:\n    kedaConfig:\n      customPromQuery: q('%s')\n      scalingOperator: LessThanOrEqual\n"
        "      authenticationRef: {name: grafana}\n      authModes: basic\n"
    )
    assert found.keda is not None
    assert (found.keda.enabled, found.keda.server_address, found.keda.threshold) == (True, "http://p:9090", "0.5")
    own = found.components["engine"].keda
    assert own is not None
    assert (own.enabled, own.query, own.operator, own.auth_modes) == (None, "q('%s')", "LessThanOrEqual", "basic")
    assert own.authentication == {"kind": "TriggerAuthentication", "name": "grafana"}


def test_everything_else_that_a_component_can_say() -> None:
    engine = service(
        HEAD + "spec:\n  acceleratorSelector: {acceleratorClass: h100, policy: Cheapest}\n  engine:\n"
        "    containerConcurrency: 4\n    timeoutSeconds: 300\n    canaryTrafficPercent: 10\n    minAvailable: 50%\n"
        "    labels: {team: a}\n    annotations: {ome.io/deploymentMode: RawDeployment}\n    maxReplicas: 0\n"
        "    deploymentStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 25%}}\n"
        "    acceleratorOverride: {constraints: {minMemory: 40, requiredFeatures: [nvlink]}}\n"
    ).components["engine"]
    assert (engine.container_concurrency, engine.timeout_seconds, engine.canary_traffic_percent) == (4, 300, 10)
    assert (engine.min_available, engine.max_unavailable, engine.max_replicas) == ("50%", None, None)
    assert (engine.labels, engine.annotations) == ({"team": "a"}, {"ome.io/deploymentMode": "RawDeployment"})
    assert engine.deployment_strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": "25%"}
    assert engine.accelerator == {"constraints": {"minMemory": 40, "requiredFeatures": ["nvlink"]}}


def test_the_older_predictor_becomes_an_engine_with_a_warning() -> None:
    found = service(
        HEAD + "spec:\n  predictor:\n    minReplicas: 2\n    serviceAccountName: sa\n    workerSpec: {size: 3}\n"
        "    model: {baseModel: llama, runtime: vllm, protocolVersion: v2, env: [{name: A, value: b}],"
        " fineTunedWeights: [w]}\n",
        warnings=1,
    )
    engine = found.components["engine"]
    assert (engine.role, engine.min_replicas, engine.pod) == ("engine", 2, {"serviceAccountName": "sa"})
    assert engine.runner == {"env": [{"name": "A", "value": "b"}]}
    assert engine.worker is not None
    assert engine.worker.size == 3
    assert found.model is not None
    assert found.runtime is not None
    assert (found.model.name, found.runtime.name, found.adapters[0].name) == ("llama", "vllm", "w")
    assert found.location("spec.engine.minReplicas") == SourceLocation("<stdin>", 6, 18)


def test_the_older_predictor_beside_an_engine_is_refused() -> None:
    loaded = load(["-"], stdin=io.StringIO(HEAD + "spec: {engine: {}, predictor: {model: {baseModel: a}}}"))
    assert [problem.code for problem in loaded.problems.errors] == ["PL111"]


def test_what_the_cluster_writes_is_passed_over() -> None:
    found = service(
        "apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: chat\n  namespace: prod\n"
        "  uid: 1\n  resourceVersion: 7\n  generation: 2\n  creationTimestamp: 2024-01-15T10:30:00Z\n"
        "  managedFields: [{anything: at all}]\n  finalizers: [x]\n  annotations:\n"
        "    kubectl.kubernetes.io/last-applied-configuration: '{}'\n    mine: kept\n"
        "spec: {model: {name: llama}}\nstatus: {url: x, unknown: {a: 1}}\n"
    )
    assert (found.name, found.namespace, found.annotations) == ("chat", "prod", {"mine": "kept"})
    assert set(found.document) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(found.document["metadata"]) == {"name", "namespace", "annotations"}


def test_null_says_nothing() -> None:
    found = service(HEAD + "spec: {model: {name: a}, engine: {minReplicas: null, runner: null, labels: ~}}")
    assert found.components["engine"] == Component("engine")


def test_every_path_of_a_service_has_its_place() -> None:
    found = guide("engine")
    file = str(GUIDE / "engine.yaml")
    text = (GUIDE / "engine.yaml").read_text().splitlines()
    for path, column in (("spec.engine.minReplicas", 18), ("spec.engine.runner.env[0].name", 17)):
        place = found.location(path)
        assert (place.file, place.column) == (file, column)
        assert path.rpartition(".")[2] in text[place.line - 1]
    assert found.location("spec.engine.runner.nothing.at.all") == found.location("spec.engine.runner")


def test_the_example_on_the_page_of_documents_reads() -> None:
    page = page_section("docs/reference/manifests.md", "Supported kinds")
    example = page.split("```yaml\n")[1].split("```")[0]
    runner = service(example).components["engine"].runner
    assert runner == {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
