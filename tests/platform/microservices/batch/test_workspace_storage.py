"""Folders of a workspace: on this machine, in S3 and in Azure they behave alike."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from tests.platform.microservices.batch.conftest import LOOPBACK

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.batch.workspace_storage import Folder, check_path, open_folder
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.records import Workspace


def folder(path: str, workspace: Workspace, environ: Mapping[str, str], limits: Limits = LOOPBACK) -> Folder:
    return open_folder(path, workspace, limits, environ)


@pytest.fixture(params=["local", "s3", "azure"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Workspace, dict[str, str]]:
    if request.param == "local":
        return Workspace(str(tmp_path)), {}
    found: tuple[Workspace, dict[str, str]] = request.getfixturevalue(request.param)
    return found


def test_what_is_written_is_listed_and_read(workspace: tuple[Workspace, dict[str, str]], tmp_path: Path) -> None:
    here = folder("in", *workspace)
    assert here.names() == []
    here.write("b.txt", b"two")
    here.write("deep/ä a.txt", b"one")
    (tmp_path / "source").write_bytes(b"from a file")
    here.write("c.txt", tmp_path / "source")
    folder("in2", *workspace).write("other.txt", b"not ours")
    assert here.names() == ["b.txt", "c.txt", "deep/ä a.txt"]
    assert [here.read(name) for name in here.names()] == [b"two", b"from a file", b"one"]
    here.write("b.txt", b"three")
    assert here.read("b.txt") == b"three"
    whole = f"{workspace[0].uri}/in"
    assert folder(whole, *workspace).names() == here.names()


def test_what_is_not_there_is_told(workspace: tuple[Workspace, dict[str, str]]) -> None:
    with pytest.raises(NotFound):
        folder("in", *workspace).read("none.txt")


@pytest.mark.parametrize("path", ["../out", "in/../../out", "/etc", "s3://other/in", "file:///etc", "https://a.com/"])
def test_a_path_out_of_the_workspace_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        folder(path, Workspace(str(tmp_path)), {})
    with pytest.raises(UsageError):
        folder(path, Workspace("s3://bucket/team"), {})


def test_links_are_neither_listed_nor_followed_nor_written_through(tmp_path: Path) -> None:
    (tmp_path / "workspace" / "in").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "workspace" / "in" / "a.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "workspace" / "away").symlink_to(tmp_path / "out")
    workspace = Workspace(str(tmp_path / "workspace"))
    assert folder("in", workspace, {}).names() == []
    with pytest.raises(PlatformError):
        folder("in", workspace, {}).read("a.txt")
    (tmp_path / "workspace/in/files").symlink_to(tmp_path / "out")
    with pytest.raises(PlatformError, match="is outside of the workspace"):
        folder("in", workspace, {}).write("files/deep/a.txt", b"x")
    for path in ("away", "in/a.txt"):
        with pytest.raises(UsageError, match="is outside of the workspace"):
            folder(path, workspace, {})
        with pytest.raises(UsageError, match="is outside of the workspace"):
            check_path(path, workspace)
    assert not list((tmp_path / "out").iterdir())


def test_a_wrong_azure_key_is_told_without_showing_it(azure: tuple[Workspace, dict[str, str]]) -> None:
    with pytest.raises(PlatformError, match="access was refused") as caught:
        folder("in", azure[0], {"WORKSPACE_KEY": "c2VjcmV0LWtleQ=="}).names()
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize("bucket", ["no-such-bucket", "no-bucket-403"])
def test_a_bucket_that_is_not_there_is_told(s3: tuple[Workspace, dict[str, str]], bucket: str) -> None:
    with pytest.raises(NotFound, match="the bucket does not exist"):
        folder("in", replace(s3[0], uri=f"s3://{bucket}/x"), s3[1]).names()


def test_an_endpoint_in_a_private_network_must_be_permitted(s3: tuple[Workspace, dict[str, str]]) -> None:
    with pytest.raises(PlatformError, match="could not be fetched") as caught:
        folder("in", *s3, limits=Limits(allow_http=True))
    assert "127.0.0.1" not in str(caught.value)


def test_credentials_of_this_process_are_not_lent_to_a_workspace(
    azure: tuple[Workspace, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these, obstore would fetch a token of ours and show it to the workspace's endpoint."""
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, "b2Ytb3Vycw==")
    here = folder("in", *azure)
    here.write("a.txt", b"with its own key")
    assert here.names() == ["a.txt"]


def test_an_azure_signature_is_enough(azure: tuple[Workspace, dict[str, str]]) -> None:
    workspace, environ = azure
    container = workspace.uri.removeprefix("az://").partition("/")[0]
    fields = [
        "rwl",
        "",
        "2099-01-01T00:00:00Z",
        f"/blob/{workspace.account}/{container}",
        "",
        "",
        "",
        "2022-11-02",
        "c",
    ]
    key = base64.b64decode(environ["WORKSPACE_KEY"])
    mac = hmac.digest(key, "\n".join([*fields, *[""] * 7]).encode(), hashlib.sha256)
    named = {"sv": fields[7], "sr": "c", "sp": "rwl", "se": fields[2], "sig": base64.b64encode(mac).decode()}
    signed = replace(workspace, credentials={"sas_token": "env:WORKSPACE_SAS"})
    here = folder("in", signed, {"WORKSPACE_SAS": "?" + urlencode(named)})
    here.write("a.txt", b"by signature")
    assert here.names() == ["a.txt"]
    assert here.read("a.txt") == b"by signature"


def test_storage_that_cannot_be_reached_is_told_soon(s3: tuple[Workspace, dict[str, str]]) -> None:
    with pytest.raises(PlatformError, match="no connection"):
        folder("in", replace(s3[0], endpoint="http://127.0.0.1:1"), s3[1]).names()
