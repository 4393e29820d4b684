"""One parser for check and fetch: what it cannot read without doubt, it refuses."""

import pytest

from pilotlight.microservices.media.limits import MediaError
from pilotlight.microservices.media.references import (
    LocalFile,
    StoredObject,
    WebAddress,
    is_listed,
    parse,
    parse_web,
    redirect_target,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/data/a b.png", LocalFile("/data/a b.png")),
        ("pictures/a.png", LocalFile("pictures/a.png")),
        ("file:///data/a%20b.png", LocalFile("/data/a b.png")),
        ("https://example.com/a.png", WebAddress(True, "example.com", 443, "/a.png")),
        ("https://EXAMPLE.com.:8443/a?b=c", WebAddress(True, "example.com", 8443, "/a?b=c")),
        ("https://[2606:4700::1]/a", WebAddress(True, "2606:4700::1", 443, "/a")),
        ("http://example.com", WebAddress(False, "example.com", 80, "/")),
        ("s3://bucket/a/b.png", StoredObject("s3", "bucket", "a/b.png")),
        ("aws://bucket/b.png", StoredObject("s3", "bucket", "b.png")),
        ("azure://box/b.png", StoredObject("az", "box", "b.png")),
        ("https://acc.blob.core.windows.net/box/a%20b.png", StoredObject("az", "box", "a b.png", "acc")),
    ],
)
def test_what_names_a_medium_is_taken_apart(text: str, meant: object) -> None:
    assert parse(text) == meant


def test_a_signed_blob_is_an_ordinary_web_address() -> None:
    assert isinstance(parse("https://acc.blob.core.windows.net/box/a.png?sig=x"), WebAddress)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 5000,
        "https://a.com/\nHost: b",
        "https://exa\tmple.com/a",
        "https://good.com\\@evil.com/a",
        "https://good.com@evil.com/a",
        "https://user:word@evil.com/",
        "https://good.com /a",
        "https://good.com%2eevil.com/a",
        "https://ex\u0430mple.com/a",
        "https:///a",
        "https://a.com:0/",
        "https://a.com:99999/",
        "https://a.com:x/",
        "https://[::1/a",
        "https://-a.com/",
        "gopher://a.com/",
        "data:image/png;base64,AAAA".replace("data:", "data://"),
        "ftp://a.com/a",
        "file://elsewhere/etc/passwd",
        "s3://bucket",
        "s3://bucket/a/../b",
        "s3://user@bucket/a",
        "s3:///a",
    ],
)
def test_what_two_parsers_might_read_differently_is_refused(text: str) -> None:
    with pytest.raises(MediaError):
        parse(text)


def test_a_request_line_has_no_bare_bytes_and_keeps_what_is_encoded() -> None:
    assert parse_web("https://a.com/ü%20x?q=ü%2F").target == "/%C3%BC%20x?q=%C3%BC%2F"


def test_a_redirect_stays_on_https() -> None:
    here = parse_web("https://a.com/b/c")
    assert redirect_target(here, "../d").target == "/d"
    assert redirect_target(here, "//b.com/").host == "b.com"
    with pytest.raises(MediaError, match="https to http"):
        redirect_target(here, "http://a.com/")


def test_a_list_of_domains_names_hosts_or_all_below_them() -> None:
    assert is_listed("a.com", ["a.com"])
    assert not is_listed("x.a.com", ["a.com"])
    assert is_listed("x.a.com", [".a.com"])
    assert is_listed("a.com", [".a.com"])
    assert not is_listed("eviла.com", [".a.com"])
    assert not is_listed("evila.com", [".a.com"])
    assert not is_listed("a.com", [])
    assert is_listed("a.com", ["*"])
