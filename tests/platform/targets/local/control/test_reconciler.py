"""What happens by itself, without a process: a machinery that was never started."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.platform.targets.local.runs import replica, revision, revision_of, running, service, workload

from pilotlight.canaries.queries import MetricScope, metric_queries
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.targets.local.control.reconciler import Reconciler, ReconcilerSettings
from pilotlight.targets.local.control.service_state import REVISION_HISTORY_LIMIT, ServiceRun
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.replica_record import Replica


def test_a_crash_pause_is_looked_at_once_when_it_is_over_however_often_somebody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[ServiceRun] = []

    async def play() -> None:
        home = Home(tmp_path / "home").create()
        store = Store.open(home.database)
        reconciler = Reconciler(home, ReconcilerSettings(1, pilot_light=False), store, lambda: 0.0)
        monkeypatch.setattr(reconciler, "reconcile", settled.append)
        run = running(service(workload(revision())))
        revision_of(run).next_start = 0.05
        for _ in range(50):
            reconciler.replica_set.reconcile(run, 0.0)
        over = asyncio.get_running_loop().time() + 0.2
        async with asyncio.timeout(60):
            while asyncio.get_running_loop().time() < over or not settled:
                await asyncio.sleep(0.01)
        store.close()

    asyncio.run(play())
    assert len(settled) == 1


def test_no_replica_starts_before_the_one_whose_start_failed_has_ended(tmp_path: Path) -> None:
    failed = replica(state="draining", reason="model 'iris': model.py could not be imported")

    async def play() -> list[Replica]:
        home = Home(tmp_path / "home").create()
        store = Store.open(home.database)
        reconciler = Reconciler(home, ReconcilerSettings(1, pilot_light=False), store, lambda: 0.0)
        reconciler.supervisor._register(failed, None)
        reconciler.replica_set.reconcile(running(service(workload(revision())), ready=False), 0.0)
        store.close()
        return list(reconciler.supervisor.replicas())

    assert asyncio.run(play()) == [failed]


def test_what_the_gateway_tells_of_lost_requests_is_there_for_canaries(tmp_path: Path) -> None:
    async def play() -> list[float]:
        home = Home(tmp_path / "home").create()
        store = Store.open(home.database)
        reconciler = Reconciler(home, ReconcilerSettings(1, pilot_light=False), store, lambda: 0.0)
        run = running(service(workload(revision())))
        reconciler.runs[run.key] = run
        name = revision_of(run).spec.name
        told = BackendReport(*run.key, revision_of(run).spec.workload, name, 1.0, 9, 4, 0, 0, lost=4)
        reconciler._on_gateway_message(Report(1.0, (told, replace(told, revision="another", lost=50))))
        found = await reconciler.query(metric_queries(MetricScope(*run.key, name, 60.0))["lost"])
        store.close()
        return [each.value for each in found]

    assert asyncio.run(play()) == [4]


@pytest.mark.parametrize("gone", ["the service", "the revision"])
def test_what_a_revision_lost_is_forgotten_with_it(tmp_path: Path, gone: str) -> None:
    now, window = [0.0], 60.0

    async def play() -> tuple[list[float], list[float]]:
        home = Home(tmp_path / "home").create()
        store = Store.open(home.database)
        reconciler = Reconciler(home, ReconcilerSettings(1, pilot_light=False), store, lambda: now[0])
        run = running(service(workload(revision())))
        reconciler.runs[run.key] = run
        name = revision_of(run).spec.name
        told = BackendReport(*run.key, revision_of(run).spec.workload, name, 1.0, 9, 4, 0, 0, lost=4)
        reconciler._on_gateway_message(Report(1.0, (told,)))

        async def lost() -> list[float]:
            now[0] += 2 * window
            return [
                each.value
                for each in await reconciler.query(metric_queries(MetricScope(*run.key, name, window))["lost"])
            ]

        before = await lost()
        run.deleting = gone == "the service"
        for number in range(2, 2 if run.deleting else REVISION_HISTORY_LIMIT + 3):
            run.update(number, service(workload(revision(f"iris-predictor-{number}"))), float(number))
            revision_of(run, f"iris-predictor-{number}").ready_once = True
        run.restore_scale({}, now[0])  # so that no replica is wanted
        reconciler.reconcile(run)
        assert (run.key not in reconciler.runs) if run.deleting else (name not in run.revisions)
        after = await lost()
        reconciler._state.close()
        store.close()
        return before, after

    assert asyncio.run(play()) == ([4], [])
