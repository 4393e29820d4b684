"""Mistakes people make, each told at its exact place with what the value must be; all of a document at once."""

import io

import pytest

from pilotlight.spec.load_documents import load

OME = """\
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: chat
spec:
  model:
    name: llama
  engine:
    {line}
"""
KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
spec:
  predictor:
    model:
      modelFormat: {{name: sklearn}}
      storageUri: s3://bucket/iris
    {line}
"""


def problems_of(text: str) -> list[str]:
    loaded = load(["-"], stdin=io.StringIO(text))
    return [str(problem).removeprefix("<stdin>:") for problem in loaded.problems.items]


def expected(where: str, base: str, message: str) -> str:
    """`9:5 PL101 .minReplica` is a path under the component; a leading slash makes it one of the document."""
    place, code, path = where.split(" ", 2)
    full = path[1:] if path.startswith("/") else base + path
    return f"{place}: error {code}: {full}: {message}"


@pytest.mark.parametrize(
    ("line", "where", "message"),
    [
        ("minReplica: 1", "9:5 PL101 .minReplica", "unknown field of EngineSpec; did you mean minReplicas?"),
        ("MinReplicas: 1", "9:5 PL101 .MinReplicas", "unknown field of EngineSpec; did you mean minReplicas?"),
        ("timeout: 60", "9:5 PL101 .timeout", "unknown field of EngineSpec; OME's name is timeoutSeconds"),
        ("image: a:1", "9:5 PL101 .image", "unknown field of EngineSpec; put it under runner"),
        ("model: {name: x}", "9:5 PL101 .model",
         "unknown field of EngineSpec; put it under spec, next to the component"),
        ("minReplicas: two", "9:18 PL102 .minReplicas", 'is "two", must be a whole number of at least 0'),
        ('minReplicas: "2"', "9:18 PL102 .minReplicas", 'is "2", must be a whole number of at least 0, without quotes'),
        ("minReplicas: 1.5", "9:18 PL102 .minReplicas", "is 1.5, must be a whole number of at least 0"),
        ("minReplicas: yes", "9:18 PL102 .minReplicas", "is true, must be a whole number of at least 0"),
        ("minReplicas: -1", "9:18 PL104 .minReplicas", "is -1, must be a whole number of at least 0"),
        ("canaryTrafficPercent: 101", "9:27 PL104 .canaryTrafficPercent",
         "is 101, must be a whole number from 0 to 100"),
        ("{minReplicas: 3, maxReplicas: 2}", "9:35 PL104 .maxReplicas",
         "is 2, must be at least minReplicas, which is 3"),
        ("scaleMetric: latency", "9:18 PL104 .scaleMetric",
         'is "latency", must be one of cpu, memory, concurrency, rps'),
        ("scaleMetric: CPU", "9:18 PL104 .scaleMetric",
         'is "CPU", must be one of cpu, memory, concurrency, rps; did you mean cpu?'),
        ("nodeSelector: [a]", "9:19 PL102 .nodeSelector", "is a list, must be a map"),
        ("nodeSelector: {a: 1}", "9:23 PL102 .nodeSelector.a", "is 1, must be text: put it in quotes"),
        ("tolerations: {key: a}", "9:18 PL102 .tolerations", "is a map, must be a list"),
        ("tolerations: [{operator: Exist}]", "9:30 PL104 .tolerations[0].operator",
         'is "Exist", must be one of Exists, Equal; did you mean Exists?'),
        ("runner: {env: [{value: a}]}", "9:20 PL103 .runner.env[0].name", "is required"),
        ("runner: {env: [{name: A, value: 1}]}", "9:37 PL102 .runner.env[0].value",
         "is 1, must be text: put it in quotes"),
        ("runner: {resources: {limits: {memory: 8GB}}}", "9:43 PL104 .runner.resources.limits.memory",
         'is "8GB", must be an amount such as 500m, 2 or 16Gi; did you mean 8Gi or 8G?'),
        ("runner: {resources: {limits: {memory: 1.5 kib}}}", "9:43 PL104 .runner.resources.limits.memory",
         'is "1.5 kib", must be an amount such as 500m, 2 or 16Gi; did you mean 1.5Ki or 1.5k?'),
        ("runner: {resources: {limit: {}}}", "9:26 PL101 .runner.resources.limit",
         "unknown field of ResourceRequirements; did you mean limits?"),
        ("runner: {ports: [{containerPort: 99999}]}", "9:38 PL104 .runner.ports[0].containerPort",
         "is 99999, must be a whole number from 1 to 65535"),
        ("runner: {command: [a, ~]}", "9:27 PL102 .runner.command[1]",
         "is null, must be given, or left out of the list"),
        ("labels: {team: a b}", "9:20 PL104 .labels.team",
         'is "a b", must be letters, digits, \'-\', \'_\' and \'.\', at most 63 of them'),
        ("annotations: {bad key: x}", '9:19 PL104 .annotations["bad key"]',
         "the key must be a name such as app or example.com/app"),
        ("kedaConfig: {enableKeda: 'true'}", "9:30 PL102 .kedaConfig.enableKeda",
         'is "true", must be true or false, without quotes'),
        ("kedaConfig: {scalingThreshold: 0.5}", "9:36 PL102 .kedaConfig.scalingThreshold",
         "is 0.5, must be text: put it in quotes"),
        ("kedaConfig: {scalingOperator: GreaterThan}", "9:35 PL104 .kedaConfig.scalingOperator",
         'is "GreaterThan", must be one of GreaterThanOrEqual, LessThanOrEqual; did you mean GreaterThanOrEqual?'),
        ("kedaConfig: {authenticationRef: {kind: Secret}}", "9:44 PL104 .kedaConfig.authenticationRef.kind",
         'is "Secret", must be one of TriggerAuthentication, ClusterTriggerAuthentication'),
        ("{minAvailable: 1, maxUnavailable: 1}", "9:39 PL111 .maxUnavailable",
         "excludes minAvailable; keep one of them"),
        ("{resources: {}, runner: {resources: {}}}", "9:6 PL111 .resources",
         "excludes runner.resources, which set the same; keep one"),
        ("containers: [{name: a}, {name: a}]", "9:36 PL104 .containers[1].name",
         'is "a", which is already in use'),
        ("minReplicas: 1\n    minReplicas: 2", "10:5 PL105 /minReplicas",
         "minReplicas is given twice, first on line 9; keep one of them"),
        ("worker: {size: 0}", "9:20 PL104 .worker.size", "is 0, must be a whole number of at least 1"),
        ("runner: null\n  minReplicas: 1", "10:3 PL101 /spec.minReplicas",
         "unknown field of InferenceServiceSpec; put it under engine"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_engine(line: str, where: str, message: str) -> None:
    found = problems_of(OME.format(line=line))
    problem = expected(where, "spec.engine", message)
    assert problem in found
    others = [each for each in found if each != problem]
    assert all("PL103" in each for each in others), "one mistake, one problem"


@pytest.mark.parametrize(
    ("line", "where", "message"),
    [
        ("timeoutSeconds: 60", "10:5 PL101 .timeoutSeconds",
         "unknown field of PredictorSpec; KServe's name is timeout"),
        ("kedaConfig: {}", "10:5 PL101 .kedaConfig",
         "unknown field of PredictorSpec; that is an OME field; here use autoScaling.metrics"),
        ("sklearn: {storageUri: s3://a}", "10:5 PL111 .sklearn",
         "excludes model: a predictor has one model; keep one"),
        ("  protocolVersion: v3", "10:24 PL104 .model.protocolVersion",
         'is "v3", must be one of v1, v2, grpc-v1, grpc-v2'),
        ("  storage: {key: a}\n      storageUri: gs://a", "11:7 PL105 /storageUri",
         "storageUri is given twice, first on line 9; keep one of them"),
        ("logger: {mode: everything}", "10:20 PL104 .logger.mode",
         'is "everything", must be one of all, request, response'),
        ("logger: {batchInterval: 5}", "10:29 PL102 .logger.batchInterval",
         "is 5, must be a duration with its unit, such as 90s or 1h30m"),
        ("batcher: {maxBatchSize: 0}", "10:29 PL104 .batcher.maxBatchSize",
         "is 0, must be a whole number of at least 1"),
        ("autoScaling: {metrics: [{type: External, resource: {name: cpu, target: {value: 1}}}]}",
         "10:46 PL111 .autoScaling.metrics[0].resource",
         "excludes type External; give external, or change the type"),
        ("autoScaling: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, value: 1}}}]}",
         "10:68 PL103 .autoScaling.metrics[0].resource.target.averageUtilization",
         "is required with type Utilization"),
        ("workerSpec: {pipelineParallelSize: 0}", "10:40 PL104 .workerSpec.pipelineParallelSize",
         "is 0, must be a whole number of at least 1"),
        ("storageUris: [{mountPath: models}]", "10:31 PL104 .storageUris[0].mountPath",
         'is "models", must be an absolute path'),
    ],
)  # fmt: skip
def test_a_mistake_in_a_predictor(line: str, where: str, message: str) -> None:
    assert expected(where, "spec.predictor", message) in problems_of(KSERVE.format(line=line))


def test_all_mistakes_of_all_documents_come_at_once() -> None:
    text = OME.format(line="minReplica: 1\n    scaleMetric: x") + "---\n" + KSERVE.format(line="timeoutSeconds: 1")
    assert [problem.split(" ")[0] for problem in problems_of(text)] == ["9:5:", "10:18:", "21:5:"]


@pytest.mark.parametrize("name", ["Chat", "1chat", "chat-", "a.b", "a" * 64, "v2", "metrics"])
def test_a_name_that_cannot_be_a_service_is_refused(name: str) -> None:
    (problem,) = problems_of(OME.format(line="minReplicas: 1").replace("chat", name))
    assert problem.startswith("4:9: error PL104: metadata.name: is ")


def test_a_generated_name_is_answered_with_why_not() -> None:
    found = problems_of(OME.format(line="minReplicas: 1").replace("  name: chat", "  generateName: chat-"))
    assert any(
        problem.startswith("4:3: error PL101: metadata.generateName: ") and "revisions are named after it" in problem
        for problem in found
    )


def test_missing_parts_are_told_where_they_belong() -> None:
    found = problems_of("apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {}\nspec: {}\n")
    assert found == [
        "3:1: error PL103: metadata.name: is required",
        "4:1: error PL103: spec.engine: is missing: a service has a model, an engine, or both",
    ]


def test_fine_tuned_weights_that_are_named_twice_are_refused() -> None:
    text = OME.format(line="minReplicas: 1").replace("name: llama", "name: llama\n    fineTunedWeights: [a, a]")
    message = "names weights twice; name each once"
    assert problems_of(text) == [f"8:5: error PL104: spec.model.fineTunedWeights: {message}"]


def test_what_kserve_dropped_is_answered_with_what_replaces_it() -> None:
    found = problems_of(KSERVE.format(line="maxReplicas: 1") + "  explainer:\n    alibi: {type: AnchorText}\n")
    message = "unknown field of ExplainerSpec; KServe removed it; put the explainer's container under containers"
    assert f"12:5: error PL101: spec.explainer.alibi: {message}" in found


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("kind: Deployment\napiVersion: apps/v1\n", "1:7", "kind: apps/v1 Deployment is not supported; supported:"),
        ("kind: InferenceServce\napiVersion: ome.io/v1beta1\n", "1:7", "did you mean InferenceService?"),
        (
            "kind: InferenceService\napiVersion: ome.io/v1\n",
            "2:13",
            'apiVersion: is "ome.io/v1", must be ome.io/v1beta1 or serving.kserve.io/v1beta1 for kind',
        ),
        (
            "kind: InferenceGraph\napiVersion: serving.kserve.io/v1beta1\n",
            "2:13",
            "must be serving.kserve.io/v1alpha1 for kind InferenceGraph",
        ),
        ("spec: {}\n", "1:1", "kind: is missing, so this is not a manifest; supported:"),
        ("- a\n", "1:1", "kind: is missing"),
        ("just text", "1:1", "kind: is missing"),
    ],
)
def test_a_document_of_another_kind_is_refused_with_what_is_understood(text: str, place: str, message: str) -> None:
    (found,) = problems_of(text)
    assert found.startswith(f"{place}: error PL110: ")
    assert message in found
