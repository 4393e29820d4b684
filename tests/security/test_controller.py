"""Attacks on the controller by whoever may write objects in one of its namespaces."""

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.eventually import eventually
from tests.platform.controller.documents import IRIS, KEY, KIND, Json, annotated, iris
from tests.platform.controller.test_operator import Running, applied
from tests.platform.controller.test_reconciler import Process
from tests.platform.targets.kubernetes import fake_cluster, live_cluster
from tests.platform.targets.kubernetes.live_cluster import LIVE, LiveCluster

from pilotlight.k8s.json_depth import MAX_DEPTH, without_deep_values

pytestmark = pytest.mark.security
NAMESPACES = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in ("models", "victim")]
ROUTES = (
    "gateway.networking.k8s.io/v1beta1/ReferenceGrant", "gateway.networking.k8s.io/v1/HTTPRoute",
    "gateway.networking.k8s.io/v1/Gateway", "keda.sh/v1alpha1/ScaledObject",
)  # fmt: skip


@pytest.fixture
def live() -> Iterator[LiveCluster]:
    with LiveCluster(*NAMESPACES, IRIS, kinds=(*LIVE, *ROUTES)) as cluster:
        yield cluster


def forged(live: LiveCluster, *manifests: Json, **document: Json) -> None:
    """Put a release in place of the newest one, as who may write ControllerRevisions of the namespace can."""
    newest = copy.deepcopy(live.find("ControllerRevision", "iris-release-1"))
    newest["data"] |= {"manifests": [*newest["data"]["manifests"], *manifests], **document}
    newest["metadata"]["annotations"] = {}  # not complete: the controller goes on with it
    live._store(newest, "MODIFIED")


def in_victim(live: LiveCluster) -> list[str]:
    return [each["kind"] for each in live.objects if each["metadata"].get("namespace") == "victim"]


def planted(kind: str = "ConfigMap", version: str = "v1", namespace: str = "victim", **content: Json) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "planted", "namespace": namespace}, **content}


SECRETS = planted(
    "ReferenceGrant", "gateway.networking.k8s.io/v1beta1",
    spec={"from": [{"kind": "HTTPRoute", "namespace": "models"}], "to": [{"kind": "Service", "name": "secrets"}]},
)  # fmt: skip


@pytest.mark.parametrize("manifest", [planted(), SECRETS])
def test_a_forged_release_writes_nothing_outside_of_its_namespace(live: LiveCluster, manifest: Json) -> None:
    process = Process(live)
    process.passes(2)
    forged(live, manifest)
    process.passes(2)
    assert live.find(manifest["kind"], "planted") is None
    assert "outside of its namespace" in live.find("InferenceService", "iris")["status"]["conditions"][0]["message"]


def test_a_release_that_claims_another_gateway_opens_no_service_of_others(live: LiveCluster) -> None:
    """A stored document names what it was planned with: the Service that its route leads to is one of these facts."""
    process = Process(live)
    process.passes(2)
    document = yaml.safe_load(live.find("ControllerRevision", "iris-release-1")["data"]["document"])
    claims = {"gateway_scaler": "secrets.victim.svc:9090", "default_mode": "raw"}
    document["metadata"]["annotations"] = {"pilotlight.dev/planned-with": json.dumps(claims)}
    forged(live, document=yaml.safe_dump(document))
    edit = {"minReplicas": 0, "scaleMetric": "concurrency"}
    live.edit("InferenceService", "iris", {"spec": {"predictor": edit}})
    process.passes(3)
    assert in_victim(live) == []


def test_a_forged_release_reads_no_file_of_the_controller(live: LiveCluster, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "hunter2"}')
    process = Process(live)
    process.passes(2)
    document = yaml.safe_load(live.find("ControllerRevision", "iris-release-1")["data"]["document"])
    document["spec"]["predictor"]["model"]["example"] = str(secret)
    forged(live, document=yaml.safe_dump(document))
    process.passes(2)
    assert "hunter2" not in json.dumps(live.objects)
    assert "cannot be read" in live.find("InferenceService", "iris")["status"]["conditions"][0]["message"]


@pytest.mark.parametrize("data", [None, {}, [], {"document": 1, "manifests": None, "at": ""}, {"manifests": {}}])
def test_a_release_that_cannot_be_read_keeps_no_service_from_deletion(live: LiveCluster, data: Json) -> None:
    process = Process(live)
    process.passes(2)
    labels = {"pilotlight.dev/service": "iris", "pilotlight.dev/release": "9"}
    metadata = {"name": "forged", "namespace": "models", "labels": labels}
    live._store(
        {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": 9, "data": data},
        "ADDED",
    )
    process.passes(2)
    process.reconciler.delete(KIND, KEY)
    assert live.find("Deployment", "iris-predictor") is None


def test_a_secret_of_others_is_neither_taken_over_nor_deleted(live: LiveCluster) -> None:
    """By an author of InferenceServices who has no rights on Secrets."""
    theirs = planted("Secret", namespace="models", data={"password": "aHVudGVy"})
    theirs["metadata"]["name"] = "iris-access"
    live._store(theirs, "ADDED")
    live.edit("InferenceService", "iris", {"metadata": annotated(IRIS, **{"auth-tokens-sha256": "0" * 64})["metadata"]})
    process = Process(live)
    process.passes(2)
    assert "rename the service" in live.find("InferenceService", "iris")["status"]["conditions"][0]["message"]
    process.reconciler.delete(KIND, KEY)
    assert live.find("Secret", "iris-access")["data"] == {"password": "aHVudGVy"}


DEEP = 9_000  # levels; an API server takes 10,000
MARK = '"deep"'


class DeepJson:
    """Encoder of the test's API server: a text of its objects stands for what is nested too deeply for Python."""

    deep = '{"a":' * DEEP + "1" + "}" * DEEP

    def dumps(self, value: Json) -> str:
        return json.dumps(value).replace(MARK, self.deep)

    def loads(self, text: str | bytes) -> Json:
        return json.loads((text if isinstance(text, str) else text.decode()).replace(self.deep, MARK))


@pytest.mark.parametrize("late", [False, True], ids=["listed", "watched"])
def test_a_document_that_is_nested_too_deeply_stops_nobody_else(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = DeepJson()
    monkeypatch.setattr(live_cluster, "json", encoder)
    for module in (live_cluster, fake_cluster):
        answer = partial(web.json_response, dumps=encoder.dumps)
        monkeypatch.setattr(module, "web", SimpleNamespace(**{**vars(web), "json_response": answer}))
    hostile = {**iris(affinity="deep"), "metadata": {"name": "hostile", "namespace": "models"}}
    with LiveCluster(*NAMESPACES, *(() if late else [hostile])) as live:
        running = Running(live)
        if late:
            eventually(lambda: any(call[1] == "inferenceservices" for call in live.calls))
            live._store(copy.deepcopy(hostile), "ADDED")
        eventually(lambda: (live.find("InferenceService", "hostile").get("status") or {}).get("conditions"))
        applied(live)
        eventually(lambda: live.find("Deployment", "iris-predictor"))
        running.stop()
        (ready, *_) = live.find("InferenceService", "hostile")["status"]["conditions"]
        assert ready["reason"] == "InvalidSpec"


@given(value=st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_cut_is_json_and_the_rest_stays(value: Json) -> None:
    deep = value
    for _ in range(MAX_DEPTH + 5):
        deep = {'"]': deep}
    cut = json.loads(without_deep_values(json.dumps([value, deep]).encode()))
    assert cut[0] == value
    assert "nested too deeply" in json.dumps(cut[1])
    assert without_deep_values(json.dumps(value).encode()) == json.dumps(value).encode()
