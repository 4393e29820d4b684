"""Whatever a user writes: either every manifest would be taken by its API server, or each error has its place.

Documents are put together at random out of fields that both projects know, with values at and beyond their bounds and
strings that try to break out of YAML, templates and queries.
"""

import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.judges.verdict import assert_valid

from pilotlight.catalogue.catalogue import builtin, catalogue_from, merge_catalogues
from pilotlight.plan import plan
from pilotlight.plan.types import Capabilities
from pilotlight.render import render
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import InvalidDocument, Problem

Json = dict[str, Any]

HOSTILE = st.sampled_from(
    ("plain", 'it\'s "quoted"', "two\nlines", "\n---\nkind: Pod", "{{ .Name }}", "{% raw %}", "$(A)", "%s %d", "ünï☃")
)
# Mostly what is right: a document with one mistake is refused whole, and teaches nothing about what is rendered.
REPLICAS = st.sampled_from([0, 1, 1, 2, 3, 5, -1])
SECONDS = st.sampled_from([1, 60, 600, 900, -1])
LABEL = st.sampled_from(["science", "science", "", "two words"])
GPUS = st.sampled_from([{}, {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": 8}])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """A mapping with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


WINDOW = st.sampled_from(["60s", "1h", "{{ x }}"])
CONTAINER = some(
    args=st.lists(HOSTILE, max_size=2),
    env=st.lists(st.fixed_dictionaries({"name": st.just("A"), "value": HOSTILE}), max_size=1),
    resources=st.fixed_dictionaries({}, optional={"limits": GPUS, "requests": GPUS}),
    readinessProbe=st.just({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 3}),
    securityContext=st.just({"runAsUser": 1}),
)
IMAGE = CONTAINER.map(lambda fields: {"name": "ome-container", "image": "example/server:1", **fields})
POD: dict[str, st.SearchStrategy[Any]] = {
    "nodeSelector": st.just({"pool": "gpu"}),
    "tolerations": st.just([{"key": "gpu", "operator": "Exists"}]),
    "volumes": st.just([{"name": "data", "hostPath": {"path": "/data"}}]),
    "serviceAccountName": st.just("reader"),
}
EXTENSION: dict[str, st.SearchStrategy[Any]] = {
    "minReplicas": REPLICAS,
    "maxReplicas": REPLICAS,
    "scaleTarget": st.sampled_from([1, 10, 80, 100, 0]),
    "scaleMetric": st.sampled_from(["cpu", "memory", "concurrency", "rps"]),
    "containerConcurrency": st.sampled_from([0, 1, 20, -1]),
    "canaryTrafficPercent": st.sampled_from([0, 10, 100, 101]),
    "labels": st.fixed_dictionaries({}, optional={"team": LABEL}),
    "annotations": st.fixed_dictionaries({}, optional={"note": HOSTILE, "autoscaling.knative.dev/window": WINDOW}),
    "deploymentStrategy": st.sampled_from([{"type": "Recreate"}, {"type": "RollingUpdate"}]),
}
KEDA = some(
    enableKeda=st.booleans(),
    promServerAddress=st.just("http://prometheus:9090"),
    customPromQuery=st.sampled_from(["sum(x{a='%s'})", "vector(1)", "sum(x) # %d '"]),
    scalingThreshold=st.sampled_from(["0.5", "10", "0", "many"]),
    scalingOperator=st.sampled_from(["GreaterThanOrEqual", "GreaterThanOrEqual", "LessThanOrEqual", "Equal"]),
)
MODES = ("RawDeployment", "Serverless", "MultiNode", "MultiNodeRayVLLM", "Stateful", "nonsense")


def annotated(domain: str) -> st.SearchStrategy[Json]:
    key, scaler = f"{domain}/deploymentMode", f"{domain}/autoscalerClass"
    return st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(MODES), scaler: st.sampled_from(["hpa", "keda", "external", "none"])}
    )


NODES = some(
    leader=st.fixed_dictionaries({"runner": IMAGE}),
    worker=st.fixed_dictionaries({"size": st.sampled_from([1, 2, 0]), "runner": IMAGE}),
)
ENGINE = st.builds(
    lambda *parts: {key: value for part in parts for key, value in part.items()},
    some(runner=IMAGE, kedaConfig=KEDA, timeoutSeconds=SECONDS, **EXTENSION, **POD),
    st.one_of(st.just({}), NODES),
)
OME = st.fixed_dictionaries(
    {"model": st.just({"name": "any"}), "engine": ENGINE}, optional={"decoder": ENGINE, "kedaConfig": KEDA}
)
TARGET = st.fixed_dictionaries(
    {"type": st.sampled_from(["Value", "AverageValue", "Utilization"]), "value": st.just("5")}
)
METRICS = st.one_of(
    st.fixed_dictionaries({"name": st.sampled_from(["cpu", "memory"]), "target": TARGET}).map(
        lambda resource: {"type": "Resource", "resource": resource}
    ),
    st.fixed_dictionaries(
        {
            "metric": st.just({"backend": "prometheus", "serverAddress": "http://p:9090", "query": "sum(x)"}),
            "target": TARGET,
        }
    ).map(lambda external: {"type": "External", "external": external}),
)
FORMATS = st.sampled_from(["onnx", "onnx", "sklearn", "triton", "unheard-of"])
MODEL = st.builds(
    lambda fields, more: {**fields, **more},
    st.fixed_dictionaries(
        {"modelFormat": FORMATS.map(lambda name: {"name": name})},
        optional={
            "storageUri": st.sampled_from(["s3://b/m", "s3://b/m", "pvc://c/m", "oci://example/m:1", "ftp://x"]),
            "protocolVersion": st.sampled_from(["v1", "v2", "grpc-v2"]),
        },
    ),
    CONTAINER,
)
PREDICTOR = st.builds(
    lambda model, fields: {"model": model, **fields},
    MODEL,
    some(
        timeout=SECONDS,
        autoScaling=st.fixed_dictionaries({"metrics": st.lists(METRICS, min_size=1, max_size=2)}),
        batcher=st.just({"maxBatchSize": 8}),
        **EXTENSION,
        **POD,
    ),
)
KSERVE = st.fixed_dictionaries(
    {"predictor": PREDICTOR}, optional={"transformer": st.just({"containers": [{"image": "example/t:1"}]})}
)
NAMES = st.sampled_from(["iris", "a", "flowers-2", f"{'long-' * 10}name", "Iris"])
BASE_MODEL = {
    "apiVersion": "ome.io/v1beta1",
    "kind": "ClusterBaseModel",
    "metadata": {"name": "any"},
    "spec": {"modelFormat": {"name": "onnx"}, "storage": {"storageUri": "s3://bucket/any"}},
}
CAPABILITIES = st.sampled_from(
    [
        Capabilities(),
        Capabilities(default_mode="raw", prometheus_operator=False),
        Capabilities(http_add_on=True, our_gateway=False),
        Capabilities(our_gateway=False, gateway_api=False, gpus=1),
    ]
)


def document(group: str, name: str, annotations: Json, spec: Json) -> Json:
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": f"{group}/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": spec}


def manifests(written: Json, capabilities: Capabilities) -> list[Any]:
    """The way of a document from text to objects."""
    text = "\n---\n".join(json.dumps(each) for each in (written, BASE_MODEL))
    loaded = load(["-"], stdin=io.StringIO(text))
    catalogue = merge_catalogues(catalogue_from(loaded.catalogue_nodes, loaded.problems), builtin())
    if loaded.problems.errors:
        raise InvalidDocument(loaded.problems.errors)
    (service,) = loaded.services
    return [json.loads(json.dumps(each.document)) for each in render(plan(service, catalogue, capabilities))]


def check(written: Json, capabilities: Capabilities) -> None:
    refused: tuple[Problem, ...] = ()
    made: list[Any] = []
    try:
        made = manifests(written, capabilities)
    except InvalidDocument as refusal:
        refused = refusal.problems
    event("refused" if refused else "rendered")
    assert not [str(problem) for problem in refused if not problem.location.line]
    assert_valid(made)
    targets = [each["spec"]["scaleTargetRef"] for each in made if "scaleTargetRef" in each.get("spec", {})]
    assert {(target["kind"], target["name"]) for target in targets} <= {
        (each["kind"], each["metadata"]["name"]) for each in made
    }


@pytest.fixture(scope="module", autouse=True)
def _schemas() -> None:
    """Fetched before the first example, whose time is limited."""
    assert_valid([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}])


patient = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(NAMES, annotated("ome.io"), OME, CAPABILITIES)
def test_any_document_of_ome_is_valid_or_refused_at_its_place(
    name: str, annotations: Json, spec: Json, capabilities: Capabilities
) -> None:
    check(document("ome.io", name, annotations, spec), capabilities)


@patient
@given(NAMES, annotated("serving.kserve.io"), KSERVE, CAPABILITIES)
def test_any_document_of_kserve_is_valid_or_refused_at_its_place(
    name: str, annotations: Json, spec: Json, capabilities: Capabilities
) -> None:
    check(document("serving.kserve.io", name, annotations, spec), capabilities)
