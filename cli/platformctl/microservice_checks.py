"""What `doctor` says of microservices and batch jobs of this machine: those that are ill, and what to do."""

import os
from collections.abc import Iterator

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home import Home
from platformctl.checks import Finding, Level

PROBE_S = 5.0


def findings(home: Home) -> Iterator[Finding]:
    yield from _microservices()
    yield from _stops(home)
    yield from _batch_jobs(home)


def _microservices() -> Iterator[Finding]:
    from pilotlight.microservices.registry import registry

    try:
        entries = registry(os.environ).read().entries
    except PlatformError as error:
        yield Finding("fail", "microservices", str(error), error.hint)
        return
    ill = [found for job_id in entries for found in _ill(job_id)]
    yield from ill
    if entries and not ill:
        yield Finding("ok", "microservices", f"{len(entries)} in the registry, nothing is wrong with them")


def _ill(job_id: str) -> Iterator[Finding]:
    """`pending` and `loading` for a while is no illness: only what has a likely cause is told."""
    from pilotlight.microservices import asking
    from platformctl import diagnosing, microservices

    entry = microservices.opened().read().entries.get(job_id)
    if entry is None:
        return
    seen = microservices.looked_at(job_id, entry)
    model = diagnosing.UNREACHABLE
    try:
        with microservices.reached(entry).way(job_id, entry) as url:
            verdict = asking.judge(asking.post(url, asking.PROBE, PROBE_S))
            model = diagnosing.model(verdict, asking.status_of(url, PROBE_S))
    except (PlatformError, OSError):
        pass
    level: Level = "fail" if seen.state in (*asking.ENDED, "unknown") or model.phase == "failed" else "warn"
    for each in diagnosing.findings(job_id, entry, seen, model):
        yield Finding(level, f"microservice {job_id[:8]}", each["cause"], each["advice"])


def _stops(home: Home) -> Iterator[Finding]:
    """Those of the API that have been stopping for long; their records tell, whether the API runs or not."""
    from contextlib import closing
    from datetime import UTC, datetime

    from pilotlight.microservices.diagnosis import Evidence
    from pilotlight.microservices.diagnosis import findings as diagnosed
    from pilotlight.microservices.directory import FILE, Directory
    from platformctl import diagnosing
    from platformctl.microservices import shown

    if not (home.root / FILE).exists():
        return
    with closing(Directory.open(home)) as directory:
        stopping = directory.of_kind("inference_microservice", "stopping")
    for record in stopping:
        age = diagnosing.age(record.updated_at, datetime.now(UTC))
        errors = (shown(record.message),) if record.message else ()
        for each in diagnosed(Evidence(job_id=record.id, phase="stopping", phase_s=age, errors=errors)):
            yield Finding("fail", f"microservice {record.id[:8]}", each.cause, each.advice)


def _batch_jobs(home: Home) -> Iterator[Finding]:
    from pilotlight.microservices.batch import jobs
    from platformctl.microservices import shown

    for each in jobs.listed(home, os.environ):
        if each.state == "failed":
            fix = f"platformctl microservice batch resume {each.job_id}"
            yield Finding("warn", f"batch {each.job_id[:8]}", shown(f"it failed: {each.message}"), fix)
