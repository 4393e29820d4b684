"""Client addresses behind trusted proxies."""

from ipaddress import ip_network

import pytest

from pilotlight.wire.client_address import client_address

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("forwarded", "peer", "client"),
    [
        ("", "10.0.0.1", "10.0.0.1"),
        ("1.2.3.4", "10.0.0.1", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4", "10.0.0.1", "1.2.3.4"),  # a client can send the addresses left of its own
        ("6.6.6.6, 1.2.3.4, 10.0.0.7", "10.0.0.1", "1.2.3.4"),
        ("1.2.3.4:5678, 10.0.0.7:80", "10.0.0.1", "1.2.3.4"),
        ("2001:db8::1", "fd00::2", "2001:db8::1"),
        ("[2001:db8::1]:5678, [fd00::3]", "fd00::2", "2001:db8::1"),
        ("10.0.0.7, 10.0.0.8", "10.0.0.1", "10.0.0.7"),  # a client inside the trusted network
        ("nonsense", "10.0.0.1", "nonsense"),
        (" , ", "10.0.0.1", "10.0.0.1"),
        ("1.2.3.4, ", "10.0.0.1", "1.2.3.4"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(forwarded: str, peer: str, client: str) -> None:
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    assert client_address(headers, peer, TRUSTED) == client
    assert client_address(headers, "9.9.9.9", TRUSTED) == "9.9.9.9"  # not from a trusted proxy
