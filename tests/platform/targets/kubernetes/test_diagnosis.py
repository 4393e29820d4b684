"""Why a pod does not serve, in one sentence."""

from typing import Any

import pytest
from tests.platform.targets.kubernetes.objects import pod

from pilotlight.targets.kubernetes.observe.diagnosis import Evidence, diagnose, pod_creation_failure

FAILED = '{"ts": "2026-01-31T12:00:00Z", "level": "ERROR", "event": "model.failed", "message": "iris: no such file"}'
LOADED = '{"ts": "2026-01-31T12:00:00Z", "level": "INFO", "event": "model.loaded", "message": "iris"}'
ENDED = {"terminated": {"exitCode": 1, "reason": "Error"}}


def told(container: dict[str, Any], *, logs: tuple[str, ...] = (), conditions: Any = (), **evidence: Any) -> Any:
    made = pod("iris-predictor", "iris-predictor-1", container=container, conditions=conditions)
    return diagnose(made, Evidence(logs=logs, **evidence))


def test_a_ready_pod_has_none() -> None:
    assert diagnose(pod("iris-predictor", "iris-predictor-1", ready=True), Evidence()) is None


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        (
            {"image": "dev/x:1", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}},
            "image dev/x:1 cannot be pulled: not found",
        ),
        (
            {"image": "docker.io/pilotlight/predictor:0.1.0-torch", "state": {"waiting": {"reason": "ErrImagePull"}}},
            "image docker.io/pilotlight/predictor:0.1.0-torch cannot be pulled: ErrImagePull; "
            "build it, push it and name its registry by --image-registry: docs/how-to/kubernetes.md",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s3" not found'}}},
            'container kserve-container cannot be created: secret "s3" not found',
        ),
        (
            {"restartCount": 1, "state": {}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            "container kserve-container ran out of memory: its limit is 512Mi",
        ),
    ],
)
def test_what_will_not_work_by_waiting_is_fatal(container: dict[str, Any], sentence: str) -> None:
    found = told(container)
    assert (found.sentence, found.fatal) == (sentence, True)


def test_a_crash_is_told_with_the_last_line_of_its_exception() -> None:
    logs = ("Traceback (most recent call last):", "  File ...", "ValueError: no weights")
    loop = {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED}
    found = told(loop, logs=logs)
    assert found.fatal
    assert found.sentence == "container kserve-container exited with code 1, 3 restarts: ValueError: no weights"


def test_one_crash_may_be_an_accident() -> None:
    assert not told({"restartCount": 1, "state": {"running": {}}, "lastState": ENDED}).fatal


def test_a_model_that_cannot_be_loaded_is_told_in_the_predictors_words() -> None:
    found = told({"ready": False, "state": {"running": {}}}, logs=(LOADED, FAILED))
    assert (found.sentence, found.fatal) == ("iris: no such file", True)


def test_the_fix_at_the_end_of_a_long_sentence_is_not_cut_off() -> None:
    sentence = f"s3://{'models/' * 60}model.onnx: model.onnx changed since this revision was deployed; deploy again"
    found = told({"ready": False, "state": {"running": {}}}, logs=(FAILED.replace("iris: no such file", sentence),))
    assert found.sentence == sentence


def test_a_start_that_is_under_way_has_no_cause() -> None:
    assert told({"ready": False, "state": {"running": {}}}, logs=(LOADED,)) is None


def test_no_room_is_told_with_what_is_asked_and_what_is_free() -> None:
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    asking = pod("iris-predictor", "iris-predictor-1", conditions=[condition])
    asking["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "2"}}
    taken = pod("other-predictor", "other-1", ready=True)
    taken["spec"] |= {
        "nodeName": "a",
        "containers": [{"name": "x", "resources": {"requests": {"nvidia.com/gpu": "3"}}}],
    }
    nodes = [
        {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": count}}}
        for name, count in (("a", "4"), ("b", "0"))
    ]
    found = diagnose(asking, Evidence(nodes=nodes, pods=[taken]))
    assert found is not None
    assert not found.fatal, "four of them are on that node, and may become free"
    assert found.sentence.endswith("the pod requests 2 nvidia.com/gpu; at most 1 is free, on a")
    none = diagnose(asking, Evidence(nodes=nodes[1:], pods=[]))
    assert none is not None
    assert none.sentence.endswith("the pod requests 2 nvidia.com/gpu; no node has any")
    assert none.fatal, "waiting adds no device"
    growing = diagnose(asking, Evidence(nodes=nodes[1:], pods=[], has_autoscaler=True))
    assert growing is not None
    assert not growing.fatal, "unless somebody adds nodes"


@pytest.mark.parametrize(
    ("fields", "message", "sentence"),
    [
        ({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, "Scheduling is blocked",
         "it is waiting in the queue 'gpus' of Kueue; kubectl get workloads shows why"),
        ({"schedulingGates": [{"name": "example.com/ready"}]}, "Scheduling is blocked",
         "it is waiting for the scheduling gates example.com/ready to be removed"),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "a100"}]},
         "0/1 nodes are available: 1 cannot allocate all claims.",
         "it is waiting for its device claims gpu: 0/1 nodes are available: 1 cannot allocate all claims."),
    ],
)  # fmt: skip
def test_a_pod_that_waits_for_quota_or_devices_says_so(fields: dict[str, Any], message: str, sentence: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    waiting = pod("iris-predictor", "iris-predictor-1", conditions=[condition])
    waiting["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    waiting["spec"] |= fields
    found = diagnose(waiting, Evidence())
    assert found is not None
    assert (found.sentence, found.fatal) == (sentence, False)


def test_a_pod_that_ends_and_still_holds_the_device_is_named() -> None:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    asking, old = pod("iris-predictor", "iris-2", conditions=[condition]), pod("iris-predictor", "iris-1", ready=True)
    asking["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    holder = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    old["spec"] |= {"nodeName": "a", "containers": [holder]}
    nodes = [{"metadata": {"name": "a"}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}]

    def sentence() -> str:
        found = diagnose(asking, Evidence(nodes=nodes, pods=[old]))
        assert found is not None
        assert not found.fatal
        return found.sentence.partition("; ")[2]

    assert sentence() == "at most 0 is free, on a"
    old["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    assert sentence() == "at most 0 is free, on a; iris-1-x still holds 1 and is terminating"
    old["spec"]["containers"].append({"name": "queue-proxy"})
    assert (
        sentence() == "at most 0 is free, on a; iris-1-x still holds 1 and is terminating: Knative drains it for 30 s"
    )


def test_memory_is_told_in_the_units_that_people_write() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/1 nodes are available: 1 Insufficient memory.",
    }
    asking = pod("iris-predictor", "iris-predictor-1", conditions=[condition])
    asking["spec"]["containers"][0]["resources"] = {"requests": {"memory": "64Gi"}}
    found = diagnose(
        asking, Evidence(nodes=[{"metadata": {"name": "a"}, "status": {"allocatable": {"memory": "8Gi"}}}])
    )
    assert found is not None
    assert found.sentence.endswith("the pod requests 64Gi memory; at most 8Gi is free, on a")


@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        ("FailedMount", 'secret "a" not found', 'a volume cannot be mounted: secret "a" not found'),
        ("Unhealthy", "Readiness probe failed: 503", "Readiness probe failed: 503"),
    ],
)
def test_the_newest_event_speaks_where_no_container_does(reason: str, message: str, sentence: str) -> None:
    older = {"reason": "Unhealthy", "message": "older", "lastTimestamp": "2026-01-31T11:00:00Z"}
    newest = {"reason": reason, "message": message, "lastTimestamp": "2026-01-31T12:00:00Z"}
    assert told({"state": {}}, events=[older, newest]).sentence == sentence


def test_pods_that_are_never_made_are_told_without_a_name_that_nobody_sees() -> None:
    message = 'Error creating: pods "iris-predictor-7f" is forbidden: exceeded quota: small, requested: cpu=4'
    found = pod_creation_failure(
        [{"reason": "FailedCreate", "message": message, "lastTimestamp": "2026-01-31T12:00:00Z"}]
    )
    assert found is not None
    assert found.fatal
    assert found.sentence == "its pods cannot be created: exceeded quota: small, requested: cpu=4"
