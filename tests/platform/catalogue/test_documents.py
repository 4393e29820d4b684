"""Reading the catalogue's documents: what becomes of them, and every mistake at its place."""

from pilotlight.catalogue.catalogue import catalogue_from, merge_catalogues, used_documents
from pilotlight.spec.problems import Problems
from pilotlight.spec.service import Catalogue, Component, ModelSpec, Service
from pilotlight.spec.yaml_nodes import parse

RUNTIME = """\
apiVersion: ome.io/v1beta1
kind: ServingRuntime
metadata: {name: mine, namespace: team}
spec:
  supportedModelFormats:
    - modelFormat: {name: safetensors, version: "1.0.0", operator: GreaterThanOrEqual, weight: 3}
      modelFramework: {name: transformers, version: "4.43.0"}
      modelArchitecture: LlamaForCausalLM
      quantization: fp8
      autoSelect: true
      priority: 2
      acceleratorConfig: {h100: {tensorParallelismOverride: {tensorParallelSize: 2}}}
  modelSizeRange: {min: 7B, max: 9B}
  acceleratorRequirements: {acceleratorClasses: [h100]}
  engineConfig:
    minReplicas: 1
    runner: {image: pilotlight/predictor@sha256:00, args: [--x]}
"""


def read(text: str, file: str = "c.yaml") -> tuple[Catalogue, list[str]]:
    problems = Problems()
    found = catalogue_from(parse(text, file, problems), problems)
    return found, [str(problem) for problem in problems.items]


def test_a_runtime_of_ome_is_read_whole() -> None:
    found, told = read(RUNTIME)
    assert told == []
    (runtime,) = found.runtimes
    (line,) = runtime.formats
    assert (runtime.kind, runtime.namespace, runtime.group, runtime.origin) == (
        "ServingRuntime",
        "team",
        "ome",
        "c.yaml",
    )
    assert (line.version, line.operator, line.format_weight, line.framework_weight) == (
        "1.0.0",
        "GreaterThanOrEqual",
        3,
        5,
    )
    assert (line.architecture, line.quantization, line.auto_select, line.priority) == (
        "LlamaForCausalLM",
        "fp8",
        True,
        2,
    )
    assert (runtime.size_range, runtime.is_pilotlight) == (("7B", "9B"), True)
    assert runtime.engine["runner"]["args"] == ["--x"]


def test_a_runtime_of_kserve_is_read_whole() -> None:
    found, told = read("""\
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: k, annotations: {serving.kserve.io/server-type: mlserver}}
spec:
  annotations: {a: b}
  supportedModelFormats: [{name: sklearn, version: "1", autoSelect: true}]
  protocolVersions: [v2]
  disabled: true
  workerSpec: {pipelineParallelSize: 2, containers: [{name: worker-container, image: w}]}
  containers: [{name: kserve-container, image: mlserver, resources: {limits: {cpu: 1}}}]
  volumes: [{name: v, emptyDir: {}}]
""")
    assert told == []
    (runtime,) = found.runtimes
    assert (runtime.server_type, runtime.protocols, runtime.disabled, runtime.namespace) == (
        "mlserver",
        ("v2",),
        True,
        "",
    )
    assert (runtime.formats[0].priority, runtime.annotations, runtime.is_pilotlight) == (0, {"a": "b"}, False)
    assert runtime.pod["containers"][0]["resources"] == {"limits": {"cpu": "1"}}
    assert runtime.workers["pipelineParallelSize"] == 2


def test_a_model_without_a_format_gets_one_from_its_address() -> None:
    found, told = read("""\
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: llama}
spec:
  modelParameterSize: 8B
  modelConfiguration: {torch_dtype: float32}
  storage: {storageUri: "hf://meta-llama/Llama", path: /raid/llama, key: hf-token}
""")
    assert told == []
    (model,) = found.models
    assert (model.format, model.framework, model.size_bytes) == ("safetensors", "transformers", 32 * 10**9)
    assert len(model.reasons) == 2


def test_all_mistakes_are_told_at_once_with_their_places() -> None:
    _, told = read("""\
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: r, namespace: x}
spec:
  suportedModelFormats: []
  supportedModelFormats:
    - modelFormat: {name: safetensors, version: 1.0}
      priority: 0
  modelSizeRange: {min: huge, max: 9B}
---
apiVersion: serving.kserve.io/v1beta1
kind: ServingRuntime
metadata: {name: old}
---
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {}
spec: {modelParameterSize: 8B, storage: {downloadPolicy: Never}}
""")
    assert [problem.split(": ", 3)[:3] for problem in told] == [
        ["c.yaml:5:3", "error PL101", "spec.suportedModelFormats"],
        ["c.yaml:7:49", "error PL102", "spec.supportedModelFormats[0].modelFormat.version"],
        ["c.yaml:8:17", "error PL104", "spec.supportedModelFormats[0].priority"],
        ["c.yaml:3:32", "error PL201", "metadata.namespace"],
        ["c.yaml:5:3", "error PL202", "spec"],
        ["c.yaml:9:19", "error PL213", "spec.modelSizeRange"],
        ["c.yaml:11:13", "error PL200", "apiVersion"],
        ["c.yaml:17:1", "error PL103", "metadata.name"],
        ["c.yaml:18:58", "error PL104", "spec.storage.downloadPolicy"],
    ]


def test_an_accelerator_class_is_data_of_the_catalogue() -> None:
    found, told = read("""\
apiVersion: ome.io/v1beta1
kind: AcceleratorClass
metadata: {name: gpu}
spec: {vendor: nvidia, capabilities: {memoryGB: 80Gi, performance: {fp16Tflops: 989}}, cost: {tier: extreme}}
""")
    assert [cls["metadata"]["name"] for cls in found.accelerators] == ["gpu"]
    assert [problem.split(": ")[1] for problem in told] == ["error PL104"]


def test_other_documents_are_left_to_others() -> None:
    assert read("kind: ServingRuntime\napiVersion: example.com/v1\n---\nkind: Service\n") == (Catalogue(), [])


def test_the_first_source_wins_and_the_shadowed_is_named() -> None:
    mine, theirs = read(RUNTIME, "mine.yaml")[0], read(RUNTIME, "theirs.yaml")[0]
    merged = merge_catalogues(mine, theirs)
    assert [runtime.origin for runtime in merged.runtimes] == ["mine.yaml"]
    assert merged.shadowed == ("ServingRuntime mine of theirs.yaml is shadowed by that of mine.yaml",)


def test_names_of_different_groups_and_namespaces_do_not_shadow_each_other() -> None:
    text = "\n---\n".join((RUNTIME, RUNTIME.replace("namespace: team", "namespace: other")))
    assert len(read(text)[0].runtimes) == 2


CACHES = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelCache
metadata: {name: iris}
spec: {sourceModelUri: s3://models/iris, modelSize: 1Gi, nodeGroups: [gpu]}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNamespaceCache
metadata: {name: iris, namespace: team}
spec: {sourceModelUri: hf://org/repo, modelSize: 1Gi, nodeGroups: [gpu], storage: {key: hub}}
"""


def test_caches_of_kserve_are_read() -> None:
    found, told = read(CACHES)
    assert told == []
    assert [cache["spec"]["sourceModelUri"] for cache in found.caches] == ["s3://models/iris", "hf://org/repo"]
    merged = merge_catalogues(found, read(CACHES, "other.yaml")[0])
    assert [cache["origin"] for cache in merged.caches] == ["c.yaml", "c.yaml"]
    _, told = read(CACHES.replace("v1alpha1", "v1beta1").replace("nodeGroups: [gpu],", ""))
    assert all('"serving.kserve.io/v1beta1", must be serving.kserve.io/v1alpha1' in problem for problem in told)
    _, told = read(CACHES.replace(", nodeGroups: [gpu]}", "}"))
    assert ["PL103" in problem and "nodeGroups" in problem for problem in told] == [True]


def test_a_release_keeps_the_cache_that_its_model_comes_from() -> None:
    nodes = [*parse(CACHES.partition("---")[0], "cluster: iris", Problems()),
             *parse(CACHES.partition("---")[2], "cluster: hub", Problems())]  # fmt: skip
    catalogue = catalogue_from(nodes, Problems())
    model = ModelSpec("onnx", storage_uri="s3://models/iris/1/model.onnx")
    service = Service("kserve", "iris", "demo", {"predictor": Component("predictor", model=model)})
    assert [node.location.file for node in used_documents(nodes, service, catalogue)] == ["cluster: iris"]
