"""Whose allowance a request takes when it came through an ingress."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.cluster.settings import parse_proxies
from pilotlight.gateway.routing_table import Route
from pilotlight.wire.service_access import Rate

INGRESS = parse_proxies("10.244.0.0/16, fd00::/8", "X")


def test_clients_behind_an_ingress_have_an_allowance_each() -> None:
    route = Route("models", "iris", rate=Rate(1, 60.0))

    def admitted(gate: AccessAdmission, client: str) -> bool:
        return gate.admit(route, {"x-forwarded-for": client}, "10.244.0.7") is None

    gate = AccessAdmission(trusted=INGRESS)
    assert [admitted(gate, client) for client in ("a", "a", "b")] == [True, False, True]
    blind = AccessAdmission()
    assert [admitted(blind, client) for client in ("a", "b")] == [True, False]


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"PROXIES = 10\.244\.0\.1/16, must be networks"):
        parse_proxies("10.244.0.1/16", "PROXIES")
