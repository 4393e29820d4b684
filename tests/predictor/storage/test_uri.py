import pytest

from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.messages import redact_uri
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.store_interface import FetchOptions
from pilotlight_predictor.storage.stores import open_store
from pilotlight_predictor.storage.uri import is_remote, parse, redact_text, safe_relative

PIN = "a" * 64


@pytest.mark.parametrize(
    ("uri", "remote"),
    [
        ("/models/iris", False),
        ("models/iris", False),
        ("file:///models/iris", False),
        ("FILE:///models/iris", False),
        ("s3://bucket/iris", True),
        ("https://host/iris.onnx", True),
        ("hf_model://org/repo", True),
        ("odd:name/model.onnx", False),  # a colon alone makes no scheme
    ],
)
def test_only_a_scheme_other_than_file_is_remote(uri: str, remote: bool) -> None:
    assert is_remote(uri) is remote


@pytest.mark.parametrize(
    ("uri", "scheme", "rest", "filename"),
    [
        ("models/iris", "file", "models/iris", "iris"),
        ("file:///models/my%20iris", "file", "/models/my iris", "my iris"),
        ("s3://bucket/a#b?c.onnx", "s3", "bucket/a#b?c.onnx", "a#b?c.onnx"),  # legal in a key
        ("hf_model://org/repo@v1", "hf", "org/repo@v1", "repo"),
        ("azure://container/m", "az", "container/m", "m"),
        ("https://acc.blob.core.windows.net/c/m", "az", "acc.blob.core.windows.net/c/m", "m"),
        # A signature in the query makes it one signed file, not a container to list.
        ("https://acc.blob.core.windows.net/c/m?sig=x", "https", "acc.blob.core.windows.net/c/m?sig=x", "m"),
    ],
)
def test_a_uri_is_taken_apart(uri: str, scheme: str, rest: str, filename: str) -> None:
    found = parse(uri)
    assert (found.scheme, found.rest, found.filename) == (scheme, rest, filename)


def test_a_hash_at_the_end_is_a_pin_and_no_part_of_the_name() -> None:
    found = parse(f"https://host/m.onnx#sha256={PIN.upper()}")
    assert (found.text, found.sha256) == ("https://host/m.onnx", PIN)


@pytest.mark.parametrize("value", ["", "abc", "g" * 64, PIN + "0"])
def test_a_pin_that_is_no_hash_is_refused(value: str) -> None:
    with pytest.raises(LoadFailed, match="must be 64 hexadecimal digits"):
        parse(f"s3://bucket/m.onnx#sha256={value}")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://user:secret@host/m.onnx", "https://***@host/m.onnx"),
        ("https://token@host/m.onnx", "https://***@host/m.onnx"),
        ("https://host/m.onnx?X-Amz-Signature=secret&x=1", "https://host/m.onnx?***"),
        ("s3://key:secret@bucket/m", "s3://***@bucket/m"),
        ("hf://org/repo@main/file", "hf://org/repo@main/file"),
        ("/models/what?is@this", "/models/what?is@this"),
    ],
)
def test_user_and_query_are_never_shown(uri: str, shown: str) -> None:
    assert redact_uri(uri) == shown


def test_uris_inside_a_librarys_message_are_redacted() -> None:
    text = (
        'GET "https://u:p@host/a?sig=s3cr3t" failed,\n after https://host/b?token=s3cr3t) twice\n\nDebug source: s3cr3t'
    )
    assert "s3cr3t" not in redact_text(text)
    assert "u:p" not in redact_text(text)
    assert "\n" not in redact_text(text)
    assert (
        redact_text("refused: 400 Bad Request: <?xml version='1.0'?><StringToSign>s3cr3t")
        == "refused: 400 Bad Request:"
    )


@pytest.mark.parametrize("path", ["../x", "a/../b", "/etc/passwd", "a//b", "", "a\\..\\b", "a/./b", "a\0b", "a/"])
def test_names_that_lead_elsewhere_are_no_relative_paths(path: str) -> None:
    assert not safe_relative(path)


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(LoadFailed, match=r"ftp:// is not supported; use a path or one of .*hf://.*s3://"):
        open_store(parse("ftp://host/m"), FetchOptions())


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/m", "gs://tok@bucket/m", "az://key@container/m"])
def test_credentials_in_an_object_uri_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(LoadFailed, match="credentials in the URI are ignored") as caught:
        open_store(parse(uri), FetchOptions())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "library"), [("s3", "obstore"), ("gs", "obstore"), ("az", "obstore"), ("hf", "huggingface_hub")]
)
def test_a_missing_library_names_the_extra(scheme: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    with pytest.raises(LoadFailed) as caught:
        open_store(parse(f"{scheme}://org/repo/m"), FetchOptions())
    assert str(caught.value) == f"{scheme}:// needs the cloud extra: {install_command('cloud')}"


def test_asking_whether_a_uri_is_remote_imports_nothing_that_downloads() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pilotlight_predictor.storage.uri import is_remote; is_remote('s3://b');"
        "heavy = {'obstore', 'huggingface_hub', 'http.client', 'tarfile', 'concurrent.futures'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
