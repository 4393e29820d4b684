"""A raw service on a real KEDA with a real Prometheus: latency scales it, and losing the numbers does not."""

import os
import signal
import time

import pytest
import yaml
from tests.cluster.bed.places import places
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import failures, steady
from tests.cluster.scenarios import Story, document


def raw(name: str, **other: object) -> str:
    return document(name, mode="Standard", scaler="keda", **{"least": 1, **other})  # type: ignore[arg-type]


def test_a_rolling_update_and_a_canary_under_steady_load_lose_no_request(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "steady")
    host = story.deploy(raw("steady")).removeprefix("http://")
    with steady(cluster.gateway, host, "steady") as askers:
        seconds_until(lambda: all(asker.answered > 5 for asker in askers), "answers")
        story.deploy(raw("steady", memory="640Mi"))
        assert len(story.shares()) == 1
        story.do("canary", "start", "steady", "-f", "-", "--percent", "30", text=raw("steady", memory="576Mi"))
        assert sorted(story.shares().values()) == [30, 70]
        story.do("canary", "promote", "steady")
        assert list(story.shares().values()) == [100]
        story.do("rollback", "steady")
    assert failures(askers) == []
    assert sum(asker.answered for asker in askers) > 100
    story.do("delete", "steady")
    story.wait_gone()


def test_bounds_set_by_hand_start_and_end_pods_and_restart_none(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "hand")
    story.deploy(raw("hand"))
    (before,) = [pod["metadata"]["name"] for pod in story.pods()]
    story.do("scale", "hand", "--min", "2")
    names = {pod["metadata"]["name"] for pod in story.pods()}
    assert before in names
    assert len(names) == 2
    story.do("delete", "hand", "--no-wait")


def test_a_dry_run_writes_nothing_and_what_a_release_lacks_is_taken_away(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "pruned")
    text = raw("pruned")
    assert "nothing was changed" in story.run("deploy", "-f", "-", "--dry-run=server", text=text).stderr
    assert story.left() == []
    story.deploy(text)
    other = document("pruned", mode="Standard", scaler="hpa", least=1)
    story.do("deploy", "-f", "-", "--dry-run=server", text=other)
    assert cluster.get("scaledobject", "pruned-predictor", "-n", namespace) is not None
    story.deploy(other)
    seconds_until(lambda: cluster.get("scaledobject", "pruned-predictor", "-n", namespace) is None, "KEDA lets it go")
    assert cluster.get("horizontalpodautoscaler", "pruned-predictor", "-n", namespace) is not None
    cluster.kubectl("patch", "horizontalpodautoscaler", "pruned-predictor", "-n", namespace, "-p",
                    '{"spec": {"maxReplicas": 7}}')  # fmt: skip
    drifted = story.run("diff", "-f", "-", text=other)
    assert drifted.returncode == 1
    assert "-  maxReplicas: 7" in drifted.stdout
    story.do("delete", "pruned", "--no-wait")


CREDENTIALS = """
apiVersion: v1
kind: Secret
metadata: {name: reader}
stringData: {token: not-asked-for-here}
---
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata: {name: reader}
spec:
  secretTargetRef:
  - {parameter: bearerToken, name: reader, key: token}
---
"""


def test_credentials_beside_a_service_reach_keda(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "trusted")
    made = yaml.safe_load(raw("trusted"))
    made["spec"]["predictor"]["autoScaling"] = {"metrics": [{
        "type": "External",
        "external": {
            "metric": {"backend": "prometheus", "query": "sum(pilotlight_requests_in_flight)"},
            "target": {"type": "AverageValue", "averageValue": "5"},
            "authenticationRef": {"authModes": "bearer", "authenticationRef": {"name": "reader"}},
        },
    }]}  # fmt: skip
    story.deploy(CREDENTIALS + yaml.safe_dump(made))

    def ready() -> bool:
        scaled = cluster.get("scaledobject", "trusted-predictor", "-n", namespace)
        conditions = {each["type"]: each["status"] for each in (scaled.get("status") or {}).get("conditions") or ()}
        return conditions.get("Ready") == "True"

    seconds_until(ready, "KEDA, which asks for them at once, has the credentials")
    story.do("delete", "trusted", "--no-wait")


@pytest.fixture
def prometheus(cluster: Cluster) -> int:
    """The pid of the bed's; another cluster's is not ours to stop."""
    bed = places(os.environ)
    if cluster.kubeconfig != bed.kubeconfig:
        pytest.skip("only the Prometheus of the test bed can be stopped")
    return int((bed.run / "prometheus.pid").read_text())


SLOW = """
import time

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1, 4])}


def predict(x):
    time.sleep(0.1)
    return {"y": x}
"""


def slow() -> str:
    """Serves SLOW of a ConfigMap, one request after the other; 0.9 s is the objective."""
    made = yaml.safe_load(
        raw("slow", most=3, annotations=("pilotlight.dev/triggers: latency=0.9",), uri="file:///code")
    )
    predictor = made["spec"]["predictor"]
    predictor["volumes"] = [{"name": "code", "configMap": {"name": "slow"}}]
    predictor["model"] |= {
        "modelFormat": {"name": "python"},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        "args": ["--max-batch-size=0"],
    }
    return str(yaml.safe_dump(made))


def test_latency_raises_replicas_and_a_lost_prometheus_does_not_lower_them(
    cluster: Cluster, namespace: str, prometheus: int
) -> None:
    """One client waits a tenth of a second and changes nothing; thirty wait for each other, and their wait does."""
    story = Story(cluster, namespace, "slow")
    cluster.kubectl("create", "configmap", "slow", "-n", namespace, f"--from-literal=model.py={SLOW}")
    host = story.deploy(slow()).removeprefix("http://")
    hurry = (
        '{"spec": {"pollingInterval": 2, "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {'
        '"scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 5}]},'
        '"scaleDown": {"stabilizationWindowSeconds": 5, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 5}]}'
        "}}}}}"
    )
    cluster.kubectl("patch", "scaledobject", "slow-predictor", "-n", namespace, "--type=merge", "-p", hurry)

    def wanted() -> int:
        return int(cluster.get("deployment", "slow-predictor", "-n", namespace)["spec"]["replicas"])

    with steady(cluster.gateway, host, "slow", clients=1) as (alone,):
        calm = [wanted() for _ in range(20) if not time.sleep(1)]
    assert alone.answered > 20
    assert set(calm) == {1}, f"replicas for one client: {calm}"
    with steady(cluster.gateway, host, "slow", clients=30) as askers:
        seconds_until(lambda: wanted() == 3, "three replicas under load", 180)
        os.kill(prometheus, signal.SIGSTOP)
        try:
            held = [wanted() for _ in range(45) if not time.sleep(1)]
        finally:
            os.kill(prometheus, signal.SIGCONT)
        assert set(held) == {3}, f"replicas while nobody could measure: {held}"
    assert failures([alone, *askers]) == []
    seconds_until(lambda: wanted() == 1, "one replica at rest", 240)
    story.do("delete", "slow", "--no-wait")
