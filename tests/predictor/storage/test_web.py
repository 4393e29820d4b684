import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.fetcher import fetch
from pilotlight_predictor.storage.http_client import check_allowed
from pilotlight_predictor.storage.store_interface import FetchOptions, Progress, UriNotFound
from pilotlight_predictor.storage.uri import is_refused


def test_parts_are_read_at_the_same_time(web: Any, tmp_path: Path, options: FetchOptions, content: Any) -> None:
    """The server goes on only when as many answers wait for it as there may be: one after the other would never end."""
    web.files["/m.bin"] = content(1_000_000)
    web.hold_after = 1
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(fetch, web.url("/m.bin"), tmp_path, options=options)
        deadline = monotonic() + 60
        while web.held < options.concurrency and monotonic() < deadline:
            sleep(0.005)
        held, web.hold_after = web.held, -1
        web.released.set()
        assert fetching.result(60).read_bytes() == content(1_000_000)
    assert held == options.concurrency


def test_a_large_file_comes_in_ranges(web: Any, tmp_path: Path, options: FetchOptions, content: Any) -> None:
    web.files["/models/m.onnx"] = content(1_000_000)
    seen: list[Progress] = []
    found = fetch(web.url("/models/m.onnx"), tmp_path, seen.append, options=options)
    assert found.name == "m.onnx"
    assert found.read_bytes() == content(1_000_000)
    assert sum("range" in headers for _, headers in web.requests) == 1 + 16  # a probe and 16 parts of 64 KiB
    assert seen[-1] == Progress(1_000_000, 1_000_000, 1, 1)
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)


def test_connections_are_kept_from_part_to_part(web: Any, tmp_path: Path, options: FetchOptions, content: Any) -> None:
    web.files["/m.bin"] = content(1_000_000)
    fetch(web.url("/m.bin"), tmp_path, options=options)
    assert web.connections <= options.concurrency
    assert len(web.requests) == 17


def test_a_kept_connection_that_the_server_closed_is_replaced_at_once(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    web.files["/m.bin"] = content(300_000)
    web.hang_up = True
    patient = replace(options, retries=0, concurrency=1)
    assert fetch(web.url("/m.bin"), tmp_path, options=patient).read_bytes() == content(300_000)
    assert web.connections == len(web.requests)


@pytest.mark.parametrize("lengths", [True, False])
def test_a_server_without_ranges_is_read_in_one_stream(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, lengths: bool
) -> None:
    web.ranges, web.lengths = False, lengths
    web.files["/m.onnx"] = content(300_000)
    assert fetch(web.url("/m.onnx"), tmp_path, options=options).read_bytes() == content(300_000)


def test_an_empty_file_is_a_file(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.files["/empty.bin"] = b""
    assert fetch(web.url("/empty.bin"), tmp_path, options=options).read_bytes() == b""


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_taken_up_again(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, ranges: bool
) -> None:
    web.ranges, web.files["/m.bin"] = ranges, content(200_000)
    web.drop_after = 32 * 1024
    seen: list[Progress] = []
    found = fetch(web.url("/m.bin"), tmp_path, seen.append, options=replace(options, concurrency=1))
    assert found.read_bytes() == content(200_000)
    assert seen[-1].done_bytes == 200_000
    if ranges:
        assert web.body_bytes == 200_000  # not a byte twice


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(web: Any, tmp_path: Path, options: FetchOptions, status: int) -> None:
    web.files["/m.bin"] = b"patience"
    web.statuses = [status, status]
    assert fetch(web.url("/m.bin"), tmp_path, options=options).read_bytes() == b"patience"


def test_a_server_that_stays_in_trouble_is_given_up(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.statuses = [503] * 50
    with pytest.raises(LoadFailed, match="the server returned 503; gave up after 4 attempts"):
        fetch(web.url("/m.bin"), tmp_path, options=options)
    assert len(web.requests) == 4


@pytest.mark.parametrize(("status", "kind"), [(403, LoadFailed), (400, LoadFailed), (404, UriNotFound)])
def test_a_refusal_is_not_repeated_and_shows_no_signature(
    web: Any, tmp_path: Path, options: FetchOptions, status: int, kind: type[Exception]
) -> None:
    web.statuses = [status] * 5
    with pytest.raises(kind, match=str(status)) as caught:
        fetch(web.url("/m.bin?sig=s3cr3t"), tmp_path, options=options)
    assert "s3cr3t" not in str(caught.value)
    assert len(web.requests) == 1


def test_the_query_of_a_signed_url_is_sent(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.files["/m.bin"] = b"signed"
    assert fetch(web.url("/m.bin?X-Amz-Signature=abc"), tmp_path, options=options).name == "m.bin"
    assert all(path == "/m.bin?X-Amz-Signature=abc" for path, _ in web.requests)


def test_a_file_that_changes_meanwhile_is_fetched_anew(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    web.files["/m.bin"] = content(400_000, seed=1)

    def replace_once(path: str) -> None:
        if len(web.requests) == 3:
            web.files["/m.bin"] = content(400_000, seed=2)

    web.on_request = replace_once
    found = fetch(web.url("/m.bin"), tmp_path, options=replace(options, concurrency=1))
    assert found.read_bytes() == content(400_000, seed=2)


def test_a_file_that_never_stops_changing_fails(web: Any, tmp_path: Path, options: FetchOptions, content: Any) -> None:
    web.files["/m.bin"] = content(200_000)

    def replace_always(path: str) -> None:
        web.files["/m.bin"] = content(200_000, seed=len(web.requests))

    web.on_request = replace_always
    with pytest.raises(LoadFailed, match="keeps changing"):
        fetch(web.url("/m.bin"), tmp_path, options=options)


@pytest.mark.parametrize("where", ["fragment", "option"])
def test_a_wrong_hash_fails_and_leaves_nothing_in_the_cache(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, where: str
) -> None:
    web.files["/m.bin"] = content(200_000)
    uri = web.url("/m.bin") + (f"#sha256={'0' * 64}" if where == "fragment" else "")
    given = replace(options, sha256="0" * 64) if where == "option" else options
    with pytest.raises(LoadFailed, match=f"has sha256 {hashlib.sha256(content(200_000)).hexdigest()}, must be 0000"):
        fetch(uri, tmp_path, options=given)
    assert not list(tmp_path.glob("models/*"))
    assert not list(tmp_path.rglob("*.bytes"))


def test_the_right_hash_passes_and_then_needs_no_server(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    web.files["/m.bin"] = content(200_000)
    digest = hashlib.sha256(content(200_000)).hexdigest()
    first = fetch(web.url(f"/m.bin?sig=1#sha256={digest}"), tmp_path, options=options)
    asked = len(web.requests)
    assert fetch(web.url(f"/m.bin?sig=2#sha256={digest}"), tmp_path, options=options) == first
    assert len(web.requests) == asked


def test_a_wrong_size_fails_before_the_download(web: Any, tmp_path: Path, options: FetchOptions, content: Any) -> None:
    web.files["/m.bin"] = content(200_000)
    with pytest.raises(LoadFailed, match="size = 200000 bytes, must be 199999"):
        fetch(web.url("/m.bin"), tmp_path, options=replace(options, size=199_999))
    assert web.body_bytes == 0


def test_a_wrong_size_is_seen_when_the_server_does_not_say_it(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    web.ranges, web.lengths, web.files["/m.bin"] = False, False, content(200_000)
    with pytest.raises(LoadFailed, match="size = 200000 bytes, must be 5"):
        fetch(web.url("/m.bin"), tmp_path, options=replace(options, size=5))


def test_redirects_are_followed_but_not_for_ever(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.redirects = {"/a": "/b", "/b": web.url("/c.bin"), "/loop": "/loop"}
    web.files["/c.bin"] = b"there"
    assert fetch(web.url("/a"), tmp_path, options=options).read_bytes() == b"there"
    with pytest.raises(LoadFailed, match="more than 5 redirects"):
        fetch(web.url("/loop"), tmp_path, options=options)


def test_credentials_do_not_follow_a_redirect_to_another_origin(
    web: Any, tmp_path: Path, options: FetchOptions
) -> None:
    web.files["/c.bin"] = b"x"
    web.redirects = {"/same": "/c.bin", "/other": f"http://localhost:{web.port}/c.bin"}
    base = f"http://user:secret@127.0.0.1:{web.port}"
    fetch(f"{base}/same", tmp_path, options=options)
    assert all(headers["authorization"] == "Basic dXNlcjpzZWNyZXQ=" for _, headers in web.requests)
    web.requests.clear()
    fetch(f"{base}/other", tmp_path, options=options)
    assert all(("authorization" in headers) == (path == "/other") for path, headers in web.requests)


def test_a_redirect_to_a_metadata_service_is_refused(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.redirects = {"/a": "http://169.254.169.254/latest/meta-data/"}
    with pytest.raises(LoadFailed, match="link-local and metadata addresses are not allowed"):
        fetch(web.url("/a"), tmp_path, options=replace(options, allow_http=True))


def test_a_name_that_resolves_to_a_refused_address_is_refused(
    web: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotlight_predictor.storage.uri._METADATA", {"127.0.0.1"})
    with pytest.raises(LoadFailed, match=r"the name resolves to 127\.0\.0\.1"):
        fetch(f"http://localhost:{web.port}/m.bin", tmp_path, options=options)
    assert web.requests == []


def test_a_redirect_from_elsewhere_to_this_machine_is_refused(
    web: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url(""))
    web.redirects = {"/a": web.url("/admin")}
    with pytest.raises(LoadFailed, match="redirects to this machine"):
        fetch("http://models.example/a", tmp_path, options=replace(options, allow_http=True))


@pytest.mark.parametrize("host", ["127.1", "0.0.0.0", "2130706433", "0x7f.1", "[::]", "rebound.example"])
def test_a_redirect_to_this_machine_is_refused_however_it_is_written(
    host: str, web: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = socket.getaddrinfo
    addresses = {"rebound.example": "127.0.0.1"}
    monkeypatch.setattr("socket.getaddrinfo", lambda name, *rest: lookup(addresses.get(name, name), *rest))
    monkeypatch.setenv("http_proxy", web.url(""))
    monkeypatch.setenv("no_proxy", host)
    web.redirects, web.files = {"/a": f"http://{host}:{web.port}/secret"}, {"/secret": b"x"}
    with pytest.raises(LoadFailed, match="this machine"):
        fetch("http://models.example/a", tmp_path, options=replace(options, allow_http=True))
    assert "/secret" not in {urlsplit(path).path for path, _ in web.requests}


@pytest.mark.parametrize("uri", ["http://localhost:port/m", "http://localhost:99999/m", "https://[::1/m", "https:///m"])
def test_a_url_that_cannot_be_read_is_told_so(uri: str, tmp_path: Path, options: FetchOptions) -> None:
    with pytest.raises(LoadFailed, match="write https://host/path"):
        fetch(uri, tmp_path, options=options)


def test_names_beyond_ascii_are_sent_encoded(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.files["/modèle été.bin"] = b"x"
    assert fetch(web.url("/modèle été.bin"), tmp_path, options=options).name == "modèle été.bin"
    assert fetch(web.url("/mod%C3%A8le%20%C3%A9t%C3%A9.bin"), tmp_path, options=options).read_bytes() == b"x"


def test_a_cache_that_cannot_be_written_is_told_in_one_sentence(
    web: Any, tmp_path: Path, options: FetchOptions
) -> None:
    web.files["/m.bin"] = b"x"
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(LoadFailed, match=r"cannot be cached in .*file .*; set PILOTLIGHT_CACHE_DIR"):
        fetch(web.url("/m.bin"), tmp_path / "file", options=options)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "[fe80::1%25eth0]",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "2852039166",
    ],
)
def test_link_local_and_metadata_addresses_are_refused(host: str) -> None:
    assert is_refused(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "8.8.8.8", "::1", "example.org"])
def test_other_addresses_are_not(host: str) -> None:
    assert not is_refused(host)


def test_plain_http_is_for_loopback_unless_allowed() -> None:
    far = urlsplit("http://example.org/m.onnx")
    with pytest.raises(LoadFailed, match="plain http:// to other machines is not allowed"):
        check_allowed(far, allow_http=False)
    check_allowed(far, allow_http=True)
    check_allowed(urlsplit("http://localhost:1/m.onnx"), allow_http=False)


def test_a_proxy_is_used_for_others_and_never_for_loopback(
    web: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["/m.bin"] = b"through"
    monkeypatch.setenv("http_proxy", f"http://user:pass@127.0.0.1:{web.port}")
    fetch("http://models.example/m.bin", tmp_path, options=replace(options, allow_http=True))
    assert {path for path, _ in web.requests} == {"http://models.example/m.bin"}
    assert web.requests[0][1]["host"] == "models.example"
    assert web.requests[0][1]["proxy-authorization"] == "Basic dXNlcjpwYXNz"
    web.requests.clear()
    fetch(web.url("/m.bin"), tmp_path, options=options)
    assert {path for path, _ in web.requests} == {"/m.bin"}


def test_https_is_spoken_and_its_certificate_checked(
    web: Any, tmp_path: Path, options: FetchOptions, monkeypatch: pytest.MonkeyPatch, tls_port: Any
) -> None:
    port, authority = tls_port
    web.files["/m.bin"] = b"sealed"
    uri = f"https://localhost:{port}/m.bin"
    with pytest.raises(LoadFailed, match=r"certificate is not trusted .* set SSL_CERT_FILE"):
        fetch(uri, tmp_path, options=options)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert fetch(uri, tmp_path, options=options).read_bytes() == b"sealed"


def test_a_full_disk_is_told_before_the_download(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    from types import SimpleNamespace

    web.files["/m.bin"] = content(200_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 * 1024))
    with pytest.raises(LoadFailed, match=r"needs 0\.2 MiB in .* only 0\.1 MiB are free"):
        fetch(web.url("/m.bin"), tmp_path, options=options)
    assert web.body_bytes == 0


def test_a_callback_that_raises_stops_the_download(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any
) -> None:
    class Stop(Exception):
        pass

    def callback(progress: Progress) -> None:
        raise Stop

    web.files["/m.bin"] = content(2_000_000)
    with pytest.raises(Stop):
        fetch(web.url("/m.bin"), tmp_path, callback, options=options)
    assert web.body_bytes < 2_000_000
