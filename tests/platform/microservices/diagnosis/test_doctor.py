"""`platformctl doctor` finds a microservice that is ill, says why, and what to do."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.embedded import Platform
from tests.serving import START_S

from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Entry, Experiment, JobRecord, PlatformStatus
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.isolation import sandbox
from platformctl import main
from platformctl.microservice import health_findings


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    places = {"PILOTLIGHT_HOME": "home", "PILOTLIGHT_MICROSERVICE_REGISTRY": "registry.json"}
    own = {**clean, **{name: str(tmp_path / place) for name, place in places.items()}}
    yield own
    for job_id, entry in registry(own).read().entries.items():
        TargetService(entry.platform, own).stop(job_id, entry)


def checked(environ: dict[str, str], check: str = "microservice") -> list[dict[str, Any]]:
    printed = StringIO()
    with patch.dict(os.environ, environ, clear=True), redirect_stdout(printed), redirect_stderr(StringIO()):
        main.run(["doctor", "-o", "json"])
    return [each for each in json.loads(printed.getvalue())["checks"] if each["check"].startswith(check)]


def test_it_says_which_sandbox_there_is_for_code_of_orgs(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = checked(environ, "sandbox")
    kind = sandbox.detect().kind
    assert (kind or "models of orgs that have code are refused") in found["message"]
    monkeypatch.setattr(sandbox, "detect", lambda: sandbox.Sandbox(reason="unshare: Operation not permitted"))
    (found,) = checked(environ, "sandbox")
    assert found["level"] == "ok"
    assert "none (unshare: Operation not permitted)" in found["message"]


def test_an_ill_microservice_is_found_with_its_cause(
    environ: dict[str, str], tmp_path: Path, embedded: Platform
) -> None:
    import time

    environ["PILOTLIGHT_HOME"] = str(embedded.home.root)
    assert checked(environ) == []
    (tmp_path / "model.onnx").write_bytes(b"no model at all")
    job = launcher.build_job(launcher.StartRequest("pilotlight", str(tmp_path / "model.onnx"), "local"), environ)
    launcher.start(job, TargetService("local", environ), registry(environ))
    deadline = time.monotonic() + START_S
    while not (found := [each for each in checked(environ) if each["level"] == "fail"]):
        assert time.monotonic() < deadline
    assert found[0]["check"] == f"microservice {job.id[:8]}"
    assert "damaged or of another format" in found[0]["message"]
    assert "export it again" in found[0]["fix"]


def test_a_registry_that_cannot_be_read_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "registry.json").write_text("{")
    (tmp_path / "registry.json").chmod(0o600)
    (found,) = checked(environ)
    assert (found["level"], found["check"]) == ("fail", "microservices")
    (tmp_path / "registry.json").unlink()


def test_a_stop_that_the_platform_refused_is_told_with_what_it_said(environ: dict[str, str], tmp_path: Path) -> None:
    now = datetime.now(UTC)
    with closing(OrgStore.open(Home(tmp_path / "home").create())) as store:
        store.add_experiment(Experiment("e", "acme", "pilotlight", "", "", now.isoformat()))
        for name, since, said in (
            ("at-once", 0, "it could not be stopped: no daemon"),
            ("long", 99, ""),
            ("new", 0, ""),
        ):
            at = (now - timedelta(seconds=since)).isoformat()
            kind, status = "inference_microservice", "stopping"
            store.add_job(JobRecord(name, "acme", "e", kind, status, at, at, message=said))  # type: ignore[arg-type]
    found = {each["check"]: each for each in checked(environ)}
    assert set(found) == {"microservice at-once", "microservice long"}
    assert "no daemon" in found["microservice at-once"]["message"]
    assert "stop it again" in found["microservice long"]["fix"]


def test_a_model_that_is_larger_than_memory_is_told_while_it_comes() -> None:
    entry, seen = Entry("local", "pilotlight", "http://localhost:1", ""), PlatformStatus("running")
    status = {"progress": {"done_bytes": 1, "total_bytes": 1 << 60}}
    (found,) = health_findings.findings("job", entry, seen, health_findings.ModelStatus("initializing", "", status))
    assert found["name"] == "out_of_memory"
