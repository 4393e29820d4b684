"""The judges themselves: each mistake that they are there for is found, and what is right passes."""

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from tests.judges.gomodules import GoModule, Unavailable, files_of, made_once
from tests.judges.schemas import tightened, validate
from tests.judges.sources import crd_schemas
from tests.judges.verdict import absent, assert_valid

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "iris"}},
    "spec": {
        "containers": [
            {
                "name": "predictor",
                "image": "predictor:1",
                "ports": [{"name": "http1", "containerPort": 8080}],
                "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1.5Gi", "nvidia.com/gpu": 1}},
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
            }
        ],
        "volumes": [{"name": "models", "emptyDir": {}}],
    },
}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "iris"},
    "spec": {"selector": {"matchLabels": {"app": "iris"}}, "template": TEMPLATE},
}
KNATIVE: dict[str, Any] = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {"name": "iris"},
    "spec": {"template": {"spec": {"containers": [{"image": "predictor:1"}], "containerConcurrency": 4}}},
}
SCALED: dict[str, Any] = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "iris"},
    "spec": {
        "scaleTargetRef": {"name": "iris"},
        "triggers": [{"type": "prometheus", "metadata": {"serverAddress": "http://p", "query": "q", "threshold": "1"}}],
    },
}
GROUP: dict[str, Any] = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "llama"},
    "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": TEMPLATE}},
}
RAY: dict[str, Any] = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "llama"},
    "spec": {"headGroupSpec": {"rayStartParams": {}, "template": TEMPLATE}},
}
ROUTE: dict[str, Any] = {
    "apiVersion": "http.keda.sh/v1beta1",
    "kind": "InterceptorRoute",
    "metadata": {"name": "iris"},
    "spec": {"target": {"service": "iris", "port": 80}, "scalingMetric": {"concurrency": {"targetValue": 4}}},
}


def changed(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with `value` at `spec/template/0`."""
    copy = node = deepcopy(manifest)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("|"))
    for part in parents:
        node = node[part]
    node[last] = value
    return copy


@pytest.fixture(autouse=True)
def schemas() -> Iterator[None]:
    try:
        yield validate(DEPLOYMENT) and None
    except Unavailable as reason:
        absent(reason)


@pytest.mark.parametrize(
    "manifest", [DEPLOYMENT, KNATIVE, SCALED, GROUP, RAY, ROUTE], ids=lambda manifest: manifest["kind"]
)
def test_what_is_right_passes(manifest: dict[str, Any]) -> None:
    assert validate(manifest) == []


CONTAINER = "spec|template|spec|containers|0|"


@pytest.mark.parametrize(
    ("manifest", "path", "value", "said"),
    [
        (DEPLOYMENT, "spec|replica", 1, "'replica' was unexpected"),
        (DEPLOYMENT, CONTAINER + "resources|limits|memory", "1Gib", "'1Gib' does not match"),
        (DEPLOYMENT, CONTAINER + "readinessProbe", {"httpGet": {"port": 1.5}}, "1.5 is not of type"),
        (DEPLOYMENT, CONTAINER + "ports", [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}], "the same"),
        (DEPLOYMENT, CONTAINER + "ports|0|name", "a-name-that-is-too-long", "no name of a port"),
        (DEPLOYMENT, CONTAINER + "volumeMounts|0|name", "data", "data is mounted but no volume"),
        (DEPLOYMENT, CONTAINER + "resources|requests", {"nvidia.com/gpu": 2}, "not limited to the same"),
        (DEPLOYMENT, CONTAINER + "name", "Predictor", "no name of a container"),
        (DEPLOYMENT, "spec|template|metadata|labels", {"app": "other"}, "does not find pods"),
        (DEPLOYMENT, "metadata|labels", {"app": "a b"}, "is no label"),
        (DEPLOYMENT, "metadata|annotations", {"a b": ""}, "no annotation's name"),
        (DEPLOYMENT, "metadata|name", "iris_1", "no name of a Deployment"),
        (DEPLOYMENT, "kind", "Deploy", "no schema judges apps/v1 Deploy"),
        (KNATIVE, "spec|template|spec|concurrency", 1, "'concurrency' was unexpected"),
        (KNATIVE, "spec|template|spec|tolerations", [{"kei": "gpu"}], "'kei' was unexpected"),
        (KNATIVE, "spec|template|spec|volumes", [{"name": "a", "nfs": {}}], "'nfs' was unexpected"),
        (KNATIVE, "spec|template|spec|volumes", [{"name": "a", "hostPath": {}}], "'path' is a required property"),
        (KNATIVE, "metadata|name", "1iris", "no name of a Service"),
        (SCALED, "spec|fallbacks", {}, "'fallbacks' was unexpected"),
        (SCALED, "spec|triggers|0|type", "promtheus", "KEDA has no trigger 'promtheus'"),
        (SCALED, "spec|triggers|0|metadata", {"operator": "GT"}, "prometheus does not read it"),
        (SCALED, "spec|triggers|0|metadata", {"query": "q", "threshold": "1"}, "prometheus needs serverAddress"),
        (SCALED, "spec|triggers|0|metadata|threshold", 1, "1 is not of type 'string'"),
        (GROUP, "spec|leaderWorkerTemplate|workers", 1, "'workers' was unexpected"),
        (GROUP, "spec|leaderWorkerTemplate|workerTemplate|spec|container", [], "'container' was unexpected"),
        (RAY, "spec|headGroupSpec|template|spec|containers", "none", "'none' is not of type"),
        (ROUTE, "spec|target|portName", "http", "is valid under each of"),
        (ROUTE, "spec|scalingMetric", {}, "non-empty"),
    ],
)
def test_a_mistake_is_found_and_named(manifest: dict[str, Any], path: str, value: Any, said: str) -> None:
    found = validate(changed(manifest, path, value))
    assert any(said in sentence for sentence in found), found


def test_all_mistakes_of_all_manifests_are_said_at_once() -> None:
    with pytest.raises(AssertionError) as raised:
        assert_valid([changed(DEPLOYMENT, "spec|replica", 1), DEPLOYMENT, changed(SCALED, "spec|fallbacks", {})])
    assert "Deployment iris: spec: " in str(raised.value)
    assert "ScaledObject iris: spec: " in str(raised.value)


def test_an_open_object_stays_open_and_a_choice_closes_nothing() -> None:
    schema = {
        "properties": {
            "open": {"properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": True},
            "map": {"additionalProperties": {"type": "string"}},
            "closed": {"properties": {"a": {}}, "anyOf": [{"properties": {"a": {"type": "string"}}}]},
        }
    }
    strict = tightened(schema)["properties"]
    assert "additionalProperties" not in strict["open"]
    assert strict["map"] == {"additionalProperties": {"type": "string"}}
    assert strict["closed"]["additionalProperties"] is False
    assert "additionalProperties" not in strict["closed"]["anyOf"][0]


def test_prose_is_left_out_of_a_schema_but_a_field_of_that_name_is_kept() -> None:
    text = """
kind: CustomResourceDefinition
spec:
  group: g
  names: {kind: K}
  versions:
  - name: v1
    schema: {openAPIV3Schema: {description: long, properties: {description: {type: string, description: longer}}}}
"""
    assert crd_schemas(text) == {"g/v1 K": {"properties": {"description": {"type": "string"}}}}


def test_without_go_the_reason_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="go is not on the PATH"):
        files_of(GoModule("example.com/m", "v1.0.0", "", ("a",)))


def test_a_missing_judge_skips_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PILOTLIGHT_REQUIRE_JUDGES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no go"):
        absent(Unavailable("no go"))
    monkeypatch.setenv("PILOTLIGHT_REQUIRE_JUDGES", "1")
    with pytest.raises(pytest.fail.Exception, match="no go"):
        absent(Unavailable("no go"))


def test_a_folder_in_the_cache_is_complete_or_absent(tmp_path: Any) -> None:
    folder = tmp_path / "cache" / "thing"
    with contextlib.suppress(ConnectionError), made_once(folder) as filling:
        assert filling is not None
        (filling / "half").write_text("")
        raise ConnectionError
    assert not folder.exists()
    with made_once(folder) as filling:
        assert filling is not None
        (filling / "whole").write_text("")
    assert [path.name for path in folder.iterdir()] == ["whole"]
    with made_once(folder) as again:
        assert again is None
