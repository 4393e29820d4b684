"""Canaries in a cluster: one Lease for each service, written by whoever has seen its last version."""

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from tests.platform.targets.kubernetes.fake_cluster import PLAIN, PaperCluster, named, plural

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import Canary, CanaryHistory
from pilotlight.errors import Conflict, PlatformError
from pilotlight.k8s import names
from pilotlight.spec.canary_policy import CanaryPolicy
from pilotlight.targets.kubernetes import canary_store
from pilotlight.targets.kubernetes.target import KubernetesTarget
from pilotlight.targets.target import Sample

KEY = ("models", "iris")
STARTED = "2026-03-01T12:00:00.000Z"
CANARY = Canary(CanaryPolicy(interval_s=10.0), "iris-predictor-new", "iris-predictor-old", 7, 6, STARTED)
LEASES = (*PLAIN, "coordination.k8s.io/v1/Lease")


class WrittenCluster(PaperCluster):
    """One that keeps what is written to it, and counts versions as the API server does."""

    async def _object(self, request: web.Request, api_version: str, rest: list[str]) -> web.StreamResponse:
        if request.method == "GET" or rest[0] != "namespaces":
            return await super()._object(request, api_version, rest)
        namespace, own = rest[1], rest[2:]
        there = next((each for each in self.objects if self._is(each, namespace, own)), None)
        if request.method == "DELETE":
            self.objects.remove(there)  # type: ignore[arg-type]
            return web.json_response({})
        body = await request.json()
        if request.method == "POST":
            return self._created(body, namespace, own[0])
        return self._patched(there, body)

    def _is(self, each: Any, namespace: str, own: list[str]) -> bool:
        metadata = each["metadata"]
        return plural(each["kind"]) == own[0] and (metadata.get("namespace"), metadata["name"]) == (namespace, own[-1])

    def _created(self, body: Any, namespace: str, kinds: str) -> web.Response:
        metadata = {"name": f"{body['metadata'].get('generateName')}{len(self.objects)}", **body["metadata"]}
        if any(self._is(each, namespace, [kinds, metadata["name"]]) for each in self.objects):
            told = {"reason": "AlreadyExists", "message": f"{kinds} {metadata['name']} already exists"}
            return web.json_response(told, status=409)
        made = {**body, "metadata": {**metadata, "resourceVersion": "1"}}
        self.objects.append(made)
        return web.json_response(made)

    def _patched(self, there: Any, body: Any) -> web.Response:
        version = there["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", version) != version:
            return web.json_response({"reason": "Conflict", "message": "the object has been modified"}, status=409)
        there["metadata"] |= {**body["metadata"], "resourceVersion": str(int(version) + 1)}
        there["spec"] |= body.get("spec") or {}
        return web.json_response(there)


@pytest.fixture
def paper() -> Iterator[WrittenCluster]:
    workload = named("apps/v1", "Deployment", *KEY, metadata={"labels": {names.LABEL_SERVICE: "iris"}}, spec={})
    with WrittenCluster(workload, kinds=LEASES) as running:
        yield running


@pytest.fixture
def target(paper: WrittenCluster) -> KubernetesTarget:
    return KubernetesTarget(paper.cluster())


def leases(paper: PaperCluster) -> list[Any]:
    return [each for each in paper.objects if each["kind"] == "Lease"]


def test_a_canary_is_kept_and_found_again(target: KubernetesTarget, paper: PaperCluster) -> None:
    state = stored_history.encode_history(CanaryHistory(CANARY))
    kept = target.save_canary(KEY, state, "")
    assert (kept.key, kept.state) == (KEY, state)
    assert target.canary(KEY) == kept
    assert list(target.canaries(None)) == [kept]
    assert list(target.canaries("others")) == []
    (lease,) = leases(paper)
    assert (lease["metadata"]["name"], lease["metadata"]["labels"][names.LABEL_SERVICE]) == ("iris-canary", "iris")


def test_only_who_has_seen_the_last_version_may_change_it(target: KubernetesTarget) -> None:
    first = target.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), "")
    with pytest.raises(Conflict):
        target.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), "")
    later = target.save_canary(
        KEY, stored_history.encode_history(CanaryHistory(replace(CANARY, weight=5))), first.version
    )
    with pytest.raises(Conflict, match="changed in the meantime"):
        target.save_canary(KEY, stored_history.encode_history(CanaryHistory(replace(CANARY, weight=9))), first.version)
    assert stored_history.decode_history(target.canary(KEY)).current == replace(CANARY, weight=5)
    assert later.version != first.version


def test_the_lease_says_who_runs_it_as_every_lease_does(target: KubernetesTarget, paper: PaperCluster) -> None:
    held = replace(CANARY, holder="here/7", renewed_at="2026-03-01T12:00:05.250Z")
    target.save_canary(KEY, stored_history.encode_history(CanaryHistory(held)), "")
    (lease,) = leases(paper)
    assert lease["spec"] == {
        "holderIdentity": "here/7", "leaseDurationSeconds": 30, "renewTime": "2026-03-01T12:00:05.250000Z",
    }  # fmt: skip
    kept = target.canary(KEY)
    assert kept is not None
    target.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), kept.version)
    assert not any(lease["spec"].values()), "nobody runs it any more"


def test_what_happens_to_it_is_told_as_events_of_the_workload(target: KubernetesTarget, paper: PaperCluster) -> None:
    first = target.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), "")
    ended = replace(CANARY, phase="RolledBack", reason="error_rate is 9 %", ended_at=STARTED)
    target.save_canary(KEY, stored_history.encode_history(CanaryHistory(ended)), first.version)
    events = [each for each in paper.objects if each["kind"] == "Event"]
    assert [(each["reason"], each["type"]) for each in events] == [
        ("CanaryStarted", "Normal"), ("CanaryRolledBack", "Warning"),
    ]  # fmt: skip
    assert events[1]["involvedObject"]["kind"] == "Deployment"
    assert "error_rate is 9 %" in events[1]["message"]


def test_the_release_that_a_canary_goes_back_to_is_kept(target: KubernetesTarget, paper: PaperCluster) -> None:
    assert canary_store.stable_generation(target.cluster, KEY) == 0
    target.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), "")
    assert canary_store.stable_generation(target.cluster, KEY) == 6


def test_the_lease_goes_with_its_service(target: KubernetesTarget, paper: PaperCluster) -> None:
    target.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), "")
    canary_store.delete(target.cluster, KEY)
    canary_store.delete(target.cluster, KEY)
    assert not leases(paper)


def test_a_lease_that_is_somebody_elses_is_no_canary(target: KubernetesTarget, paper: PaperCluster) -> None:
    paper.objects.append(named("coordination.k8s.io/v1", "Lease", "models", "iris-canary", spec={}))
    assert target.canary(KEY) is None
    assert list(target.canaries(None)) == []


class OneNamespace(PaperCluster):
    """Whose Leases may be listed in `models` and nowhere else."""

    async def _object(self, request: web.Request, api_version: str, rest: list[str]) -> web.StreamResponse:
        if rest[-1] == "leases" and rest[:2] != ["namespaces", "models"]:
            return web.json_response({"reason": "Forbidden", "message": "not there"}, status=403)
        return await super()._object(request, api_version, rest)


def test_who_may_look_into_one_namespace_sees_the_canaries_of_that() -> None:
    lease = canary_store.to_lease(KEY, stored_history.encode_history(CanaryHistory(CANARY)))
    lease["metadata"]["resourceVersion"] = "4"
    spaces = [named("v1", "Namespace", "", name) for name in ("default", "models")]
    with OneNamespace(lease, *spaces, kinds=LEASES) as paper:
        (found,) = KubernetesTarget(paper.cluster()).canaries(None)
    assert (found.key, found.version) == (KEY, "4")


def test_who_may_not_look_at_leases_has_none() -> None:
    with PaperCluster(kinds=LEASES, forbidden=["leases"]) as paper:
        canary_store.delete(paper.cluster(), KEY)
        assert canary_store.stable_generation(paper.cluster(), KEY) == 0


def test_prometheus_is_asked_through_the_api_server() -> None:
    service = named("v1", "Service", "monitoring", "prometheus", spec={"ports": [{"port": 9090}]})
    answer = {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [5, "2"]}]},
    }
    with PaperCluster(service) as paper:
        paper.queries["up"] = answer
        assert canary_store.query(paper.cluster(), "up") == [Sample({"a": "b"}, 2.0, 5.0)]


def test_without_a_prometheus_it_is_said_what_to_set() -> None:
    with PaperCluster() as paper, pytest.raises(PlatformError, match="no source of request metrics") as told:
        canary_store.query(paper.cluster(), "up")
    assert "PILOTLIGHT_PROMETHEUS" in told.value.hint
