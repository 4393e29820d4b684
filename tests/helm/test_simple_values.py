"""The chart's defaults and a few `--set` are enough for a service that works."""

from pathlib import Path
from typing import Any

import pytest
from tests.helm.conftest import CHARTS, Release
from tests.judges import helm
from tests.judges.helm import HelmFailed
from tests.judges.verdict import assert_valid

CASES = sorted((CHARTS / "inference-service/ci").glob("*-values.yaml"))
URI = "model.storageUri=s3://models/iris"


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pod_of(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(objects, kind)["spec"]["template"]["spec"]
    return spec


def test_a_model_alone_makes_a_service_that_scales_to_zero(release: Release) -> None:
    objects = release("inference-service", "--set", URI)
    assert_valid(objects)
    service = of_kind(objects, "Service")
    assert service["apiVersion"] == "serving.knative.dev/v1"
    assert service["metadata"]["name"] == "iris"
    template = service["spec"]["template"]
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] == "0"
    env = {each["name"]: each["value"] for each in template["spec"]["containers"][0]["env"]}
    assert env["INFERENCE_MODEL_PATH"] == "s3://models/iris"
    assert env["INFERENCE_MODEL_NAME"] == "iris"


def test_without_a_revision_name_all_requests_go_to_the_latest(release: Release) -> None:
    service = of_kind(release("inference-service", "--set", URI), "Service")
    assert "name" not in service["spec"]["template"]["metadata"]
    assert service["spec"]["traffic"] == [{"latestRevision": True, "percent": 100}]


def test_a_named_revision_gets_all_requests(release: Release) -> None:
    service = of_kind(release("inference-service", "--set", URI, "--set", "revision.name=iris-2"), "Service")
    assert service["spec"]["template"]["metadata"]["name"] == "iris-2"
    assert service["spec"]["traffic"] == [{"latestRevision": False, "percent": 100, "revisionName": "iris-2"}]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_is_valid(path: Path, release: Release) -> None:
    assert_valid(release("inference-service", "-f", str(path)))


def test_a_test_pod_asks_the_service(real_helm: str) -> None:

    objects = helm.template(
        CHARTS / "inference-service", "iris", "--set", URI, "--show-only", "templates/tests/ready.yaml"
    )
    assert_valid(objects)
    (pod,) = objects
    assert pod["spec"]["containers"][0]["args"] == ["http://iris.default.svc/v2/health/ready", "240"]


def test_an_autoscaler_owns_the_count_only_where_there_is_room(release: Release) -> None:
    scaled = release("inference-service", "--set", URI, "--set", "mode=raw")
    assert "replicas" not in of_kind(scaled, "Deployment")["spec"]
    assert of_kind(scaled, "HorizontalPodAutoscaler")["spec"]["maxReplicas"] == 3
    fixed = release("inference-service", "--set", URI, "--set", "mode=raw,replicas.max=1")
    assert of_kind(fixed, "Deployment")["spec"]["replicas"] == 1
    assert "HorizontalPodAutoscaler" not in {each["kind"] for each in fixed}


def test_a_claim_is_mounted_and_not_fetched(release: Release) -> None:
    objects = release("inference-service", mode="raw", model={"storageUri": "pvc://models/llama/8b/"})
    pod = pod_of(objects, "Deployment")
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in pod["volumes"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "model"]
    assert mount["subPath"] == "llama/8b"
    env = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    assert env["INFERENCE_MODEL_PATH"] == mount["mountPath"]


def test_a_variable_of_the_user_replaces_ours(release: Release) -> None:
    env = [{"name": "INFERENCE_MODEL_NAME", "value": "flowers"}]
    pod = pod_of(release("inference-service", mode="raw", model={"storageUri": "s3://m"}, env=env), "Deployment")
    assert [each["value"] for each in pod["containers"][0]["env"] if each["name"] == env[0]["name"]] == ["flowers"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("name=iris", "set model.storageUri, or pass a plan"),
        (f"{URI},mode=multi-node", "mode = multi-node, must be serverless, raw or stateful"),
        (f"{URI},mode=raw,replicas.min=0", "replicas.min = 0, must be at least 1 unless mode is serverless"),
        (f"{URI},replicas.min=4", "replicas.max = 3, must be at least replicas.min = 4"),
        (f"{URI},replica.min=4", "replica"),
        (f"{URI},gpus=some", "gpus"),
        (f"{URI},objects[0].kind=Pod,objects[0].apiVersion=v1,objects[0].metadata.name=a", "exclude each other"),
    ],
)
def test_a_mistake_is_refused_with_its_name(flags: str, said: str, release: Release) -> None:
    with pytest.raises(HelmFailed) as raised:
        release("inference-service", "--set", flags)
    assert said in str(raised.value)


def test_the_pods_of_a_simple_release_say_which_revision_they_are(release: Release) -> None:
    def revision(*flags: str) -> str:
        template = of_kind(release("inference-service", "--set", URI, *flags), "Deployment")["spec"]["template"]
        return str(template["metadata"]["labels"]["pilotlight.dev/revision"])

    raw = ("--set", "mode=raw")
    assert revision(*raw).startswith("iris-")
    assert revision(*raw) == revision(*raw, "--set", "replicas.max=7")
    assert revision(*raw) != revision(*raw, "--set", "args={--log-format=text}")
