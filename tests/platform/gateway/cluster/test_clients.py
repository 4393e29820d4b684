"""Whose allowance a request takes when it came through an ingress."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.cluster.client_address import ProxiedAdmission, client_address, parse_proxies
from pilotlight.gateway.routing_table import Rate, Route

INGRESS = parse_proxies("10.244.0.0/16, fd00::/8", "X")


@pytest.mark.parametrize(
    ("forwarded", "peer", "client"),
    [
        ("203.0.113.9", "10.244.0.7", "203.0.113.9"),
        ("1.1.1.1, 203.0.113.9, 10.244.3.3", "10.244.0.7", "203.0.113.9"),  # what the client wrote itself is left of it
        ("1.1.1.1", "203.0.113.9", "203.0.113.9"),  # it did not come through the ingress
        ("", "10.244.0.7", "10.244.0.7"),
        ("10.244.5.5", "10.244.0.7", "10.244.0.7"),
        ("nonsense", "10.244.0.7", "nonsense"),
        ("2001:db8::1", "fd00::2", "2001:db8::1"),
        ("203.0.113.9:5678, 10.244.3.3:80", "10.244.0.7", "203.0.113.9"),
        ("[2001:db8::1]:5678, [fd00::3]", "fd00::2", "2001:db8::1"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(forwarded: str, peer: str, client: str) -> None:
    assert client_address({"x-forwarded-for": forwarded} if forwarded else {}, peer, INGRESS) == client


def test_clients_behind_an_ingress_have_an_allowance_each() -> None:
    route = Route("models", "iris", rate=Rate(1, 60.0))

    def admitted(gate: ProxiedAdmission, client: str) -> bool:
        return gate.admit(route, {"x-forwarded-for": client}, "10.244.0.7") is None

    gate = ProxiedAdmission(AccessAdmission(), INGRESS)
    assert [admitted(gate, client) for client in ("a", "a", "b")] == [True, False, True]
    blind = ProxiedAdmission(AccessAdmission(), ())
    assert [admitted(blind, client) for client in ("a", "b")] == [True, False]


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"PROXIES = 10\.244\.0\.1/16, must be networks"):
        parse_proxies("10.244.0.1/16", "PROXIES")
