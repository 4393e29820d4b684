"""Starts that take long or fail halfway, on a platform whose every answer a test decides: no other waits or stays."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from tests import fake_docker as docker_stand_in
from tests.eventually import eventually_async
from tests.fake_platform import FakePlatform

from pilotlight.errors import Conflict, PlatformError
from pilotlight.microservices.api.api_context import ApiContext
from pilotlight.microservices.api.jobs import observe
from pilotlight.microservices.jobs import microservice_operations, org_resources
from pilotlight.microservices.jobs.health_responses import Health, status_report, unavailable
from pilotlight.microservices.jobs.microservice_operations import START_THREADS, STARTS_PER_ORG, MicroserviceOperations
from pilotlight.microservices.jobs.start_request import PlatformSettings, start_request_for
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Entry, Experiment, JobRecord
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.local.home_directory import Home

PATIENCE_S = 90.0
NOW = "2026-01-01T00:00:00Z"


@dataclass
class Scene:
    folder: Path
    store: OrgStore
    place: PlatformSettings
    lifecycle: MicroserviceOperations

    def record(self, org: str, name: str, entry: Entry | None = None) -> JobRecord:
        status = "running" if entry else "pending"
        made = JobRecord(
            name, org, f"of-{org}", "inference_microservice", status, NOW, NOW, "/model", platform="docker",
            entry=entry, by_operator=True,
        )  # fmt: skip
        return self.store.add_job(made)

    def start(self, record: JobRecord) -> JobRecord:
        self.lifecycle.start(record, *start_request_for(self.store, self.place, record))
        return record

    def status(self, record: JobRecord) -> str:
        return self.store.job(record.org, record.id).status

    def made(self) -> set[str]:
        return FakePlatform(self.folder).jobs()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        await eventually_async(holds, what)


def played(folder: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    """With a store of its own, closed whatever happens."""
    own = {"HOME": str(folder), "PILOTLIGHT_MICROSERVICE_REGISTRY": str(folder / "registry.json")}
    store, place = OrgStore.open(Home(folder)), PlatformSettings("docker", own)
    for org in ("a", "b"):
        store.add_experiment(Experiment(f"of-{org}", org, "pilotlight", "", "", NOW))

    async def acted() -> None:
        scene = Scene(folder, store, place, MicroserviceOperations(store, place))
        try:
            await act(scene)
        finally:
            (folder / "gate").touch()
            await scene.lifecycle.close()

    try:
        with patch.object(microservice_operations, "TargetService", lambda *_: FakePlatform(folder)):
            asyncio.run(acted())
    finally:
        store.close()


def test_starts_of_one_org_keep_no_other_org_waiting(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        many = [scene.start(scene.record("a", f"a-{number}")) for number in range(START_THREADS + 1)]
        await scene.until(lambda: len(scene.made()) == STARTS_PER_ORG, "the first starts to be under way")
        runs = scene.record("b", "b-runs", Entry("docker", "pilotlight", "http://localhost:1", NOW, 1))
        seen = await asyncio.wait_for(scene.lifecycle.platform_status(runs), PATIENCE_S)
        assert seen is not None
        assert seen.state == "running"
        await asyncio.wait_for(scene.lifecycle.stop(runs), PATIENCE_S)
        scene.start(scene.record("b", "b-new"))
        await scene.until(lambda: "b-new" in scene.made(), "the other org's start to be under way")
        assert len(scene.made()) == STARTS_PER_ORG + 1
        waiting = [record for record in many if record.id not in scene.made()]
        await asyncio.gather(*(scene.lifecycle.stop(record) for record in waiting))  # they need not wait for their turn
        assert {scene.status(record) for record in waiting} == {"stopped"}

    played(tmp_path, act)


def test_a_start_whose_remains_could_not_be_ended_is_ended_by_a_later_stop(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        (scene.folder / "away").touch()
        record = scene.start(scene.record("a", "a-1"))
        await scene.until(lambda: scene.status(record) == "error", "the start to fail")
        assert "its cleanup failed" in scene.store.job("a", "a-1").message
        with pytest.raises(PlatformError, match="stop failed"):
            await scene.lifecycle.stop(record)
        assert (scene.status(record), scene.made()) == ("stopping", {"a-1"})
        assert "it could not be stopped: stop failed" in scene.store.job("a", "a-1").message
        (scene.folder / "away").unlink()
        await scene.lifecycle.stop(record)
        assert (scene.status(record), scene.made()) == ("stopped", set())
        assert registry(scene.place.environ).read().entries == {}

    played(tmp_path, act)


def test_an_org_has_no_more_microservices_than_it_may(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        bound = {org_resources.ENV_MOST: "2"}
        for name in ("a-1", "a-2"):
            org_resources.check_quota(scene.store, "a", bound)
            scene.record("a", name)
        with pytest.raises(Conflict, match="org a has 2 inference microservices"):
            org_resources.check_quota(scene.store, "a", bound)
        org_resources.check_quota(scene.store, "b", bound)
        scene.store.update_job("a", "a-1", NOW, status="stopped")
        org_resources.check_quota(scene.store, "a", bound)
        with pytest.raises(PlatformError, match=f"{org_resources.ENV_MOST} = many, must be a number"):
            org_resources.check_quota(scene.store, "a", {org_resources.ENV_MOST: "many"})

    played(tmp_path, act)


def test_a_platform_that_cannot_be_asked_is_told_as_such(tmp_path: Path) -> None:
    async def asked() -> Health:
        (tmp_path / "away").touch()
        desk = ApiContext(Home(tmp_path / "home"), docker_stand_in.installed(tmp_path), "docker")
        desk.store.add_experiment(Experiment("of-a", "a", "pilotlight", "", "", NOW))
        entry = Entry("docker", "pilotlight", "http://localhost:1", NOW, 1)
        record = JobRecord(
            "a-1", "a", "of-a", "inference_microservice", "running", NOW, NOW, platform="docker", entry=entry
        )
        try:
            return await observe(desk, desk.store.add_job(record))
        finally:
            await desk.close()

    found = asyncio.run(asked())
    report = status_report("a-1", found)
    assert (report.status, report.pod_status, report.server_initializing) == ("not_ready", "Unknown", False)
    assert report.diagnosis[0].cause == "its platform cannot be reached: docker inspect failed: error during connect"
    assert unavailable("a-1", found).status == 503


def test_a_stop_that_failed_is_told_by_the_status_until_it_succeeds(tmp_path: Path) -> None:
    async def asked() -> tuple[Health, str]:
        registry_file, folder = tmp_path / "registry.json", tmp_path / "home"
        own = {"PILOTLIGHT_MICROSERVICE_REGISTRY": str(registry_file), "PILOTLIGHT_HOME": str(folder)}
        desk = ApiContext(Home(folder), {**docker_stand_in.installed(tmp_path), **own}, "docker")
        desk.store.add_experiment(Experiment("of-a", "a", "pilotlight", "", "", NOW))
        entry = Entry("docker", "pilotlight", "http://localhost:1", NOW, 1)
        record = desk.store.add_job(
            JobRecord("a-1", "a", "of-a", "inference_microservice", "running", NOW, NOW, platform="docker", entry=entry)
        )
        (tmp_path / "away").touch()
        try:
            with pytest.raises(PlatformError, match="docker stop failed"):
                await desk.operations.stop(record)
            (tmp_path / "away").unlink()
            found = await observe(desk, desk.store.job("a", "a-1"))
            await desk.operations.stop(record)
            return found, desk.store.job("a", "a-1").status
        finally:
            await desk.close()

    found, after = asyncio.run(asked())
    report = status_report("a-1", found)
    assert (report.status, after) == ("stopping", "stopped")
    assert [each.name for each in report.diagnosis] == ["cannot_stop"]
    assert "docker stop failed: error during connect" in report.diagnosis[0].cause
