"""Ports that services have of their own: none outlives its service, however soon that goes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.platform.targets.local.runs import revision, running, service, workload
from tests.ports import free_port

from pilotlight.targets.local.control.gateway_routes import ServicePorts
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.gateway.gateway_link import GatewayLink
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.store import EventRecorder, Store
from pilotlight.targets.target import Release


class Slow(GatewayLink):
    """No gateway; a service is deleted while its port is being opened."""

    run: ServiceRun

    async def listen(self, addresses: Sequence[str]) -> tuple[str, ...]:
        failed = await super().listen(addresses)
        self.run.deleting = True
        return failed


def test_a_port_that_opens_while_its_service_goes_is_given_up(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    store.apply(Release("default", "iris", "", ()), [], "2025-03-01T12:00:00Z")

    async def play() -> None:
        link = Slow(Home(tmp_path), lambda word: None)
        link.run = running(service(workload(revision())))
        ports = ServicePorts(store, link, free_port(), EventRecorder(store), lambda: None)
        ports.open(link.run)
        async with asyncio.timeout(60):
            while not link.run.ports["http"]:
                await asyncio.sleep(0)
        assert link.addresses == ()
        await link.close(stop_gateway=False, drain_s=0.0)

    try:
        asyncio.run(play())
    finally:
        store.close()


def test_a_service_that_is_not_exposed_has_no_port_of_the_gateway(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    try:
        ports = ServicePorts(store, Slow(Home(tmp_path), lambda word: None), 9000, EventRecorder(store), lambda: None)
        run = running(service(workload(revision()), exposed=False))
        ports.restore(run)
        assert run.ports["http"] == 0
    finally:
        store.close()
