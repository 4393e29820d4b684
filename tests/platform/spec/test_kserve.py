"""KServe's InferenceService read into the internal model: forms that people really write, and every field."""

import io
from typing import Any

import pytest

from pilotlight.spec.kserve import FRAMEWORKS
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import Problem
from pilotlight.spec.service import Component, ModelSpec, ScalingMetric, Service

HEAD = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: iris}\nspec:\n"


def read(text: str) -> tuple[Service, list[Problem]]:
    loaded = load(["-"], stdin=io.StringIO(HEAD + text))
    (found,) = loaded.services
    return found, loaded.problems.items


def service(text: str) -> Service:
    found, problems = read(text)
    assert not problems
    return found


def predictor(fields: str) -> Component:
    return service(f"  predictor: {{{fields}}}").components["predictor"]


def codes(text: str) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in read(text)[1]]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_predictor_of_one_framework_is_a_model_of_that_format(framework: str) -> None:
    found = predictor(f"{framework}: {{storageUri: gs://b/m, runtimeVersion: '1', protocolVersion: v2}}")
    assert found.model == ModelSpec(framework, storage_uri="gs://b/m", runtime_version="1", protocol="v2")


def test_a_model_with_its_format_runtime_storage_and_container() -> None:
    found = predictor(
        "model: {modelFormat: {name: onnx, version: '1'}, runtime: ours,"
        " storage: {key: k, path: p, parameters: {a: b}}, args: [--x],"
        " resources: {limits: {cpu: 1, memory: 2Gi}}, confidential: {enabled: true}}"
    ).model
    assert found is not None
    assert (found.format, found.format_version, found.runtime) == ("onnx", "1", "ours")
    assert found.storage == {"key": "k", "path": "p", "parameters": {"a": "b"}}
    assert found.container == {"args": ["--x"], "resources": {"limits": {"cpu": "1", "memory": "2Gi"}}}
    assert found.confidential == {"enabled": True}


def test_quoted_kind_and_version_are_the_same() -> None:
    text = HEAD.replace("kind: InferenceService", 'kind: "InferenceService"').replace("name: iris", 'name: "iris"')
    loaded = load(["-"], stdin=io.StringIO(text + '  predictor: {"sklearn": {"storageUri": "gs://a"}}'))
    assert not loaded.problems.items


def test_a_custom_predictor_is_its_containers() -> None:
    found = predictor("containers: [{name: kserve-container, image: me/it:1, ports: [{containerPort: 8080}]}]")
    assert found.model is None
    assert found.pod["containers"][0]["image"] == "me/it:1"


def test_a_transformer_in_the_predictors_own_pod() -> None:
    found = predictor("model: {modelFormat: {name: onnx}}, containers: [{name: transformer-container, image: a}]")
    assert found.model is not None
    assert [each["name"] for each in found.pod["containers"]] == ["transformer-container"]


def test_transformer_and_explainer_with_containers_of_their_own() -> None:
    found = service(
        "  predictor: {sklearn: {storageUri: gs://a}}\n"
        "  transformer: {minReplicas: 1, containers: [{image: t, name: kserve-container}]}\n"
        "  explainer: {art: {type: SquareAttack, storageUri: gs://e, config: {nb_classes: '10'}, args: [--fast]}}\n"
    )
    assert list(found.components) == ["predictor", "transformer", "explainer"]
    assert found.components["transformer"].min_replicas == 1
    model = found.components["explainer"].model
    assert model is not None
    assert (model.format, model.storage_uri) == ("art", "gs://e")
    assert model.container["image"] == "kserve/art-explainer:latest"
    told = ["--storage_uri", "/mnt/models", "--adversary_type", "SquareAttack", "--nb_classes", "10", "--fast"]
    assert model.container["args"] == told


def test_the_name_that_clusters_write_into_a_model_is_read_and_has_no_effect() -> None:
    text = HEAD + "  predictor: {model: {modelFormat: {name: onnx}, storageUri: s3://a, name: %s, resources: {}}}"
    silent, told = (load(["-"], stdin=io.StringIO(text % name)) for name in ("''", "mine"))
    assert not silent.problems.items
    assert [problem.code for problem in told.problems.items] == ["PL114"]
    assert told.services[0].components["predictor"].model == silent.services[0].components["predictor"].model


def test_what_a_framework_s_model_says_is_found_where_it_is_written() -> None:
    found = service("  predictor:\n    sklearn:\n      storage: {key: mine}\n")
    assert found.location("spec.predictor.model.storage.key")[1:] == (7, 22)


def test_a_probe_may_leave_its_port_to_the_serving_port() -> None:
    found = predictor("tensorflow: {storageUri: gs://a, readinessProbe: {httpGet: {path: /v1/models/flowers}}}")
    assert found.model is not None
    assert found.model.container["readinessProbe"] == {"httpGet": {"path": "/v1/models/flowers"}}


def test_everything_that_a_component_can_say() -> None:
    found = predictor(
        "sklearn: {storageUri: gs://a}, minReplicas: 0, maxReplicas: 3, scaleTarget: 5, scaleMetric: rps,"
        " scaleMetricType: AverageValue, containerConcurrency: 2, timeout: 30, canaryTrafficPercent: 20,"
        " batcher: {maxBatchSize: 8, maxLatency: 100}, logger: {mode: all, url: 'http://sink/'},"
        " deploymentStrategy: {type: Recreate}, labels: {a: b}, annotations: {c: d}, nodeSelector: {e: f},"
        " name: blue, storageContainerName: sc, storageUris: [{uri: gs://b, mountPath: /mnt/b}]"
    )
    assert (found.min_replicas, found.max_replicas, found.scale_target, found.scale_metric) == (0, 3, 5, "rps")
    assert (found.scale_metric_type, found.container_concurrency, found.timeout_seconds) == ("AverageValue", 2, 30)
    assert (found.canary_traffic_percent, found.batcher) == (20, {"maxBatchSize": 8, "maxLatency": 100})
    assert (found.logger, found.deployment_strategy) == ({"mode": "all", "url": "http://sink/"}, {"type": "Recreate"})
    assert (found.labels, found.annotations, found.pod) == ({"a": "b"}, {"c": "d"}, {"nodeSelector": {"e": "f"}})
    assert (found.name, found.storage_container) == ("blue", "sc")
    assert found.storage_uris == ({"uri": "gs://b", "mountPath": "/mnt/b"},)


def test_metrics_of_all_three_kinds_and_their_behaviour() -> None:
    found = predictor(
        """
        sklearn: {storageUri: gs://a},
        autoScaling: {
          metrics: [
            {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}},
            {type: External, external: {
              metric: {backend: prometheus, serverAddress: "http://p:9090", query: q, namespace: ns},
              authenticationRef: {authenticationRef: {name: t}, authModes: bearer},
              target: {type: Value, value: "0.5"}}},
            {type: PodMetric, podmetric: {
              metric: {backend: opentelemetry, metricNames: [m], query: r, operationOverTime: avg},
              target: {value: 4}}},
          ],
          behavior: {scaleDown: {stabilizationWindowSeconds: 60, policies: [{type: Pods, value: 1, periodSeconds: 9}]}},
        }"""
    )
    resource, external, pod = found.metrics
    assert resource == ScalingMetric("resource", "cpu", "Utilization", "80")
    assert external == ScalingMetric(
        "external", "prometheus", "Value", "0.5", query="q", server_address="http://p:9090",
        authentication={"name": "t"}, auth_modes="bearer", namespace="ns",
    )  # fmt: skip
    assert pod == ScalingMetric("pod", "opentelemetry", "Value", "4", query="r")
    assert found.behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 9}]


def test_a_pipeline_of_three_has_two_workers() -> None:
    found = predictor(
        "model: {modelFormat: {name: huggingface}, storageUri: pvc://c/m},"
        " workerSpec: {pipelineParallelSize: 3, tensorParallelSize: 2, containers: [{name: w, image: i}]}"
    ).worker
    assert found is not None
    assert (found.size, found.parallelism) == (2, {"pipeline": 3, "tensor": 2})
    assert found.pod["containers"] == [{"name": "w", "image": "i"}]


def test_canaries_are_read_as_predictors_that_may_scale() -> None:
    found = service(
        "  predictor: {sklearn: {storageUri: gs://a}}\n"
        "  canary: [{trafficPercent: 10, predictor: {name: next, maxReplicas: 4, sklearn: {storageUri: gs://b}}}]\n"
    )
    (canary,) = found.canaries
    component: Any = canary["component"]
    assert (canary["name"], canary["trafficPercent"]) == ("next", 10)
    assert (component.max_replicas, component.model.storage_uri) == (4, "gs://b")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("  predictor: {minReplicas: 1}", [("PL103", "spec.predictor.model")]),
        ("  transformer: {}", [("PL103", "spec.predictor"), ("PL103", "spec.transformer.containers")]),
        ("  predictor: {model: {storageUri: gs://a}}", [("PL103", "spec.predictor.model.modelFormat")]),
        ("  predictor: {sklearn: {}, xgboost: {}}", [("PL111", "spec.predictor.xgboost")]),
        (
            "  predictor: {sklearn: {storageUri: gs://a, storage: {key: k}}}",
            [("PL111", "spec.predictor.sklearn.storage")],
        ),
        (
            "  predictor: {name: a, sklearn: {}}\n"
            "  canary: [{trafficPercent: 60, predictor: {name: a, sklearn: {}}},"
            " {trafficPercent: 60, predictor: {sklearn: {}}}]",
            [
                ("PL104", "spec.canary[0].predictor.name"),
                ("PL103", "spec.canary[1].predictor.name"),
                ("PL104", "spec.canary"),
            ],
        ),
    ],
)
def test_rules_of_kserves_webhook_hold_without_a_cluster(text: str, problems: list[tuple[str, str]]) -> None:
    assert codes(text) == problems
