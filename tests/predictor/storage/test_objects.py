"""s3, gs and az behave alike: the same tests against a server of each kind."""

from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import fetch, listing
from pilotlight_predictor.storage.store_interface import Progress, UriNotFound


def test_a_prefix_becomes_a_directory(bucket: Any, tmp_path: Path, options: Any, content: Any) -> None:
    files = {"config.pbtxt": b'name: "iris"', "1/model.onnx": content(200_000), "1/empty.txt": b""}
    for path, body in files.items():
        bucket.put(f"repo/iris/{path}", body)
    bucket.put("repo/iris-other/1/model.onnx", b"another model whose name begins alike")
    seen: list[Progress] = []
    found = fetch(bucket.uri("repo/iris"), tmp_path, seen.append, options=options)
    assert found.name == "iris"
    assert {p.relative_to(found).as_posix(): p.read_bytes() for p in found.rglob("*") if p.is_file()} == files
    total = sum(map(len, files.values()))
    assert seen[-1] == Progress(total, total, 3, 3)


def test_one_object_becomes_a_file(bucket: Any, tmp_path: Path, options: Any, content: Any) -> None:
    bucket.put("deep/er/model.onnx", content(300_000))
    found = fetch(bucket.uri("deep/er/model.onnx"), tmp_path, options=options)
    assert (found.name, found.read_bytes()) == ("model.onnx", content(300_000))


def test_an_object_without_an_ending_is_found_too(bucket: Any, tmp_path: Path, options: Any) -> None:
    bucket.put("deep/weights", b"w")
    assert fetch(bucket.uri("deep/weights"), tmp_path, options=options).read_bytes() == b"w"


def test_a_whole_bucket_can_be_named(bucket: Any, tmp_path: Path, options: Any) -> None:
    bucket.put("a/1/model.py", b"a")
    bucket.put("b/1/model.py", b"b")
    found = fetch(bucket.uri(), tmp_path, options=options)
    assert sorted(p.name for p in found.iterdir()) == ["a", "b"]


def test_a_changed_object_is_fetched_again_and_the_old_copy_stays(bucket: Any, tmp_path: Path, options: Any) -> None:
    bucket.put("m/model.bin", b"one")
    first = fetch(bucket.uri("m"), tmp_path, options=options)
    bucket.put("m/model.bin", b"two")
    second = fetch(bucket.uri("m"), tmp_path, options=options)
    assert (first / "model.bin").read_bytes() == b"one"
    assert (second / "model.bin").read_bytes() == b"two"


def test_the_listing_says_sizes_and_changes_its_etags_with_the_content(bucket: Any, options: Any) -> None:
    bucket.put("m/a.bin", b"12345")
    bucket.put("m/b/c.bin", b"123")
    before = listing(bucket.uri("m"), options=options)
    assert [(entry.path, entry.size) for entry in before] == [("a.bin", 5), ("b/c.bin", 3)]
    bucket.put("m/a.bin", b"54321")
    after = listing(bucket.uri("m"), options=options)
    assert before[0].etag != after[0].etag
    assert before[1] == after[1]


def test_nothing_there_is_told_from_a_failure(bucket: Any, tmp_path: Path, options: Any) -> None:
    with pytest.raises(UriNotFound, match="nothing found"):
        fetch(bucket.uri("no/such/model"), tmp_path, options=options)


def test_a_bucket_that_does_not_exist_is_not_found(bucket: Any, tmp_path: Path, options: Any) -> None:
    scheme = bucket.root.partition(":")[0]
    with pytest.raises(UriNotFound, match="bucket does not exist"):
        fetch(f"{scheme}://no-such-bucket-here/model/", tmp_path, options=options)


def test_the_proxy_of_the_environment_is_not_used_on_loopback(
    bucket: Any, tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("m/model.bin", b"direct")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (fetch(bucket.uri("m"), tmp_path, options=options) / "model.bin").read_bytes() == b"direct"


def test_folder_markers_of_a_console_are_no_files(s3_bucket: Any, tmp_path: Path, options: Any) -> None:
    s3_bucket.put("m/", b"")
    s3_bucket.put("m/1/", b"")
    s3_bucket.put("m/1/model.onnx", b"x")
    assert [entry.path for entry in listing(s3_bucket.uri("m"), options=options)] == ["1/model.onnx"]


def test_missing_credentials_name_the_variables(
    s3_bucket: Any, tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(LoadFailed, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        fetch(s3_bucket.uri("m"), tmp_path, options=options)


def test_an_endpoint_that_is_no_url_is_shown(tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "${AWS_ENDPOINT_URL}")
    with pytest.raises(LoadFailed, match=r"AWS_ENDPOINT_URL = \$\{AWS_ENDPOINT_URL\}, must be a URL such as"):
        fetch("s3://models/m", tmp_path, options=options)


def test_a_public_bucket_needs_no_credentials(
    s3_bucket: Any, tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_bucket.put("m/model.bin", b"public")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert (fetch(s3_bucket.uri("m"), tmp_path, options=options) / "model.bin").read_bytes() == b"public"


def test_a_wrong_azure_key_is_refused_without_showing_it(
    az_bucket: Any, tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0LWtleQ==")
    with pytest.raises(LoadFailed, match="set AZURE_STORAGE_ACCOUNT_NAME") as caught:
        fetch(az_bucket.uri("m"), tmp_path, options=options)
    assert "c2VjcmV0" not in str(caught.value)


def test_an_azure_connection_string_is_enough(
    az_bucket: Any, azurite: str, tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    az_bucket.put("m/model.bin", b"connected")
    key = os.environ["AZURE_STORAGE_ACCOUNT_KEY"]
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.delenv(name)
    text = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};BlobEndpoint={azurite};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert (fetch(az_bucket.uri("m"), tmp_path, options=options) / "model.bin").read_bytes() == b"connected"


def test_the_account_may_stand_in_an_azure_uri(az_bucket: Any, tmp_path: Path, options: Any) -> None:
    az_bucket.put("m/model.bin", b"x")
    container = az_bucket.root.partition("://")[2]
    for root in ("https://devstoreaccount1.blob.core.windows.net", "as://devstoreaccount1"):
        assert (fetch(f"{root}/{container}/m", tmp_path, options=options) / "model.bin").read_bytes() == b"x"


@pytest.mark.parametrize("body", [None, '{"private_key": "s3cr3t"}', "not json s3cr3t"])
def test_a_google_credentials_file_that_cannot_be_read_is_told_in_one_sentence(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch, body: str | None
) -> None:
    file = tmp_path / "account.json"
    if body is not None:
        file.write_text(body)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(LoadFailed, match=r"cannot be opened .* check GOOGLE_APPLICATION_CREDENTIALS") as caught:
        fetch("gs://bucket/m", tmp_path, options=options)
    assert "s3cr3t" not in str(caught.value)


def test_a_machine_without_ca_certificates_is_told_what_to_install(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(LoadFailed, match=r"check that .* has CA certificates: install .*, or set SSL_CERT_FILE"):
        fetch("s3://bucket/m", tmp_path, options=options)


def test_an_azure_signature_is_enough(
    az_bucket: Any, azure_signature: str, tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    az_bucket.put("m/model.bin", b"signed")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azure_signature)
    assert (fetch(az_bucket.uri("m"), tmp_path, options=options) / "model.bin").read_bytes() == b"signed"
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azure_signature.replace("sp=rl", "sp=rwl"))
    with pytest.raises(LoadFailed, match="access was refused") as caught:
        fetch(az_bucket.uri("m"), tmp_path, options=options)
    assert "sig=" not in str(caught.value)
