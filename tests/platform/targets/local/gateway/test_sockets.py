"""Which sockets are held: those that lead to every service outlive whatever a service is called by."""

from collections.abc import Iterator

import pytest
from tests.ports import free_port

from pilotlight.gateway.routing_table import Route, Table
from pilotlight.targets.local.gateway.sockets import ListenerSet


@pytest.fixture
def held() -> Iterator[ListenerSet]:
    made = ListenerSet()
    yield made
    made.close()


def test_the_gateways_port_becomes_no_services_own(held: ListenerSet) -> None:
    port = free_port()
    held.bind_shared([f"127.0.0.1:{port}/http"])
    for kind in ("http", "grpc"):
        own = f"127.0.0.1:{port}/{kind}"
        assert held.bind([own]) == (f"{own}: port {port} belongs to the gateway",)


def test_the_gateways_port_stays_though_a_service_of_an_earlier_time_names_it_and_goes(held: ListenerSet) -> None:
    port = free_port()
    held.bind_shared([f"127.0.0.1:{port}/http"])
    assert held.sync(Table(1, (Route("default", "iris", port=port),)))
    held.sync(Table(2, ()))
    assert f"127.0.0.1:{port}/http" in held.addresses


def test_a_services_own_port_goes_with_it(held: ListenerSet) -> None:
    own = free_port()
    held.bind_shared([f"127.0.0.1:{free_port()}/http"])
    assert not held.bind([f"127.0.0.1:{own}/http"])
    assert not held.sync(Table(1, (Route("default", "iris", port=own),)))
    assert f"127.0.0.1:{own}/http" in held.addresses
    held.sync(Table(2, ()))
    assert f"127.0.0.1:{own}/http" not in held.addresses
