"""From a wish to a job and to a running microservice: what is refused before anything happens, and what is undone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.microservices.registry.registry_file import Registry
from pilotlight.targets.target import Key, Release, ReplicaStatus, RevisionStatus, ServiceStatus, Target

BACKENDS = {
    "local-docker": "local-docker", "docker": "local-docker", "brev": "local-docker", "local": "local-docker",
    "lepton": "lepton", "slurm": "slurm", "kubernetes": "local-k8s",
}  # fmt: skip


@pytest.mark.parametrize(("platform", "backend"), BACKENDS.items())
def test_the_environment_names_the_backend_and_calls_nobody_back(platform: str, backend: str) -> None:
    never = {"TAO_ADMIN_KEY": "x", "TAO_LOGGING_SERVER_URL": "y"}
    job = launcher.build_job(launcher.StartRequest("cosmos-rl", "/m", platform), never)
    assert job.env == {"TAO_EXECUTION_BACKEND": backend, "TAO_API_JOB_ID": job.id, "CLOUD_BASED": "False"}
    assert not never.keys() & set(job.secrets)


def test_each_job_has_a_fresh_uuid4() -> None:
    one, two = (launcher.build_job(launcher.StartRequest("cosmos-rl", "/m", "docker"), {}) for _ in range(2))
    assert one.id != two.id
    assert UUID(one.id).version == 4


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        (launcher.StartRequest("cosmos-rl", "/m", "docker", num_gpus=0), "num_gpus = 0, must be at least 1"),
        (launcher.StartRequest("cosmos-rl", "", "docker"), "model_path is missing"),
        (launcher.StartRequest("cosmos-rl", "s3://b/m", "docker"), "cloud storage"),
        (launcher.StartRequest("cosmos-rl", "/m", "moon"), "unknown platform moon"),
        (launcher.StartRequest("nobody", "/m", "docker"), "nobody has no container command"),
    ],
)
def test_what_is_wrong_is_named(wish: launcher.StartRequest, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        launcher.build_job(wish, {})


def test_a_container_of_others_is_refused_cloud_storage_even_where_ours_is_not() -> None:
    assert (
        launcher.build_job(launcher.StartRequest("pilotlight", "s3://b/m", "docker", remote=True), {}).model_path
        == "s3://b/m"
    )
    with pytest.raises(UsageError, match="cosmos-rl container cannot read cloud storage"):
        launcher.build_job(launcher.StartRequest("cosmos-rl", "s3://b/m", "lepton", remote=True), {})


def test_a_model_of_a_store_is_fetched_for_an_image_that_reads_none() -> None:
    job = launcher.build_job(launcher.StartRequest("cosmos-rl", "s3://b/m", "docker", remote=True), {})
    assert (job.fetch, job.model_path) == ("s3://b/m", "s3://b/m")
    mirror = {"IMAGE_PILOTLIGHT": "registry.local/pilotlight/predictor:2"}
    request = launcher.StartRequest("cosmos-rl", "s3://b/m", "kubernetes", remote=True)
    on_cluster = launcher.build_job(request, mirror)
    assert on_cluster.fetch_image == "registry.local/pilotlight/predictor:2"
    assert f'"model_path": "/models/{job.id}"' in job.command
    own = launcher.build_job(launcher.StartRequest("pilotlight", "s3://b/m", "docker", remote=True), {})
    assert (own.fetch, "--model-path s3://b/m" in own.command) == ("", True)


def test_a_path_of_this_machine_may_be_relative_where_processes_see_it(tmp_path: Path) -> None:
    job = launcher.build_job(launcher.StartRequest("pilotlight", "models/x", "local"), {})
    assert job.model_path == str(Path.cwd() / "models/x")


class Paper(TargetService):
    """A platform that only takes notes."""

    def __init__(self, failing: str = "") -> None:
        super().__init__("docker", {"HOME": "/nowhere"})
        self.failing, self.notes = failing, list[str]()

    def _note(self, what: str) -> None:
        self.notes.append(what)
        if what == self.failing:
            raise PlatformError(f"{what} failed")

    def preflight(self, job: Job) -> Job:
        self._note("preflight")
        return job

    def start(self, job: Job, wait_s: float | None = None, report: Callable[[str], None] = str) -> Entry:
        self._note("start")
        return Entry("docker", job.network_arch, f"http://localhost:{job.host_port}", "2026", job.host_port)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        return PlatformStatus("running")

    def stop(self, job_id: str, entry: Entry) -> None:
        self._note("stop")

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        yield entry.host_url


class Full(Registry):
    def add(self, job_id: str, entry: Entry) -> None:
        raise PlatformError("the disk is full")


def wanted() -> Job:
    return launcher.build_job(launcher.StartRequest("pilotlight", "/m", "docker"), {})


def test_preflight_comes_first_and_the_entry_last(tmp_path: Path) -> None:
    place, held, job = Paper(), Registry(tmp_path / "state.json"), wanted()
    entry = launcher.start(job, place, held)
    assert place.notes == ["preflight", "start"]
    assert held.read().entries == {job.id: entry}
    assert held.read().latest == job.id
    assert entry.host_port in range(8080, 8200)


class Queue:
    """A target whose service leaves its queue after some looks at it."""

    poll_s, embedded = 0.0, True

    def __init__(self, registry: Registry, looks: int, reason: str = "PENDING (Priority)") -> None:
        self.registry, self.looks, self.reason, self.deleted = registry, looks, reason, False

    def capabilities(self) -> dict[str, Any]:
        return {"target": "docker"}

    def catalogue(self, namespaces: object) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def live(self, key: Key) -> list[Any]:
        return []

    def apply(self, release: Release, **_: object) -> ServiceStatus:
        return self.status((release.namespace, release.name))

    def delete(self, key: Key) -> None:
        self.deleted = True

    def status(self, key: Key) -> ServiceStatus:
        if self.deleted:
            raise NotFound("it is deleted")
        assert self.registry.read().entries == {}, "scripts take it for running"
        self.looks -= 1
        waits = self.looks >= 0
        replica = ReplicaStatus("r", "waiting" if waits else "ready", handle="7")
        reason = self.reason if waits else ""
        revision = RevisionStatus("r", "w", "predictor", 100, ready=int(not waits), reason=reason, replicas=(replica,))
        return ServiceStatus(*key, 1, "Progressing", "", revisions=(revision,), target="docker")


class Queued(TargetService):
    """Jobs that wait in the queue; the daemon is not asked."""

    def __init__(self, queue: Queue) -> None:
        super().__init__("docker", {"HOME": "/nowhere"}, lambda *_, **__: cast(Target, queue))

    def preflight(self, job: Job) -> Job:
        return job

    def stop(self, job_id: str, entry: Entry) -> None:
        assert self._delete(job_id, entry)


def test_a_job_is_registered_once_it_has_left_the_queue(tmp_path: Path) -> None:
    held, job, reports = Registry(tmp_path / "state.json"), wanted(), list[str]()
    entry = launcher.start(job, Queued(Queue(held, 4)), held, report=reports.append)
    assert reports == [f"{job.id} is pending: PENDING (Priority)"]
    assert held.read().entries == {job.id: entry}


def test_a_reason_that_says_no_more_than_pending_is_left_out(tmp_path: Path) -> None:
    held, job, reports = Registry(tmp_path / "state.json"), wanted(), list[str]()
    launcher.start(job, Queued(Queue(held, 4, f"ims-{job.id}-predictor-1 is pending")), held, report=reports.append)
    assert reports == [f"{job.id} is pending"]


def test_a_job_that_stays_in_the_queue_is_taken_back_by_its_name(tmp_path: Path) -> None:
    held, job = Registry(tmp_path / "state.json"), wanted()
    queue = Queue(held, 9)
    with pytest.raises(TimedOut, match=rf"^{job.id} was pending for 0 s and was stopped: PENDING \(Priority\)$"):
        launcher.start(job, Queued(queue), held, wait_s=0.0)
    assert (queue.deleted, held.read().entries) == (True, {})


def test_the_api_waits_for_no_queue(tmp_path: Path) -> None:
    held, job = Registry(tmp_path / "state.json"), replace(wanted(), closed=True)
    launcher.start(job, Queued(Queue(held, 9)), held)
    assert list(held.read().entries) == [job.id]


STEPS = {"preflight": ["preflight"], "start": ["preflight", "start", "stop"]}


@pytest.mark.parametrize(("step", "taken"), STEPS.items())
def test_a_step_that_fails_leaves_nothing_and_no_entry(step: str, taken: list[str], tmp_path: Path) -> None:
    place, held = Paper(step), Registry(tmp_path / "state.json")
    with pytest.raises(PlatformError, match=f"^{step} failed$"):
        launcher.start(wanted(), place, held)
    assert place.notes == taken
    assert held.read().entries == {}


def test_a_start_that_is_interrupted_is_taken_back(tmp_path: Path) -> None:
    class Interrupting(Paper):
        def start(self, job: Job, *_: object) -> Entry:
            super().start(job)
            raise KeyboardInterrupt

    place = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        launcher.start(wanted(), place, Registry(tmp_path / "state.json"))
    assert place.notes == ["preflight", "start", "stop"]


def test_what_the_registry_cannot_take_is_stopped_again(tmp_path: Path) -> None:
    place = Paper()
    with pytest.raises(PlatformError, match="disk is full"):
        launcher.start(wanted(), place, Full(tmp_path / "state.json"))
    assert place.notes == ["preflight", "start", "stop"]
