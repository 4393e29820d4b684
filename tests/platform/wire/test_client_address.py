"""Client addresses behind trusted proxies, and web pages of other sites."""

from ipaddress import ip_network

import pytest

from pilotlight.wire.client_address import client_address, foreign_site

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("forwarded", "peer", "client"),
    [
        ("", "10.0.0.1", "10.0.0.1"),
        ("1.2.3.4", "10.0.0.1", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4", "10.0.0.1", "1.2.3.4"),  # a client can send the addresses left of its own
        ("6.6.6.6, 1.2.3.4, 10.0.0.7", "10.0.0.1", "1.2.3.4"),
        ("1.2.3.4:5678, 10.0.0.7:80", "10.0.0.1", "1.2.3.4"),
        ("2001:db8::1", "fd00::2", "2001:db8::/64"),
        ("[2001:db8::1]:5678, [fd00::3]", "fd00::2", "2001:db8::/64"),
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


def test_a_client_cannot_leave_its_rate_limit_by_another_address_of_its_network() -> None:
    assert {client_address({}, f"2001:db8:1:2::{number:x}", ()) for number in range(99)} == {"2001:db8:1:2::/64"}
    assert client_address({}, "2001:db8:1:3::", ()) == "2001:db8:1:3::/64"
    assert client_address({}, "fe80::1%eth0", ()) == "fe80::/64"
    assert client_address({}, "::ffff:1.2.3.4", ()) == "1.2.3.4"
    assert client_address({}, "2001:db8:1:2::/64", ()) == "2001:db8:1:2::/64"  # of an outer layer


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.2", "127.255.0.9", "::1", "::ffff:127.0.0.1"])
def test_all_loopback_addresses_are_one_client(peer: str) -> None:
    assert client_address({}, peer, ()) == "127.0.0.1"
    assert client_address({"x-forwarded-for": peer}, "10.0.0.1", TRUSTED) == "127.0.0.1"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8090",
        "localhost.",
        "iris.default.localhost",
        "127.0.0.1:80",
        "127.9.9.9",
        "[::1]:8090",
        "",
    ],
)
def test_a_server_on_loopback_is_this_machines_under_all_its_names(host: str) -> None:
    assert foreign_site({"host": host}, ()) == ""
    assert foreign_site({"host": host, "origin": f"http://{host or 'localhost'}"}, ()) == ""


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "localhost:evil.example", "127.0.0.1.evil.example", "127.evil.example",
     "10.0.0.1", "[::2]", "0.0.0.0", "localhost, evil.example", "2130706433"],
)  # fmt: skip
def test_any_other_name_is_a_foreign_site_unless_it_is_allowed(host: str) -> None:
    assert foreign_site({"host": host}, ()).startswith(f"Host is {host}, but")
    assert foreign_site({"host": "localhost", "origin": f"https://{host}"}, ()).startswith(f"Origin is https://{host},")
    assert foreign_site({"host": host}, {"*"}) == ""


def test_allowed_names_pass_with_any_port_and_a_page_without_a_site_does_not() -> None:
    own = {"host": "iris.example:8090", "origin": "https://Iris.Example"}
    assert foreign_site(own, {"iris.example"}) == ""
    assert foreign_site({"host": "localhost", "origin": "null"}, {"iris.example"})
    assert foreign_site({}, ()) == ""
