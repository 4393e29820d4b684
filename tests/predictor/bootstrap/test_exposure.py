"""A server that everybody may use says so at its start."""

import pytest

from pilotlight_predictor.bootstrap.startup import exposure
from pilotlight_predictor.config import Settings

SERVER = Settings().server


@pytest.mark.parametrize(
    ("changed", "warns"),
    [
        ({}, True), ({"host": "::"}, True), ({"host": "127.0.0.1"}, False), ({"api_token_file": "t"}, False),
        ({"access_file": "a"}, False), ({"tls_client_ca": "c"}, False), ({"behind_proxy": True}, False),
        ({"admin_token_file": "t"}, True),
    ],
)  # fmt: skip
def test_all_addresses_without_a_token_are_worth_a_warning(changed: dict[str, object], warns: bool) -> None:
    server = type(SERVER)(**{**SERVER.__dict__, "host": "0.0.0.0", **changed})
    found = list(exposure(server))
    assert bool(found) == warns
    assert all("--host 127.0.0.1" in text and "--api-token-file" in text for text in found)
