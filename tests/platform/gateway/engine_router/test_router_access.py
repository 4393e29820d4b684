"""A router as the entry of a service checks the access rules of the mounted file."""

import hashlib
from pathlib import Path

import pytest

from pilotlight.errors import UsageError
from pilotlight.gateway.auth import FileAdmission
from pilotlight.gateway.engine_router.settings import read
from pilotlight.gateway.routing_table import Route
from pilotlight.wire.access_file import encode
from pilotlight.wire.service_access import Access, AccessRules, Rate

TOKEN = hashlib.sha256(b"secret").hexdigest()
ROUTE = Route("default", "iris-engine")


def test_the_rules_of_the_file_hold_for_the_only_route(tmp_path: Path) -> None:
    (tmp_path / "access.json").write_text(encode(AccessRules(Access((TOKEN,)), Rate(1, 3600.0))))
    gate = FileAdmission(str(tmp_path / "access.json"), (), print)
    refused = gate.admit(ROUTE, {}, "192.0.2.1")
    assert refused is not None
    assert refused.status == 401
    assert gate.admit(ROUTE, {"authorization": "Bearer secret"}, "192.0.2.1") is None
    limited = gate.admit(ROUTE, {"authorization": "Bearer secret"}, "192.0.2.2")
    assert limited is not None
    assert limited.status == 429


def test_behind_an_ingress_a_client_is_its_own_address(tmp_path: Path) -> None:
    (tmp_path / "access.json").write_text(encode(AccessRules(rate=Rate(1, 3600.0))))
    settings = read({"PILOTLIGHT_ROUTER_ENGINE": "e", "INFERENCE_TRUSTED_PROXIES": "10.0.0.0/8"})
    gate = FileAdmission(str(tmp_path / "access.json"), settings.proxies, print)
    statuses = [gate.admit(ROUTE, {"x-forwarded-for": client}, "10.0.0.1") for client in ("192.0.2.1", "192.0.2.2")]
    assert statuses == [None, None]
    assert gate.admit(ROUTE, {"x-forwarded-for": "192.0.2.1"}, "10.0.0.1") is not None


def test_a_router_does_not_start_with_rules_that_it_cannot_read(tmp_path: Path) -> None:
    assert read({"PILOTLIGHT_ROUTER_ENGINE": "e", "INFERENCE_ACCESS_FILE": "/a/b"}).access_file == "/a/b"
    with pytest.raises(UsageError, match=r"INFERENCE_ACCESS_FILE = .*, must be a file of access rules"):
        FileAdmission(str(tmp_path / "none"), (), print)
