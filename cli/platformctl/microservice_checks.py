"""Checks of `doctor` for microservices and batch jobs of this machine."""

import os
from collections.abc import Iterator

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home import Home
from platformctl.checks import Finding, Level

PROBE_S = 5.0


def findings(home: Home) -> Iterator[Finding]:
    yield from _microservices()
    yield from _stuck_stops(home)
    yield from _batch_jobs(home)


def _microservices() -> Iterator[Finding]:
    from pilotlight.microservices.registry import registry

    try:
        entries = registry(os.environ).read().entries
    except PlatformError as error:
        yield Finding("fail", "microservices", str(error), error.hint)
        return
    problems = [finding for job_id in entries for finding in _problems(job_id)]
    yield from problems
    if entries and not problems:
        yield Finding("ok", "microservices", f"{len(entries)} in the registry, nothing is wrong with them")


def _problems(job_id: str) -> Iterator[Finding]:
    """Yield findings with a likely cause; `pending` and `loading` alone are not problems."""
    from pilotlight.microservices import asking
    from platformctl import diagnosing, microservice_asking, microservices

    entry = microservices.open_registry().read().entries.get(job_id)
    if entry is None:
        return
    status = microservices.platform_status(job_id, entry)
    model = microservice_asking.probe_model(job_id, entry, PROBE_S)
    level: Level = "fail" if status.state in (*asking.ENDED, "unknown") or model.phase == "failed" else "warn"
    for each in diagnosing.findings(job_id, entry, status, model):
        yield Finding(level, f"microservice {job_id[:8]}", each["cause"], each["advice"])


def _stuck_stops(home: Home) -> Iterator[Finding]:
    """Yield microservices of the API that have been stopping for long, from its records."""
    from contextlib import closing
    from datetime import UTC, datetime

    from pilotlight.microservices.diagnosis import Evidence
    from pilotlight.microservices.diagnosis import diagnose as diagnosed
    from pilotlight.microservices.directory import FILE, Directory
    from platformctl import diagnosing
    from platformctl.microservices import redacted

    if not (home.root / FILE).exists():
        return
    with closing(Directory.open(home)) as directory:
        stopping = directory.jobs_of_kind("inference_microservice", "stopping")
    for record in stopping:
        age_s = diagnosing.age_s(record.updated_at, datetime.now(UTC))
        errors = (redacted(record.message),) if record.message else ()
        for each in diagnosed(Evidence(job_id=record.id, phase="stopping", phase_s=age_s, errors=errors)):
            yield Finding("fail", f"microservice {record.id[:8]}", each.cause, each.advice)


def _batch_jobs(home: Home) -> Iterator[Finding]:
    from pilotlight.microservices.batch import jobs
    from platformctl.microservices import redacted

    for each in jobs.list_jobs(home, os.environ):
        if each.state == "failed":
            fix = f"platformctl microservice batch resume {each.job_id}"
            yield Finding("warn", f"batch {each.job_id[:8]}", redacted(f"it failed: {each.message}"), fix)
