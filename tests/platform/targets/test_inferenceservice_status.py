"""Status of a service as OME's and KServe's users know it, on every target, within the schema of the kind."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schemas.crds import STATUS
from schemas.json_schema import record_schema
from tests.judges.schemas import tightened

from pilotlight.targets.inferenceservice_status import to_graph_status, to_llm_status, to_status
from pilotlight.targets.target import Condition, RevisionStatus, ServiceStatus

NOW = "2026-01-15T10:30:00Z"
EARLIER = "2026-01-15T10:00:00Z"
INSIDE = {"cluster": "http://llama.chat.svc.cluster.local"}


def revision(name: str = "llama-engine-1", percent: int = 100, **other: Any) -> RevisionStatus:
    told = {"workload": "llama-engine", "role": "engine", "ready": 1, "desired": 1, "model_state": "Loaded"}
    return RevisionStatus(name=name, percent=percent, **{**told, **other})


def service(*revisions: RevisionStatus, **other: Any) -> ServiceStatus:
    told = {"phase": "Ready", "url": "http://llama.chat.example.com", "mode": "serverless", "urls": INSIDE}
    told |= {"target": "kubernetes"}
    return ServiceStatus("chat", "llama", 3, revisions=revisions, **{**told, **other})


def told(status: ServiceStatus, before: dict[str, Any] | None = None, now: str = NOW) -> dict[str, Any]:
    made = to_status(status, before or {}, now, 1)
    mistakes = Draft202012Validator(tightened(record_schema(STATUS))).iter_errors(made)
    assert not [mistake.message for mistake in mistakes]
    return made


def test_a_ready_service_is_told_as_its_users_know_it() -> None:
    made = told(service(revision(), conditions=(Condition("Ready", "True", since=EARLIER),)))
    assert made == {
        "url": "http://llama.chat.example.com",
        "address": {"url": "http://llama.chat.svc.cluster.local"},
        "deploymentMode": "serverless",
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}],
        "components": {
            "engine": {
                "url": "http://llama.chat.example.com",
                "latestCreatedRevision": "llama-engine-1",
                "latestReadyRevision": "llama-engine-1",
                "traffic": [{"revisionName": "llama-engine-1", "percent": 100, "latestRevision": True}],
            }
        },
        "replicas": 1,
        "selector": "pilotlight.dev/service=llama,component=engine",
        "modelStatus": {
            "transitionStatus": "UpToDate",
            "modelRevisionStates": {"activeModelState": "Loaded", "targetModelState": "Loaded"},
            "modelCopies": {"totalCopies": 1, "failedCopies": 0},
        },
    }


def test_a_router_takes_the_requests_and_the_engine_has_the_model() -> None:
    router = revision("llama-router-1", workload="llama-router", role="router", model_state="Standby")
    made = told(service(router, revision(model_state="Loading", ready=0)))
    assert made["components"]["router"]["url"] == "http://llama.chat.example.com", "the route leads there"
    assert made["components"]["engine"]["url"] == "http://llama-engine.chat.svc.cluster.local", "it has no route"
    assert set(made["components"]) == {"router", "engine"}
    assert made["modelStatus"]["modelRevisionStates"]["targetModelState"] == "Loading"
    assert made["modelStatus"]["transitionStatus"] == "InProgress"


def test_components_that_knative_serves_have_the_hosts_that_it_gave_them() -> None:
    router = revision("llama-router-1", workload="llama-router", role="router")
    own = {"llama-router": "http://llama-router.chat.example.com"}
    made = told(service(router, revision(), component_urls=own))
    assert made["url"] == "http://llama.chat.example.com"
    assert made["components"]["router"]["url"] == "http://llama-router.chat.example.com"


def test_a_canary_shows_both_shares() -> None:
    newer = revision("llama-engine-2", 20, tags=("latest",), url="http://latest")
    made = told(service(newer, revision(percent=80)))
    assert made["components"]["engine"]["traffic"] == [
        {
            "revisionName": "llama-engine-2",
            "percent": 20,
            "latestRevision": True,
            "tag": "latest",
            "url": "http://latest",
        },
        {"revisionName": "llama-engine-1", "percent": 80, "latestRevision": False},
    ]


def test_a_model_that_cannot_be_loaded_is_told_with_its_reason_while_the_older_one_answers() -> None:
    broken = revision("llama-engine-2", 0, ready=0, model_state="FailedToLoad", reason="no such file")
    made = told(service(broken, revision()))
    assert made["components"]["engine"]["latestCreatedRevision"] == "llama-engine-2"
    assert made["components"]["engine"]["latestReadyRevision"] == "llama-engine-1"
    assert made["modelStatus"] == {
        "transitionStatus": "BlockedByFailedLoad",
        "modelRevisionStates": {"activeModelState": "Loaded", "targetModelState": "FailedToLoad"},
        "modelCopies": {"totalCopies": 1, "failedCopies": 1},
        "lastFailureInfo": {
            "reason": "ModelLoadFailed",
            "modelRevisionName": "llama-engine-2",
            "message": "no such file",
        },
    }


@pytest.mark.parametrize(("status", "since"), [("True", EARLIER), ("False", NOW)])
def test_a_condition_keeps_the_time_since_when_it_stands(status: Any, since: str) -> None:
    before = told(service(conditions=(Condition("Ready", "True"),)), now=EARLIER)
    (condition,) = told(service(conditions=(Condition("Ready", status),)), before)["conditions"]
    assert condition["lastTransitionTime"] == since


def test_nothing_changes_when_nothing_happened() -> None:
    status = service(revision(), conditions=(Condition("Ready", "True"),))
    assert told(status, told(status, now=EARLIER)) == told(status, now=EARLIER)


def test_beside_a_cluster_requests_come_through_the_url_of_the_service() -> None:
    url = "http://127.0.0.1:8090/v1/chat/llama"
    router = revision("llama-router-1", workload="llama-router", role="router")
    made = told(service(router, revision(), url=url, urls={"http": url}, target="local"))
    assert made["address"] == {"url": url}
    assert made["components"]["router"]["url"] == url
    assert "url" not in made["components"]["engine"], "the router alone calls it"
    assert "selector" not in made, "no pods have labels there"


def test_a_parked_model_stands_by() -> None:
    made = told(service(revision(model_state="Parked"), target="local"))
    assert made["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Standby"
    assert made["modelStatus"]["transitionStatus"] == "UpToDate"


def test_a_model_that_is_not_pinned_is_told_and_is_no_fault() -> None:
    uri = "s3://models/llama"
    (condition,) = told(service(revision(unpinned=(uri,)), revision("llama-engine-0", 0, unpinned=("s3://old",))))[
        "conditions"
    ]
    assert condition == {
        "type": "ModelUnpinned", "status": "True", "severity": "Info", "reason": "NotPinned",
        "message": f"not pinned, a replica serves what is there at its start: {uri}", "lastTransitionTime": NOW,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("others", "engine"),
    [((), "MainWorkloadReady"), ((revision("llama-decoder-1", role="decoder"),), "PrefillWorkloadReady")],
)
def test_an_llm_inference_service_has_conditions_and_addresses_of_its_own(others: Any, engine: str) -> None:
    conditions = (Condition("Ready", "True"), Condition("IngressReady", "True"), Condition("EngineReady", "True"))
    made = to_llm_status(service(revision(), *others, conditions=conditions), {}, NOW, 1)
    assert [each["type"] for each in made["conditions"]] == ["Ready", "RouterReady", engine]
    assert made["addresses"] == [{"url": "http://llama.chat.example.com"}, {"url": INSIDE["cluster"]}]
    assert not {"components", "modelStatus", "deploymentMode"} & made.keys(), "fields that its CRD does not declare"


def test_an_inference_graph_shows_the_pods_of_its_router_and_no_model() -> None:
    router = revision("llama-router-1", workload="llama-router", role="router", ready=2)
    conditions = (Condition("Ready", "False", "InvalidSpec"), Condition("RouterReady", "True"))
    made = to_graph_status(service(router, conditions=conditions), {}, NOW, 1)
    assert (made["replicas"], made["selector"]) == (2, "pilotlight.dev/service=llama,component=router")
    assert made["address"] == {"url": INSIDE["cluster"]}
    assert not {"components", "modelStatus", "addresses"} & made.keys(), "fields that its CRD does not declare"
