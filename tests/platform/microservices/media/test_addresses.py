"""Addresses that must never be connected to, however they are written, unless an operator names their network."""

import ipaddress

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.media import limits_from
from pilotlight.microservices.media.ssrf_safe_client import denial_reason


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "::10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:0:0:0:0:80ff:fffe",
    ],
)  # fmt: skip
def test_private_local_and_metadata_addresses_are_refused_in_every_spelling(address: str) -> None:
    assert denial_reason(address, ())


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_not(address: str) -> None:
    assert denial_reason(address, ()) == ""


def test_an_operator_may_permit_a_network_and_no_more() -> None:
    permitted = (ipaddress.ip_network("10.1.0.0/16"),)
    assert denial_reason("10.1.2.3", permitted) == ""
    assert denial_reason("::ffff:10.1.2.3", permitted) == ""
    assert denial_reason("10.2.0.1", permitted)
    assert denial_reason("127.0.0.1", permitted)


def test_settings_are_read_from_the_environment_and_open_nothing_by_themselves() -> None:
    closed = limits_from({})
    assert (closed.roots, closed.domains, closed.networks, closed.allow_http, closed.redirects) == (
        (),
        (),
        (),
        False,
        0,
    )
    read = limits_from(
        {
            "PILOTLIGHT_MEDIA_ROOTS": "/data, /more",
            "PILOTLIGHT_MEDIA_DOMAINS": ".example.com",
            "PILOTLIGHT_MEDIA_NETWORKS": "10.1.0.0/16",
            "PILOTLIGHT_MEDIA_ALLOW_HTTP": "true",
            "PILOTLIGHT_MEDIA_MAX_BYTES": "1000",
            "PILOTLIGHT_MEDIA_REDIRECTS": "0",
        }
    )
    assert (read.roots, read.domains, read.networks) == (("/data", "/more"), (".example.com",), ("10.1.0.0/16",))
    assert (read.allow_http, read.bytes) == (True, 1000)


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("MAX_BYTES", "-1", "a whole number of 1 or more"),
        ("MAX_FRAMES", "many", "a whole number of 1 or more"),
        ("ALLOW_HTTP", "perhaps", "true or false"),
        ("NETWORKS", "10.1.2.3/16", "10.1.0.0/16"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(name: str, value: str, must: str) -> None:
    with pytest.raises(UsageError, match=f"PILOTLIGHT_MEDIA_{name}.*{must}"):
        limits_from({f"PILOTLIGHT_MEDIA_{name}": value})
