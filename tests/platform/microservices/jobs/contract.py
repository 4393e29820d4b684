"""What every platform of microservices does, whatever runs behind it: a suite that each runs against its own.

A test module makes a `Ground` in a fixture called `ground` and derives its class from `PlatformContract`. Jobs are made
by the product's own pipeline; what they run is the real predictor with a real model.
"""

import hashlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from uuid import uuid4

from msgspec.structs import replace
from tests.daemons.availability import base_environment
from tests.ports import free_port

from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus
from pilotlight.microservices.registry.registry_file import Registry

ROOT = Path(__file__).resolve().parents[4]
IRIS = str(ROOT / "examples/iris/model.onnx")
DEADLINE_S = 90.0
PAUSE_S = 0.2
SECRET = "hf_planted-value-that-nobody-may-see"
INPUTS = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
# Before the job's own command: proof that the secret has arrived, without telling it.
TELLS = (
    '"${PILOTLIGHT_PYTHON:-python}" -c \'import hashlib, os; '
    'print("digest", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)\' && '
)


TELLING_MODEL = """
import hashlib, os
INPUTS = OUTPUTS = {"x": ("FP32", [1])}
print("digest", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)


def predict(x):
    return {"x": x}
"""


@dataclass
class Ground:
    """One platform, with what its jobs need. `environ` must set HF_TOKEN to SECRET."""

    platform: TargetService
    environ: Mapping[str, str]
    registry: Registry
    options: Mapping[str, str] = field(default_factory=dict)
    model_path: str = IRIS
    image: str = ""
    # Instead of those that the product chooses, where others who test on this machine could get them first.
    ports: Iterator[int] = field(default_factory=lambda: repeat(0))
    # Whatever the platform has written down of its jobs, for a look at what must not stand there.
    written: Callable[[], str] = str

    def job(self, network_arch: str = "pilotlight") -> Job:
        wish = launcher.StartRequest(
            network_arch, self.model_path, self.platform.name, options=self.options, image=self.image,
            secrets=("HF_TOKEN",), host_port=next(self.ports),
        )  # fmt: skip
        return launcher.build_job(wish, self.environ)

    def failing(self) -> Job:
        """One that ends at once, with last words."""
        return replace(self.job(), command="umask 0 && echo no such checkpoint >&2 && exit 3 # pilotlight_predictor")

    def telling(self) -> Job:
        """One that proves in its log that the secret has arrived."""
        job = self.job()
        return replace(job, command=TELLS + job.command)

    @contextmanager
    def started(self, job: Job) -> Iterator[Entry]:
        entry = launcher.start(job, self.platform, self.registry)
        try:
            yield entry
        finally:
            self.platform.stop(job.id, entry)
            self.registry.remove(job.id)

    def until(self, job: Job, entry: Entry, *states: str) -> PlatformStatus:
        deadline = time.monotonic() + DEADLINE_S
        while (seen := self.platform.status(job.id, entry)).state not in states:
            assert time.monotonic() < deadline, f"{seen} instead of {states}"
            time.sleep(PAUSE_S)
        return seen

    def until_ready(self, job: Job, entry: Entry) -> None:
        self.until(job, entry, "running")
        deadline = time.monotonic() + DEADLINE_S
        with self.platform.open_route(job.id, entry) as url:
            while (status := get(f"{url}/v2/health/ready")) != 200:
                assert time.monotonic() < deadline, f"{status}: {self.platform.status(job.id, entry)}"
                time.sleep(PAUSE_S)

    def until_well(self, job: Job, entry: Entry) -> PlatformStatus:
        """It answers already; a probe that came before it did is forgotten with the next."""
        deadline = time.monotonic() + DEADLINE_S
        while (seen := self.platform.status(job.id, entry)).reason:
            assert time.monotonic() < deadline, str(seen)
            time.sleep(PAUSE_S)
        return seen


@dataclass
class ProcessGround(Ground):
    """One where no shell runs: the command must be that of the predictor."""

    folder: Path = Path()

    def failing(self) -> Job:
        job = self.job()
        return replace(job, command=f"{job.command} '--no such checkpoint'")

    def telling(self) -> Job:
        model = self.folder / "tells" / "1" / "model.py"
        model.parent.mkdir(parents=True)
        model.write_text(TELLING_MODEL)
        path, self.model_path = self.model_path, str(model.parents[1])
        try:
            return self.job()
        finally:
            self.model_path = path


class PlatformContract:
    """Derived from by each platform's tests; `ground` is their fixture."""

    def test_a_job_starts_answers_is_seen_and_stops(self, ground: Ground) -> None:
        job = ground.job()
        with ground.started(job) as entry:
            ground.until_ready(job, entry)
            with ground.platform.open_route(job.id, entry) as url:
                assert len(infer(url)["outputs"]) > 0
            seen = ground.until_well(job, entry)
            assert seen.state == "running"
            assert seen.pod_name
            assert seen.pod_status
            assert ground.registry.read().entries[job.id] == entry
            assert (entry.platform, entry.network_arch) == (ground.platform.name, "pilotlight")
            ground.platform.stop(job.id, entry)
            ground.until(job, entry, "gone", "stopped")
        # Stopped twice.
        assert ground.until(job, entry, "gone", "stopped").state in ("gone", "stopped")
        assert not reachable(ground, job, entry)

    def test_a_job_that_fails_says_why_and_keeps_its_last_words(self, ground: Ground) -> None:
        job = ground.failing()
        with ground.started(job) as entry:
            seen = ground.until(job, entry, "failed")
            assert seen.reason
            assert any("no such checkpoint" in line for line in seen.tail)
        assert ground.until(job, entry, "gone", "stopped", "failed")

    def test_a_job_that_never_was_is_gone_and_can_be_stopped(self, ground: Ground) -> None:
        entry = self.never_was(ground)
        assert ground.platform.status(str(uuid4()), entry).state == "gone"
        ground.platform.stop(str(uuid4()), entry)

    def never_was(self, ground: Ground) -> Entry:
        return Entry(ground.platform.name, "pilotlight", "http://localhost:8199", "2026-01-01T00:00:00+00:00", 8199)

    def test_a_secret_reaches_the_job_and_nobody_else(self, ground: Ground) -> None:
        job = ground.telling()
        with ground.started(job) as entry:
            ground.until_ready(job, entry)
            seen = ground.platform.status(job.id, entry)
            digest = hashlib.sha256(SECRET.encode()).hexdigest()
            assert any(digest in line for line in seen.tail)
            shown = (repr(job), repr(entry), repr(seen), ground.registry.path.read_text(), ground.written())
            assert not [text for text in (*shown, command_lines()) if SECRET in text]

    def test_two_at_once_answer_and_one_of_which_only_the_id_was_noted_can_be_ended(self, ground: Ground) -> None:
        first, second = ground.job(), ground.job()
        with ground.started(first) as one, ground.started(second) as two:
            assert one.host_url != two.host_url
            for job, entry in ((first, one), (second, two)):
                ground.until_ready(job, entry)
            ground.platform.stop(first.id, ground.platform.provisional_entry(first.options))
            ground.until(first, one, "gone", "stopped")
            assert not reachable(ground, first, one)
            with ground.platform.open_route(second.id, two) as url:
                assert infer(url)["outputs"]


def get(url: str) -> int:
    """0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return int(reply.status)
    except HTTPError as error:
        return error.code
    except (URLError, OSError):
        return 0


def infer(url: str) -> Any:
    request = urllib.request.Request(f"{url}/v2/models/model/infer", json.dumps(INPUTS).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def reachable(ground: Ground, job: Job, entry: Entry) -> bool:
    """Polled: what was told to end may take a moment."""
    deadline = time.monotonic() + DEADLINE_S
    while get(f"{entry.host_url}/v2/health/live"):
        if time.monotonic() > deadline:
            return True
        time.sleep(PAUSE_S)
    return False


def free_ports() -> Iterator[int]:
    """Below what the kernel gives to clients, apart from the product's own and from those of other runs."""
    return iter(free_port, 0)


def command_lines() -> str:
    """Of every process on this machine."""
    texts = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                texts.append((folder / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(texts)


def clean_environment(tmp_path: Path, daemon: Mapping[str, str] | None = None, **more: str) -> dict[str, str]:
    """This one's, or that of `daemon`, with a home, a registry and a secret of the test's own."""
    registry = str(tmp_path / "registry.json")
    own = {"HF_TOKEN": SECRET, "HOME": str(tmp_path), "PILOTLIGHT_MICROSERVICE_REGISTRY": registry}
    return {**(daemon or base_environment()), **own, **more}
