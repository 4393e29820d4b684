import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    CATALOGUE,
    FOREIGN,
    OURS,
    annotated,
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

from pilotlight.plan import plan
from pilotlight.plan.model_storage import model_label
from pilotlight.plan.types import Capabilities
from pilotlight.spec.service import BaseModel, Catalogue, ModelSpec, Service

WAYS = [
    (ome(), "in process"),
    (ome(runtime_name=FOREIGN), "init container"),
    (ome("claim"), "volume claim"),
    (ome("onnode", FOREIGN), "node directory"),
    (ome("onnode"), "in process"),
    (kserve(), "in process"),
    (kserve(uri="/models/iris.onnx"), "local path"),
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


@pytest.mark.parametrize(("uri", "path"), [("/models/llm", "/mnt/models"), ("/m/a.gguf", "/mnt/models/a.gguf")])
def test_a_path_of_the_machine_that_runs_the_replicas_is_mounted_into_a_foreign_server(uri: str, path: str) -> None:
    service = in_mode(kserve(FOREIGN, uri=uri), "Standard")
    spec = workload(service, capabilities=Capabilities(target="docker")).template["spec"]
    assert {"name": "model", "hostPath": {"path": uri}} in spec["volumes"]
    assert {"name": "model", "mountPath": path, "readOnly": True} in spec["containers"][0]["volumeMounts"]
    named = [each for each in spec["containers"][0].get("env", ()) if each["name"] == "MODEL_PATH"]
    assert named == ([{"name": "MODEL_PATH", "value": path}] if path.endswith(".gguf") else [])


REFUSED = [
    (kserve(uri="ftp://host/model.onnx"), "PL340"),
    (kserve(FOREIGN, uri="/models/iris.onnx"), "PL342"),
]


@pytest.mark.parametrize(("service", "code"), REFUSED)
def test_bytes_that_nothing_can_bring_are_refused(service: Service, code: str) -> None:
    assert codes(refusals(service)) == [code]


CACHED = {
    "kind": "LocalModelCache", "metadata": {"name": "iris"}, "origin": "caches.yaml",
    "spec": {"sourceModelUri": "s3://models", "nodeGroups": ["gpu", "cpu"]},
}  # fmt: skip
KEY = hashlib.sha256(b"s3://models").hexdigest()[:16]


def with_caches(*caches: dict[str, Any]) -> Catalogue:
    return replace(CATALOGUE, caches=caches)


@pytest.mark.parametrize("service", [kserve(), kserve(FOREIGN), ome()])
def test_a_model_that_kserve_has_on_nodes_is_mounted_from_its_claim(service: Service) -> None:
    made = plan(service, with_caches(CACHED))
    role = next(iter(service.components))
    way, why = reason(made, f"{role}: storage")
    assert way == "local model cache"
    name = "iris" if service.group == "kserve" else "small"
    assert why.startswith(f"LocalModelCache iris has it on nodes: claim pvc://iris-gpu/models/{KEY}/{name}.onnx")
    spec = made.workloads[0].template["spec"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "iris-gpu", "readOnly": True}} in spec["volumes"]
    mount = next(mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "model")
    assert mount["subPath"] == f"models/{KEY}/{name}.onnx"
    assert not spec.get("initContainers")
    assert made.workloads[0].model_uris == (f"pvc://iris-gpu/models/{KEY}/{name}.onnx",)  # which has no pin


def test_caches_of_kserve_are_chosen_by_its_rules() -> None:
    def claim(service: Service, *caches: dict[str, Any], **capabilities: Any) -> str:
        way, _ = reason(plan(service, with_caches(*caches), Capabilities(**capabilities)), "predictor: storage")
        made = plan(service, with_caches(*caches), Capabilities(**capabilities)).workloads[0].template["spec"]
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in made["volumes"] if len(volume) > 1
                  and "persistentVolumeClaim" in volume]  # fmt: skip
        return claims[0] if claims else way

    def of(namespace: str, uri: str = "s3://models/") -> dict[str, Any]:
        metadata = {"name": "own", "namespace": namespace}
        return {**CACHED, "kind": "LocalModelNamespaceCache", "metadata": metadata,
                "spec": {"sourceModelUri": uri, "nodeGroups": ["cpu"]}}  # fmt: skip

    assert claim(kserve(), CACHED, of("demo")) == "own-cpu"
    assert claim(kserve(), of("other"), CACHED) == "iris-gpu"
    assert claim(kserve(), of("demo", "s3://model")) == "in process"  # a prefix of the text, not a folder
    assert claim(kserve(), CACHED, target="local") == "in process"
    group = "serving.kserve.io/nodegroup"
    assert claim(annotated(kserve(), **{group: "cpu"}), CACHED) == "iris-cpu"
    assert claim(annotated(kserve(), **{group: "edge"}), CACHED) == "in process"
    assert claim(annotated(kserve(), **{"serving.kserve.io/disable-localmodel": "true"}), CACHED) == "in process"


SHARED = "pilotlight.dev/model-cache"
MOUNT = {"name": "model-cache", "mountPath": "/var/cache/pilotlight"}
SHARED_CACHES = [
    ("pvc://models", {"persistentVolumeClaim": {"claimName": "models"}}, {}),
    ("pvc://models/a/b", {"persistentVolumeClaim": {"claimName": "models"}}, {"subPath": "a/b"}),
    ("hostPath:/var/models", {"hostPath": {"path": "/var/models", "type": "Directory"}}, {}),
]


@pytest.mark.parametrize(("value", "volume", "mount"), SHARED_CACHES)
def test_revisions_share_a_cache_that_the_document_names(
    value: str, volume: dict[str, Any], mount: dict[str, Any]
) -> None:
    made = pod(annotated(kserve(), **{SHARED: value}))
    assert {"name": "model-cache", **volume} in made["volumes"]
    assert {**MOUNT, **mount} in made["containers"][0]["volumeMounts"]
    made = pod(annotated(kserve(FOREIGN), **{SHARED: value}))
    (fetch,) = made["initContainers"]
    assert fetch["command"][-5:] == [
        "fetch",
        "--cache",
        "/var/cache/pilotlight",
        "s3://models/iris.onnx",
        "/mnt/models",
    ]
    assert {**MOUNT, **mount} in fetch["volumeMounts"]
    assert {**MOUNT, **mount, "readOnly": True} in made["containers"][0]["volumeMounts"]


def test_what_a_shared_cache_needs_is_listed() -> None:
    claim = planned(annotated(kserve(), **{SHARED: "pvc://models"}))
    assert "kubernetes.podspec-persistent-volume-write" in {need.name for need in claim.requirements}
    folder = planned(annotated(kserve(), **{SHARED: "hostPath:/var/models"}))
    needs = {"kubernetes.podspec-volumes-hostpath", "a namespace that admits privileged pods"}
    assert needs <= {need.name for need in folder.requirements}
    assert reason(folder, "predictor: model cache")[0] == "hostPath:/var/models"


def test_a_shared_cache_that_has_no_effect_or_no_place_is_reported() -> None:
    outside = ("hostPath:/", "hostPath:/./", "hostPath:/var/../etc", "hostPath:/var/..", "pvc://a/../b", "pvc://a/..")
    for value in ("models", "pvc://", "hostPath:models", "pvc://a b", "s3://b/cache", *outside):
        assert codes(refusals(annotated(kserve(), **{SHARED: value}))) == ["PL386"]
    mounted = planned(annotated(kserve(uri="pvc://models/iris"), **{SHARED: "pvc://models"}))
    assert "PL387" in codes(mounted.warnings)
    local = plan(annotated(kserve(), **{SHARED: "pvc://models"}), CATALOGUE, Capabilities(target="local"))
    assert "PL387" in codes(local.warnings)
    assert {"name": "model-cache", "emptyDir": {}} in local.workloads[0].template["spec"]["volumes"]


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
