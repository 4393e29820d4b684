"""Media in object stores, with the workspace's credentials by reference: moto for S3, Azurite for Azure."""

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.object_stores import Bucket
from tests.platform.microservices.media.conftest import png

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.media import Limits, MediaRefused, fetch, read_declaration
from pilotlight.microservices.media.file_and_bucket_sources import sign_url
from pilotlight.microservices.media.references import StoredObject
from pilotlight.microservices.registry import secret_references
from pilotlight.microservices.registry.model_kinds import MAX_BYTES
from pilotlight.microservices.registry.records import Workspace

Stored = tuple[Bucket, Workspace, dict[str, str]]


def put_private(stored: Stored, key: str, body: bytes) -> None:
    """What moto's fixture puts is public; this is readable with credentials alone."""
    import boto3
    from botocore.config import Config

    bucket, workspace, environ = stored
    boto3.client(
        "s3", endpoint_url=workspace.endpoint, region_name="us-east-1", aws_access_key_id=environ["WORKSPACE_ACCESS"],
        aws_secret_access_key=environ["WORKSPACE_SECRET"], config=Config(proxies={}),
    ).put_object(Bucket=bucket.root.removeprefix("s3://"), Key=key, Body=body)  # fmt: skip


def refused(references: list[str], workspace: Workspace | None, limits: Limits, environ: Any) -> str:
    with pytest.raises(MediaRefused) as caught:
        fetch(references, workspace, limits, environ=environ)
    return str(caught.value)


def test_private_objects_of_s3_are_read_with_the_workspaces_credentials(s3: Stored, limits: Limits) -> None:
    bucket, workspace, environ = s3
    put_private(s3, "in/ä b+c.png", png())
    put_private(s3, "two.png", png(9, 9))
    found = fetch([bucket.uri("in/ä b+c.png"), bucket.uri("two.png")], workspace, limits, environ=environ)
    assert [each.data for each in found] == [png(), png(9, 9)]


def test_no_list_of_domains_need_name_a_workspaces_store(s3: Stored, limits: Limits) -> None:
    bucket, workspace, environ = s3
    put_private(s3, "a.png", png())
    assert fetch([bucket.uri("a.png")], workspace, replace(limits, domains=()), environ=environ)


def test_without_credentials_only_what_is_public_can_be_read(s3: Stored, limits: Limits) -> None:
    bucket, workspace, environ = s3
    bucket.put("public.png", png())
    put_private(s3, "private.png", png())
    bare = replace(workspace, credentials={})
    assert fetch([bucket.uri("public.png")], bare, limits, environ=environ)[0].data == png()
    told = refused([bucket.uri("private.png")], bare, limits, environ)
    assert told == "media[0] is denied by the store: the workspace's credentials are wrong or may not read it"


def test_an_object_that_is_not_there_is_told_so(s3: Stored, limits: Limits) -> None:
    bucket, workspace, environ = s3
    assert "does not exist in the store" in refused([bucket.uri("none.png")], workspace, limits, environ)


def test_a_store_in_a_private_network_must_be_permitted(
    s3: Stored, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, workspace, environ = s3
    bucket.put("a.png", png())
    told = refused([bucket.uri("a.png")], workspace, replace(limits, networks=()), environ)
    assert "could not be fetched" in told
    assert "127.0.0.1" not in told
    assert "is private, local or reserved" in caplog.text
    metadata = replace(workspace, endpoint="http://169.254.169.254")
    assert "could not be fetched" in refused([bucket.uri("a.png")], metadata, limits, environ)


def test_credentials_that_are_not_set_are_told_without_their_names(
    s3: Stored, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, workspace, _ = s3
    told = refused([bucket.uri("a.png")], workspace, limits, {})
    assert told == "media[0] cannot be fetched: the workspace's credentials are not set"
    assert "env:WORKSPACE_ACCESS is not set" in caplog.text


def test_an_object_without_a_workspace_is_refused(limits: Limits) -> None:
    assert "no workspace" in refused(["s3://bucket/a.png"], None, limits, {})


def test_neither_secrets_nor_signatures_reach_the_log(
    s3: Stored, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, workspace, environ = s3
    with caplog.at_level(logging.DEBUG):
        told = refused([bucket.uri("none.png")], workspace, limits, environ)
    assert bucket.secret not in caplog.text + told
    assert "X-Amz-Signature" not in caplog.text + told


def test_credentials_of_this_process_are_not_lent_to_a_workspace(monkeypatch: pytest.MonkeyPatch, s3: Stored) -> None:
    """Its own session token would travel in an address that the workspace's endpoint sees."""
    _, workspace, environ = s3
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-api")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-api")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://of-the-api")
    address = sign_url(StoredObject("s3", "bucket", "a.png"), workspace, environ)
    assert "of-the-api" not in address.target
    assert "testing" in address.target


def test_azure_is_read_with_its_key_and_refuses_a_wrong_one(azure: Stored, limits: Limits) -> None:
    bucket, workspace, environ = azure
    bucket.put("in/ä b.png", png())
    assert fetch([bucket.uri("in/ä b.png")], workspace, limits, environ=environ)[0].data == png()
    told = refused([bucket.uri("in/ä b.png")], workspace, limits, {"WORKSPACE_KEY": "c2VjcmV0LWtleQ=="})
    assert told == "media[0] is denied by the store: the workspace's credentials are wrong or may not read it"


def test_credentials_of_one_azure_account_are_not_shown_to_another(azure: Stored, limits: Limits) -> None:
    _, workspace, environ = azure
    told = refused(["https://someoneelse.blob.core.windows.net/box/a.png"], workspace, limits, environ)
    assert "is in the account someoneelse" in told


@pytest.mark.parametrize(
    "reference",
    ["env:HOME", "env:PILOTLIGHT_TOKEN", "file:../etc/passwd", "file:/etc/passwd", "value", "env:", "file:"],
)
def test_a_workspace_may_refer_to_credentials_of_stores_alone(reference: str) -> None:
    with pytest.raises(UsageError, match=r"credentials\.access_key must be env:NAME"):
        secret_references.check(Workspace("s3://b", credentials={"access_key": reference}))


def test_an_unknown_credential_is_named() -> None:
    with pytest.raises(UsageError, match=r"credentials\.password is unknown, must be one of .*access_key"):
        secret_references.check(Workspace("s3://b", credentials={"password": "env:AWS_ACCESS_KEY_ID"}))


def test_a_mounted_secret_is_read_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secrets" / "..data").mkdir(parents=True)
    (tmp_path / "secrets" / "..data" / "key").write_text("word\n")
    (tmp_path / "secrets" / "team").mkdir()
    (tmp_path / "secrets" / "team" / "key").symlink_to("../..data/key")
    (tmp_path / "secrets" / "out").symlink_to("/etc/hostname")
    environ = {"PILOTLIGHT_SECRETS_DIR": str(tmp_path / "secrets")}
    workspace = Workspace("s3://b", credentials={"secret_key": "file:team/key"})
    assert secret_references.values(workspace, environ) == {"secret_key": "word"}
    with pytest.raises(UsageError, match="leads out"):
        secret_references.values(Workspace("s3://b", credentials={"secret_key": "file:out"}), environ)
    with pytest.raises(UsageError, match="file:team/key is not set in this process"):
        secret_references.values(workspace, {"PILOTLIGHT_HOME": str(tmp_path)} | {"PILOTLIGHT_SECRETS_DIR": "/none"})


@pytest.mark.parametrize("artifact", ["run/model", "run/model/", "run/model/v1.onnx"])
def test_a_declaration_beside_a_model_in_a_store_is_read(s3: Stored, limits: Limits, artifact: str) -> None:
    bucket, workspace, environ = s3
    put_private(s3, "run/model/parameters.yaml", b"kind: classification")
    assert read_declaration(bucket.uri(artifact), workspace, limits, environ) == "kind: classification"
    bare = replace(workspace, credentials={})  # another org's, without its credentials
    assert read_declaration(bucket.uri(artifact), bare, limits, environ) == ""
    assert read_declaration(bucket.uri("other/model"), workspace, limits, environ) == ""
    assert read_declaration("hf_model://acme/model", workspace, limits, environ) == ""
    assert read_declaration(bucket.uri(artifact), None, limits, environ) == ""


def test_a_declaration_is_bounded_and_follows_the_rules_for_addresses(s3: Stored, limits: Limits) -> None:
    bucket, workspace, environ = s3
    put_private(s3, "model/parameters.yaml", b"x" * (MAX_BYTES + 1))
    with pytest.raises(PlatformError, match=r"parameters.yaml beside the model has \d+ bytes, the limit is 262144"):
        read_declaration(bucket.uri("model"), workspace, limits, environ)
    for forbidden in (replace(limits, networks=()), replace(limits, allow_http=False)):
        with pytest.raises(PlatformError, match=r"could not be fetched|must be https") as caught:
            read_declaration(bucket.uri("model"), workspace, forbidden, environ)
        assert "127.0.0.1" not in str(caught.value)
    metadata = replace(workspace, endpoint="http://169.254.169.254")
    with pytest.raises(PlatformError, match="could not be fetched"):
        read_declaration(bucket.uri("model"), metadata, limits, environ)
