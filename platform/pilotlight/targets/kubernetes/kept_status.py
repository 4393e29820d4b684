"""Status of a service as that of an InferenceService, for `kubectl get inferenceservice NAME -o yaml`. Pure.

kept.py writes it; the types are in `spec/status_fields`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.targets.target import Condition, RevisionStatus, ServiceStatus

Json = Any
# Entry component, and component with the model: the first of these that a service has.
ENTRIES: Final = ("router", "transformer", "engine", "predictor")
MODELS: Final = ("engine", "predictor", "decoder")
PROVEN: Final = ("Loaded", "Standby")


def to_status(status: ServiceStatus, before: Mapping[str, Json], now: str, generation: int) -> dict[str, Json]:
    """Return the status. `before` is the object's: unchanged conditions keep their lastTransitionTime."""
    fields: dict[str, Json] = {
        "url": status.url,
        "address": _address(status),
        "deploymentMode": status.mode,
        "observedGeneration": generation,
        "conditions": [_condition(each, before, now) for each in status.conditions],
        "components": {role: _component(status, mine) for role, mine in _by_role(status.revisions).items()},
        "modelStatus": _model(status.revisions),
    }
    return {name: value for name, value in fields.items() if value or value == 0}


def _by_role(revisions: Iterable[RevisionStatus]) -> dict[str, list[RevisionStatus]]:
    by_role: dict[str, list[RevisionStatus]] = {}
    for each in revisions:
        by_role.setdefault(each.role, []).append(each)
    return by_role


def _first(roles: Sequence[str], revisions: Sequence[RevisionStatus]) -> list[RevisionStatus]:
    """Return the revisions of the first of these roles that exists, newest first."""
    by_role = _by_role(revisions)
    return next((by_role[role] for role in roles if role in by_role), [])


def _internal_url(workload: str, namespace: str) -> str:
    return f"http://{workload}.{namespace}.svc.cluster.local"


def _address(status: ServiceStatus) -> dict[str, str]:
    """Return the internal address: the entry workload of a serverless service, else the entry Service."""
    entry = _first(ENTRIES, status.revisions)
    if not entry:
        return {}
    name = entry[0].workload if status.mode == "serverless" else names.entry_service(status.name)
    return {"url": _internal_url(name, status.namespace)}


def _condition(condition: Condition, before: Mapping[str, Json], now: str) -> dict[str, Json]:
    known: Mapping[str, Json] = next(
        (each for each in before.get("conditions") or () if each.get("type") == condition.type), {}
    )
    unchanged = known.get("status") == condition.status
    since = condition.since or (known.get("lastTransitionTime") if unchanged else "") or now
    fields = {"type": condition.type, "status": condition.status, "lastTransitionTime": since}
    return fields | {
        name: value for name, value in (("reason", condition.reason), ("message", condition.message)) if value
    }


def _component(status: ServiceStatus, revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    newest = revisions[0]
    ready = next((each.name for each in revisions if each.model_state in PROVEN), "")
    fields = {
        "url": _internal_url(newest.workload, status.namespace),
        "latestCreatedRevision": newest.name,
        "latestReadyRevision": ready,
        "traffic": [_share(each, newest) for each in revisions if each.percent or each.tags],
    }
    return {name: value for name, value in fields.items() if value}


def _share(revision: RevisionStatus, newest: RevisionStatus) -> dict[str, Json]:
    fields: dict[str, Json] = {"revisionName": revision.name, "percent": revision.percent}
    fields["latestRevision"] = revision is newest
    tagged = {"tag": revision.tags[0], "url": revision.url} if revision.tags else {}
    return fields | {name: value for name, value in tagged.items() if value}


def _model(revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    mine = _first(MODELS, revisions)
    if not mine:
        return {}
    target = mine[0]
    active = max(mine, key=lambda each: (each.percent, each.model_state in PROVEN))
    failed = target.model_state == "FailedToLoad"
    states = {"activeModelState": active.model_state, "targetModelState": target.model_state}
    copies = {
        "totalCopies": sum(each.ready for each in mine),
        "failedCopies": max(target.desired - target.ready, 0) if failed else 0,
    }
    fields: dict[str, Json] = {"transitionStatus": _transition(target), "modelRevisionStates": states}
    fields["modelCopies"] = copies
    if failed:
        failure = {"reason": "ModelLoadFailed", "modelRevisionName": target.name, "message": target.reason}
        fields["lastFailureInfo"] = {name: value for name, value in failure.items() if value}
    return fields


def _transition(target: RevisionStatus) -> str:
    if target.model_state == "FailedToLoad":
        return "BlockedByFailedLoad"
    return "UpToDate" if target.model_state in PROVEN else "InProgress"
