import json
from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    FOREIGN,
    OURS,
    changed,
    codes,
    env,
    in_mode,
    kserve,
    ome,
    planned,
    reason,
    refusals,
    with_component,
    workload,
)

from pilotlight.plan.model_storage import model_label
from pilotlight.spec.service import BaseModel, ModelSpec, Service

WAYS = [
    (ome(), "in process"),
    (ome(runtime_name=FOREIGN), "init container"),
    (ome("claim"), "volume claim"),
    (ome("onnode", FOREIGN), "node directory"),
    (ome("onnode"), "in process"),
    (kserve(), "in process"),
    (kserve(uri="/models/iris.onnx"), "in place"),
    (kserve(FOREIGN), "init container"),
    (kserve(FOREIGN, uri="pvc://models/iris"), "volume claim"),
    (kserve(uri="oci://registry/model:1"), "image volume"),
    (kserve(uri="oci+fetch://registry/model:1"), "in process"),
    (kserve(FOREIGN, uri="oci+fetch://registry/model:1"), "init container"),
]


@pytest.mark.parametrize(("service", "way"), WAYS)
def test_the_bytes_come_the_shortest_way_that_the_server_can_go(service: Service, way: str) -> None:
    role = next(iter(service.components))
    assert reason(planned(service), f"{role}: storage")[0] == way


def pod(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = workload(service).template["spec"]
    return found


def test_our_predictor_fetches_by_itself_into_a_cache_of_its_own() -> None:
    made = pod(ome())
    assert "initContainers" not in made
    assert env(workload(ome()))["PILOTLIGHT_CACHE_DIR"] == "/var/cache/pilotlight"
    assert {"name": "model-cache", "emptyDir": {}} in made["volumes"]


def test_a_foreign_server_finds_the_model_where_our_fetch_has_put_it() -> None:
    made = pod(kserve(FOREIGN))
    (fetch,) = made["initContainers"]
    assert fetch["command"][-3:] == ["fetch", "s3://models/iris.onnx", "/mnt/models"]
    assert fetch["securityContext"]["runAsNonRoot"] is True
    assert {"name": "model", "mountPath": "/mnt/models", "readOnly": True} in made["containers"][0]["volumeMounts"]
    assert env(workload(ome(runtime_name=FOREIGN)))["MODEL_PATH"] == "/mnt/models"


def test_a_claim_is_mounted_at_its_folder() -> None:
    made = pod(ome("claim"))
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in made["volumes"]
    mount = next(mount for mount in made["containers"][0]["volumeMounts"] if mount["name"] == "model")
    assert mount == {"name": "model", "mountPath": "/mnt/models", "readOnly": True, "subPath": "iris/1"}


def test_a_model_agent_s_folder_is_mounted_on_nodes_that_have_it() -> None:
    made = pod(ome("onnode", FOREIGN))
    assert {"name": "model", "hostPath": {"path": "/data/onnode", "type": "Directory"}} in made["volumes"]
    assert made["nodeSelector"] == {"models.ome.io/clusterbasemodel.onnode": "Ready"}


def test_a_hub_s_token_comes_out_of_the_secret_that_the_model_names() -> None:
    variables = workload(ome("hub")).template["spec"]["containers"][0]["env"]
    reference = {"secretKeyRef": {"name": "hub-token", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": reference} in variables


def test_a_custom_container_s_storage_uri_is_fetched() -> None:
    container = {"name": "kserve-container", "image": "mine:1", "env": [{"name": "STORAGE_URI", "value": "gs://b/m"}]}
    service = kserve(model=None, pod={"containers": [container]})
    (fetch,) = pod(service)["initContainers"]
    assert "gs://b/m" in fetch["command"]


def test_an_explainer_s_own_model_is_fetched_too() -> None:
    model = ModelSpec("art", storage_uri="gs://b/e", container={"image": "explainer:1"})
    made = workload(with_component(kserve(), "explainer", model=model), "explainer")
    (fetch,) = made.template["spec"]["initContainers"]
    assert fetch["command"][-2:] == ["gs://b/e", "/mnt/models"]


def test_several_sources_have_folders_of_their_own() -> None:
    uris = ({"uri": "s3://b/base", "mountPath": "/mnt/base"}, {"uri": "pvc://adapters/a", "mountPath": "/mnt/adapter"})
    made = pod(changed(kserve(FOREIGN), storage_uris=uris))
    assert [fetch["command"][-1] for fetch in made["initContainers"]] == ["/mnt/base"]
    mounts = {mount["mountPath"] for mount in made["containers"][0]["volumeMounts"]}
    assert {"/mnt/base", "/mnt/adapter"} <= mounts


def test_storage_by_parameters_is_a_uri() -> None:
    storage = {"path": "iris/model.onnx", "parameters": {"type": "s3", "bucket": "models"}}
    service = changed(kserve(), model=ModelSpec("onnx", runtime=OURS, storage=storage, protocol="v2"))
    assert env(workload(service))["INFERENCE_MODEL_PATH"] == "s3://models/iris/model.onnx"


@pytest.mark.parametrize("runtime", [OURS, FOREIGN])
def test_a_registry_is_read_with_the_pod_s_pull_secret(runtime: str) -> None:
    secrets = {"imagePullSecrets": [{"name": "registry-login"}, {"name": "other"}]}
    made = pod(kserve(runtime, uri="oci+fetch://registry/model:1", pod=secrets))
    container = made["containers"][0] if runtime == OURS else made["initContainers"][0]
    login = {"name": "registry-login", "key": ".dockerconfigjson", "optional": True}
    assert entry(container["env"])["REGISTRY_CREDENTIALS"] == {"secretKeyRef": login}
    assert "REGISTRY_CREDENTIALS" not in json.dumps(pod(kserve(runtime, pod=secrets)))


CONFIGURED = {"key": "minio", "path": "iris/model.onnx", "parameters": {"bucket": "models"}}


def entry(variables: list[dict[str, object]]) -> dict[str, object]:
    return {str(found["name"]): found.get("valueFrom") or found.get("value") for found in variables}


def test_an_entry_of_storage_config_reaches_our_predictor_as_its_variable() -> None:
    service = changed(kserve(), model=ModelSpec("onnx", runtime=OURS, storage=CONFIGURED, protocol="v2"))
    told = entry(pod(service)["containers"][0]["env"])
    assert told["INFERENCE_MODEL_PATH"] == "storage-config://iris/model.onnx"
    assert told["STORAGE_CONFIG"] == {"secretKeyRef": {"name": "storage-config", "key": "minio"}}
    assert told["STORAGE_OVERRIDE_CONFIG"] == '{"bucket": "models"}'


def test_an_entry_of_storage_config_reaches_what_fetches_for_a_foreign_server() -> None:
    service = changed(kserve(FOREIGN), model=ModelSpec("onnx", runtime=FOREIGN, storage=CONFIGURED, protocol="v2"))
    named = replace(service, annotations={**service.annotations, "serving.kserve.io/storageSecretName": "ours"})
    fetch = pod(named)["initContainers"][0]
    assert fetch["command"][-2:] == ["storage-config://iris/model.onnx", "/mnt/models"]
    assert entry(fetch["env"])["STORAGE_CONFIG"] == {"secretKeyRef": {"name": "ours", "key": "minio"}}


REFUSED = [
    (kserve(uri="ftp://host/model.onnx"), "PL340"),
    (kserve(FOREIGN, uri="/models/iris.onnx"), "PL342"),
]


@pytest.mark.parametrize(("service", "code"), REFUSED)
def test_bytes_that_nothing_can_bring_are_refused(service: Service, code: str) -> None:
    assert codes(refusals(service)) == [code]


def test_node_labels_are_as_ome_s_model_agent_writes_them() -> None:
    assert model_label(BaseModel("m", "BaseModel", "x", namespace="n")) == "models.ome.io/n.basemodel.m"
    long = BaseModel("a-model-with-a-name-of-more-than-32-characters", "ClusterBaseModel", "x")
    label = model_label(long)
    assert len(label.partition("/")[2]) == 49
    assert label.endswith("-more-than-32-characters"[-23:])


def test_mounting_in_serverless_mode_needs_the_flag_that_is_listed() -> None:
    needs = {need.name for need in planned(kserve(FOREIGN, uri="pvc://models/iris")).requirements}
    assert "kubernetes.podspec-persistent-volume-claim" in needs
    assert "kubernetes.podspec-init-containers" in {need.name for need in planned(kserve(FOREIGN)).requirements}
    raw = planned(in_mode(kserve(FOREIGN), "Standard"))
    assert not [need for need in raw.requirements if need.kind == "feature"]
