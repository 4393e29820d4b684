"""`storage-config://`: KServe's entries of bucket and credentials, against a real server."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.stores.kserve_storage_config import read_entry, resolve, variables
from pilotlight_predictor.storage.uri import Location


@pytest.fixture
def environment() -> Iterator[None]:
    """The store writes variables of the process; each test gets back what was there."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_a_model_is_fetched_with_the_credentials_of_an_entry(
    s3_bucket: Any, tmp_path: Path, options: Any, environment: None
) -> None:
    s3_bucket.put("iris/model.onnx", b"weights")
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION")
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    entry = {
        "type": "s3", "access_key_id": taken["AWS_ACCESS_KEY_ID"], "bucket": "another",
        "secret_access_key": taken["AWS_SECRET_ACCESS_KEY"], "endpoint_url": taken["AWS_ENDPOINT_URL"],
        "region": taken.get("AWS_REGION", "us-east-1"),
    }  # fmt: skip
    os.environ["STORAGE_CONFIG"] = json.dumps(entry)
    os.environ["STORAGE_OVERRIDE_CONFIG"] = json.dumps({"bucket": s3_bucket.uri().partition("://")[2].rstrip("/")})
    assert fetch("storage-config://iris/model.onnx", tmp_path, options=options).read_bytes() == b"weights"


def test_what_the_service_says_wins_over_the_entry() -> None:
    environ = {"STORAGE_CONFIG": '{"type": "s3", "bucket": "a"}', "STORAGE_OVERRIDE_CONFIG": '{"bucket": "b"}'}
    assert resolve(Location("storage-config", "x/y"), read_entry(environ)) == Location("s3", "b/x/y")


def test_each_store_gets_its_own_variables() -> None:
    assert variables("s3", {"access_key_id": "k", "anonymous": "True"}) == {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SKIP_SIGNATURE": "true",
    }
    assert variables("gs", {"base64_service_account": "e30="}) == {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}
    assert variables("az", {"account_name": "a"}) == {"AZURE_STORAGE_ACCOUNT_NAME": "a"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "type = nothing, bucket = nothing"),
        ({"STORAGE_CONFIG": '{"type": "hdfs", "bucket": "b"}'}, "type = hdfs"),
        ({"STORAGE_CONFIG": '{"type": "s3"}'}, "bucket = nothing"),
        ({"STORAGE_CONFIG": "secret, not JSON"}, "STORAGE_CONFIG is not a JSON object"),
    ],
)
def test_an_entry_that_leads_nowhere_is_told_without_its_content(environ: dict[str, str], said: str) -> None:
    with pytest.raises(LoadFailed, match=said) as told:
        resolve(Location("storage-config", "x"), read_entry(environ))
    assert "secret, not JSON" not in str(told.value)
