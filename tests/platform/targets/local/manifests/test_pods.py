"""Pods of manifests as processes: variables, folders, volumes and the image."""

from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.local.manifests.objects import container, deployment, refusals
from tests.platform.targets.local.rendering import document, rendered, revision

from pilotlight.targets.local.manifests.interpret import interpret

Json = Any


def test_variables_come_from_everywhere_that_a_pod_could_get_them_from() -> None:
    companions = (
        {"kind": "Secret", "metadata": {"name": "s"}, "data": {"token": "aGVsbG8="}, "stringData": {"plain": "x"}},
        {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"level": "3"}},
    )
    env = [
        {"name": "PLAIN", "value": "1"},
        {"name": "JOINED", "value": "$(PLAIN)-$(SET_level)-$(UNKNOWN)-$$(PLAIN)"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "level"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    found = container(
        *companions, env=env, envFrom=[{"configMapRef": {"name": "c"}, "prefix": "SET_"}], args=["$(PLAIN)"]
    )
    assert {key: value for key, value in found.env.items() if key != "PILOTLIGHT_REVISION"} == {
        "SET_level": "3", "PLAIN": "1", "JOINED": "1-3-$(UNKNOWN)-$(PLAIN)", "TOKEN": "hello", "LEVEL": "3",
        "WHERE": "lab", "LABEL": "c", "ADDRESS": "127.0.0.1",
    }  # fmt: skip
    assert (found.replica_env, found.args) == (("WHO",), ("1",))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"secretKeyRef": {"name": "s", "key": "x"}}, "Secret s is not among the documents; add it to them, or write"),
        ({"configMapKeyRef": {"name": "c", "key": "x"}}, "key x of ConfigMap c is not among the documents"),
        ({"fieldRef": {"fieldPath": "spec.nodeX"}}, "spec.nodeX has no meaning without a pod; write a value"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef has no meaning here; write a value"),
    ],
)
def test_a_variable_without_a_value_is_named(source: Json, sentence: str) -> None:
    companion = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}
    (line,) = refusals(deployment({"env": [{"name": "X", "valueFrom": source}]}), companion)
    assert line.startswith(f"Deployment iris-engine: env X: {sentence}")


def test_a_folder_of_the_node_is_the_folder_of_this_machine() -> None:
    pod = {"volumes": [{"name": "m", "hostPath": {"path": "/data/models/"}}, {"name": "e", "emptyDir": {}}]}
    mounts = [{"name": "m", "mountPath": "/mnt/models", "subPath": "iris"}, {"name": "e", "mountPath": "/tmp"}]
    env = [{"name": "INFERENCE_MODEL_PATH", "value": "/mnt/models/1"}, {"name": "OTHER", "value": "/mnt/models2"}]
    found = container(pod=pod, volumeMounts=mounts, env=env, args=["--model_dir=/mnt/models", "/mnt"])
    assert found.env["INFERENCE_MODEL_PATH"] == "/data/models/iris/1"
    assert found.env["OTHER"] == "/mnt/models2"
    assert found.args == ("--model_dir=/data/models/iris", "/mnt")


def test_what_an_init_container_would_fetch_is_fetched_by_the_predictor(tmp_path: Path) -> None:
    made = document(raw=True, storageUris=[{"uri": "s3://models/iris"}])
    del made["spec"]["predictor"]["model"]["storageUri"]
    assert revision(tmp_path, made).container.env["INFERENCE_MODEL_PATH"] == "s3://models/iris"


def test_a_second_source_that_nothing_names_is_refused(tmp_path: Path) -> None:
    made = document(
        raw=True, storageUris=[{"uri": "s3://a/b", "mountPath": "/mnt/a"}, {"uri": "s3://c", "mountPath": "/mnt/c"}]
    )
    del made["spec"]["predictor"]["model"]["storageUri"]
    (line,) = refusals(*rendered(tmp_path, made))
    assert "s3://c is fetched into /mnt/c, which no variable names" in line


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        (
            {"persistentVolumeClaim": {"claimName": "x"}},
            "is a volume claim, which this machine does not have; use a local",
        ),
        ({"csi": {"driver": "x"}}, "is a CSI volume, which this machine does not have"),
        ({"secret": {"secretName": "x"}}, "files of a secret are not written to /mnt/x here; give the values as env"),
    ],
)
def test_a_volume_that_cannot_be_here_is_refused(volume: Json, sentence: str) -> None:
    made = deployment({"volumeMounts": [{"name": "v", "mountPath": "/mnt/x"}]}, {"volumes": [{"name": "v", **volume}]})
    (line,) = refusals(made)
    assert line.startswith("Deployment iris-engine: volume v")
    assert sentence in line


@pytest.mark.parametrize(
    ("image", "runs"),
    [
        ("pilotlight/predictor:0.1.0", True),
        ("registry.local:5000/pilotlight/predictor@sha256:00", True),
        ("pilotlight/predictor-of-mine", False),
        ("mypilotlight/predictor", False),
        ("vllm/vllm-openai:v1", False),
    ],
)
def test_only_our_own_image_runs(image: str, runs: bool) -> None:
    made = deployment({"image": image, "readinessProbe": {"exec": {}}} if not runs else {"image": image})
    if runs:
        assert interpret([made]).workloads[0].revision.container.image == image
        return
    (line,) = refusals(made)
    assert line.startswith(
        f"Deployment iris-engine: image {image}: only our own predictor runs without containers; platformctl render"
    )
