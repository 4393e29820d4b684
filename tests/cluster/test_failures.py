"""What is printed when something is wrong on a real cluster: the cause, in one sentence, before anybody asks for it."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from tests.cluster.bed.boot import restart
from tests.cluster.bed.places import places
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.scenarios import Story, document

MODES = ("Serverless", "Standard")
ROOT = Path(__file__).parents[2]
PATIENCE = ("--timeout", "120")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def failing(story: Story, text: str, *words: str) -> str:
    """What deploy says when it ends with a failure; the service is taken away again."""
    done = story.run("deploy", "-f", "-", *words, text=text)
    story.run("delete", story.name, "--no-wait", "--ignore-not-found")
    assert done.returncode == 1, f"ended with {done.returncode}:\n{done.stderr}"
    return done.stderr


def other(text: str, **changes: object) -> str:
    """The document with other fields of its container."""
    made = yaml.safe_load(text)
    made["spec"]["predictor"]["model"] |= changes
    return json.dumps(made)


def test_a_missing_image_is_named(cluster: Cluster, namespace: str, mode: str) -> None:
    story = Story(cluster, namespace, "image")
    text = other(document("image", mode=mode, least=1), image="dev.local/pilotlight/predictor:none")
    said = failing(story, text, *PATIENCE)
    assert "image dev.local/pilotlight/predictor:none cannot be pulled" in said


def test_a_model_that_is_not_there_is_told_in_the_predictors_words(cluster: Cluster, namespace: str, mode: str) -> None:
    story = Story(cluster, namespace, "model")
    said = failing(story, document("model", mode=mode, least=1, uri="file:///models/none.onnx"), *PATIENCE)
    assert "does not start: model path /models/none.onnx does not exist" in said


def test_a_setting_that_cannot_be_meant_ends_the_start_and_is_named(
    cluster: Cluster, namespace: str, mode: str
) -> None:
    story = Story(cluster, namespace, "crash")
    text = document("crash", mode=mode, least=1)
    said = failing(story, other(text, env=[{"name": "INFERENCE_HTTP_PORT", "value": "none"}]), *PATIENCE)
    assert "exited with code" in said
    assert "http_port" in said.lower().replace("-", "_")


def test_a_crash_is_told_with_the_last_line_of_its_exception(cluster: Cluster, namespace: str, mode: str) -> None:
    story = Story(cluster, namespace, "raises")
    made = yaml.safe_load(document("raises", mode=mode, least=1))
    del made["spec"]["predictor"]["model"]
    made["spec"]["predictor"]["containers"] = [{
        "name": "kserve-container", "image": "pilotlight/predictor:0.1.0",
        "command": ["python", "-c", "raise ValueError('no weights here')"],
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
    }]  # fmt: skip
    said = failing(story, json.dumps(made), "--pod-security", "restricted", *PATIENCE)
    assert "exited with code 1" in said
    assert "ValueError: no weights here" in said.partition("error: ")[2].partition("\n")[0]


def test_too_little_memory_is_told_with_the_limit(cluster: Cluster, namespace: str, mode: str) -> None:
    story = Story(cluster, namespace, "memory")
    resources = {"requests": {"cpu": "50m", "memory": "20Mi"}, "limits": {"memory": "20Mi"}}
    said = failing(story, other(document("memory", mode=mode, least=1), resources=resources), *PATIENCE)
    assert "ran out of memory: its limit is 20Mi" in said


def test_a_gpu_that_no_node_has_is_told_before_anything_is_written(cluster: Cluster, namespace: str, mode: str) -> None:
    story = Story(cluster, namespace, "gpu")
    resources = {"limits": {"nvidia.com/gpu": "1", "memory": "256Mi"}}
    said = failing(story, other(document("gpu", mode=mode, least=1), resources=resources))
    assert "nvidia.com/gpu, which no node of this cluster has" in said
    assert "nothing was written" in said
    assert story.left() == []


def test_memory_that_no_node_has_free_is_told_with_what_is_free(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "huge")
    resources = {"requests": {"cpu": "50m", "memory": "900Gi"}, "limits": {"memory": "900Gi"}}
    text = other(document("huge", mode="Standard", least=1), resources=resources)
    said = failing(story, text, *PATIENCE)
    assert "it cannot be scheduled: the pod requests 900Gi memory; at most" in said


def test_what_somebody_else_has_made_is_neither_taken_over_nor_deleted(cluster: Cluster, namespace: str) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mine"}}, namespace=namespace)
    story = Story(cluster, namespace, "mine")
    said = failing(story, document("mine"))
    assert "ServiceAccount mine already exists and belongs to something else" in said
    assert cluster.get("serviceaccount", "mine", "-n", namespace) is not None


def test_a_quota_is_told_as_the_cluster_tells_it(cluster: Cluster) -> None:
    namespace = cluster.new_namespace("quota")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "0"}},
    }
    cluster.apply(quota, namespace=namespace)
    try:
        story = Story(cluster, namespace, "quota")
        said = failing(story, document("quota", mode="Standard", least=1), *PATIENCE)
        assert "its pods cannot be created: exceeded quota: small" in said
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_field_that_somebody_else_has_set_is_told_and_taken_over_when_asked(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "field")
    text = document("field", mode="Standard", scaler="keda", least=1)
    story.deploy(text)
    cluster.kubectl("patch", "scaledobject", "field-predictor", "-n", namespace, "--type=merge", "--field-manager=me",
                    "-p", '{"spec": {"maxReplicaCount": 9}}')  # fmt: skip
    refused = story.run("deploy", "-f", "-", text=text)
    assert refused.returncode == 1
    assert ".spec.maxReplicaCount: set by me; the manifest has 3" in refused.stderr
    assert "--force-conflicts" in refused.stderr
    story.deploy(text, "--force-conflicts")
    assert cluster.get("scaledobject", "field-predictor", "-n", namespace)["spec"]["maxReplicaCount"] == 3
    story.do("delete", "field", "--no-wait")


def test_a_namespace_that_is_not_there_is_told_with_what_to_type(cluster: Cluster) -> None:
    done = cluster.platformctl("nowhere-at-all", "deploy", "-f", "-", text=document("iris"))
    assert done.returncode == 1
    assert "nowhere-at-all" in done.stderr
    assert "kubectl create namespace nowhere-at-all" in done.stderr


def test_a_kind_that_the_cluster_does_not_know_is_told_with_how_to_get_it(cluster: Cluster, namespace: str) -> None:
    definition = cluster.get("customresourcedefinition", "leaderworkersets.leaderworkerset.x-k8s.io")
    if definition is None or (cluster.get("leaderworkersets", "-A") or {}).get("items"):
        pytest.skip("LeaderWorkerSet is not there, or in use")
    cluster.kubectl("delete", "customresourcedefinition", definition["metadata"]["name"])
    try:
        example = str(ROOT / "examples/services/deepseek-multi-node.yaml")
        done = cluster.platformctl(namespace, "deploy", "-f", example)
    finally:
        kept = {name: definition[name] for name in ("apiVersion", "kind", "spec")}
        cluster.apply({**kept, "metadata": {"name": definition["metadata"]["name"]}})
    assert done.returncode == 2, "it is refused while it is planned, with its place in the document"
    assert "needs LeaderWorkerSet, which the target does not have; install it" in done.stderr
    assert "deepseek-multi-node.yaml:" in done.stderr


def test_rights_that_are_missing_are_told_all_at_once(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    looks = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "looks"},
             "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]}  # fmt: skip
    bound = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "looks"},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"},
             "subjects": [{"kind": "ServiceAccount", "name": "nobody", "namespace": namespace}]}  # fmt: skip
    cluster.apply(account, looks, bound, namespace=namespace)
    token = cluster.kubectl("-n", namespace, "create", "token", "nobody").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    own = tmp_path / "kubeconfig"
    own.write_text(yaml.safe_dump(config))
    theirs = Cluster(own, cluster.kubectl_path, cluster.ingress, cluster.gateway, cluster.domain)
    done = theirs.platformctl(namespace, "deploy", "-f", "-", text=document("iris"))
    assert done.returncode == 1
    for kind in ("services.serving.knative.dev", "serviceaccounts", "controllerrevisions.apps"):
        assert kind in done.stderr, f"{kind} is not named:\n{done.stderr}"
    assert "nothing was written" in done.stderr


def test_an_api_server_that_restarts_in_the_middle_of_a_deploy_is_waited_for(cluster: Cluster, namespace: str) -> None:
    bed = places(os.environ)
    if cluster.kubeconfig != bed.kubeconfig:
        pytest.skip("only the API server of the test bed can be restarted")
    story = Story(cluster, namespace, "restart")
    done: list[subprocess.CompletedProcess[str]] = []
    text = document("restart", mode="Standard", scaler="hpa", least=1)
    deploying = threading.Thread(target=lambda: done.append(story.run("deploy", "-f", "-", text=text)))
    deploying.start()
    seconds_until(lambda: bool(story.left()), "begun")
    restart(bed, "kube-apiserver")
    deploying.join()
    assert done[0].returncode == 0, done[0].stderr
    story.do("delete", "restart", "--no-wait")


def test_a_probe_that_fails_is_told_with_what_it_got(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "probe")
    wrong = {"httpGet": {"path": "/nowhere", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 10}
    text = other(document("probe", mode="Standard", least=1), readinessProbe=wrong)
    done = story.run("deploy", "-f", "-", "--timeout", "60", text=text)
    story.run("delete", "probe", "--no-wait")
    assert done.returncode == 4
    assert "Readiness probe failed: HTTP probe failed with statuscode: 404" in done.stderr


def test_what_a_webhook_refuses_is_told_in_its_words_and_nothing_is_written(cluster: Cluster, namespace: str) -> None:
    """KEDA lets no two ScaledObjects scale one Deployment."""
    theirs = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "theirs"},
        "spec": {
            "scaleTargetRef": {"name": "webhook-predictor"},
            "triggers": [{"type": "cron", "metadata": {"timezone": "UTC", "start": "0 6 * * *", "end": "0 7 * * *",
                                                       "desiredReplicas": "2"}}],
        },
    }  # fmt: skip
    cluster.apply(theirs, namespace=namespace)
    story = Story(cluster, namespace, "webhook")
    said = failing(story, document("webhook", mode="Standard", scaler="keda", least=1))
    assert "ScaledObject webhook-predictor" in said
    assert "theirs" in said
    assert story.left() == []
    cluster.kubectl("delete", "scaledobject", "theirs", "-n", namespace)
