"""Status of a service in the terms of KServe and OME, for InferenceService objects and `platformctl status`. Pure.

Each address is one that answers: components have public ones where they are Knative Services, and the entry has that of
the service.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from pilotlight.k8s import names
from pilotlight.targets.target import Condition, RevisionStatus, ServiceStatus

Json = Any
MODELS: Final = ("engine", "predictor", "decoder")  # component with the model: the first that a service has
PROVEN: Final = ("Loaded", "Standby", "Parked")
_SHARED_FIELDS: Final = ("url", "address", "observedGeneration", "conditions")  # of every kind
_LLM_CONDITIONS: Final = {
    "EngineReady": "MainWorkloadReady", "DecoderReady": "MainWorkloadReady", "RouterReady": "SchedulerWorkloadReady",
    "IngressReady": "RouterReady",
}  # fmt: skip


def to_status(status: ServiceStatus, before: Mapping[str, Json], now: str, generation: int) -> dict[str, Json]:
    """Return the status of an InferenceService.

    `before` is the object's: unchanged conditions keep their lastTransitionTime. `now` is that of others, UTC,
    RFC 3339; empty: unknown.
    """
    internal = status.urls.get("cluster") or status.url
    invalid = any(each.reason == "InvalidSpec" for each in status.conditions)  # a release before it serves on
    fields: dict[str, Json] = {
        "url": status.url,
        "address": {"url": internal} if internal else {},
        "deploymentMode": status.mode,
        "observedGeneration": generation,
        "conditions": [_condition(each, before, now) for each in (*status.conditions, *_unpinned(status.revisions))],
        "components": {role: _component(status, mine) for role, mine in _by_role(status.revisions).items()},
        "modelStatus": _model(status.revisions) | ({"transitionStatus": "InvalidSpec"} if invalid else {}),
        **_scale(status),
    }
    return {name: value for name, value in fields.items() if value or value == 0}


def _scale(status: ServiceStatus, roles: Sequence[str] = MODELS) -> dict[str, Json]:
    """Return what the subresource /scale shows: pods of the component with the model, and their labels."""
    mine = _first(roles, status.revisions)
    if not mine:
        return {}
    labels = {names.LABEL_SERVICE: status.name, "component": mine[0].role}
    selector = ",".join(f"{name}={text}" for name, text in labels.items())
    pods = {"selector": selector} if status.target == "kubernetes" else {}
    return {"replicas": sum(each.ready + each.starting for each in mine), **pods}


def _by_role(revisions: Iterable[RevisionStatus]) -> dict[str, list[RevisionStatus]]:
    by_role: dict[str, list[RevisionStatus]] = {}
    for each in revisions:
        by_role.setdefault(each.role, []).append(each)
    return by_role


def _first(roles: Sequence[str], revisions: Sequence[RevisionStatus]) -> list[RevisionStatus]:
    """Return the revisions of the first of these roles that exists, newest first."""
    by_role = _by_role(revisions)
    return next((by_role[role] for role in roles if role in by_role), [])


def _component_url(status: ServiceStatus, workload: str) -> str:
    """Return the address of a component for clients; of one that has none, on a cluster, that of its Service."""
    entry = _first(names.ENTRY_ROLES, status.revisions)
    public = status.url if entry and entry[0].workload == workload else ""
    inside = f"http://{workload}.{status.namespace}.svc.cluster.local" if status.target == "kubernetes" else ""
    return status.component_urls.get(workload) or public or inside


def _unpinned(revisions: Sequence[RevisionStatus]) -> Iterator[Condition]:
    """Yield what is worth knowing and no fault: True, since tools take any condition that is False for one."""
    uris = dict.fromkeys(uri for each in revisions if each.percent for uri in each.unpinned)
    if uris:
        message = f"not pinned, a replica serves what is there at its start: {', '.join(uris)}"
        yield Condition("ModelUnpinned", "True", "NotPinned", message, severity="Info")


def _condition(condition: Condition, before: Mapping[str, Json], now: str) -> dict[str, Json]:
    known: Mapping[str, Json] = next(
        (each for each in before.get("conditions") or () if each.get("type") == condition.type), {}
    )
    unchanged = known.get("status") == condition.status
    since = condition.since or (known.get("lastTransitionTime") if unchanged else "") or now
    optional = {
        "lastTransitionTime": since, "severity": condition.severity, "reason": condition.reason,
        "message": condition.message,
    }  # fmt: skip
    fields = {"type": condition.type, "status": condition.status}
    return fields | {name: value for name, value in optional.items() if value}


def _component(status: ServiceStatus, revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    newest = revisions[0]
    ready = next((each.name for each in revisions if each.model_state in PROVEN), "")
    fields = {
        "url": _component_url(status, newest.workload),
        "latestCreatedRevision": newest.name,
        "latestReadyRevision": ready,
        "traffic": [_share(each, newest) for each in revisions if each.percent or each.tags],
    }
    return {name: value for name, value in fields.items() if value}


def _share(revision: RevisionStatus, newest: RevisionStatus) -> dict[str, Json]:
    tagged = {"tag": revision.tags[0], "url": revision.url} if revision.tags else {}
    fields = {"revisionName": revision.name, "percent": revision.percent, "latestRevision": revision is newest}
    return fields | {name: value for name, value in tagged.items() if value}


def _model(revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    mine = _first(MODELS, revisions)
    if not mine:
        return {}
    target = mine[0]
    active = max(mine, key=lambda each: (each.percent, each.model_state in PROVEN))
    failed = target.model_state == "FailedToLoad"
    states = {"activeModelState": _state(active), "targetModelState": _state(target)}
    copies = {
        "totalCopies": sum(each.ready for each in mine),
        "failedCopies": max(target.desired - target.ready, 0) if failed else 0,
    }
    transition = "BlockedByFailedLoad" if failed else "UpToDate" if target.model_state in PROVEN else "InProgress"
    fields: dict[str, Json] = {
        "transitionStatus": transition, "modelRevisionStates": states, "modelCopies": copies,
    }  # fmt: skip
    if failed:
        failure = {"reason": "ModelLoadFailed", "modelRevisionName": target.name, "message": target.reason}
        fields["lastFailureInfo"] = {name: value for name, value in failure.items() if value}
    return fields


def _state(revision: RevisionStatus) -> str:
    """Return OME's state of the model, which knows no parking."""
    return "Standby" if revision.model_state == "Parked" else revision.model_state


def to_llm_status(status: ServiceStatus, before: Mapping[str, Json], now: str, generation: int) -> dict[str, Json]:
    """Return the status of an LLMInferenceService, whose conditions have names of their own."""
    disaggregated = any(each.role == "decoder" for each in status.revisions)
    types = _LLM_CONDITIONS | ({"EngineReady": "PrefillWorkloadReady"} if disaggregated else {})
    conditions = tuple(replace(each, type=types.get(each.type, each.type)) for each in status.conditions)
    fields = to_status(replace(status, conditions=conditions), before, now, generation)
    urls = dict.fromkeys(url for url in (status.url, fields.get("address", {}).get("url")) if url)
    own = {name: fields[name] for name in (*_SHARED_FIELDS, "replicas", "selector") if name in fields}
    return own | ({"addresses": [{"url": url} for url in urls]} if urls else {})


def to_graph_status(status: ServiceStatus, before: Mapping[str, Json], now: str, generation: int) -> dict[str, Json]:
    """Return the status of an InferenceGraph, which has no model and scales its router."""
    fields = to_status(status, before, now, generation)
    own = {name: fields[name] for name in (*_SHARED_FIELDS, "deploymentMode") if name in fields}
    return own | _scale(status, ("router",))
