"""Media from the web: pinned to what was checked, bounded in bytes and time, and silent on what the network holds."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.platform.microservices.media.conftest import Web, png

from pilotlight.microservices.media import Limits, MediaRefused, fetch

UNREACHED = "could not be fetched; check the address, or let the operator check the log"


def refused(references: list[str], limits: Limits, **how: Any) -> str:
    with pytest.raises(MediaRefused) as caught:
        fetch(references, None, limits, **how)
    return str(caught.value)


def test_several_are_fetched_in_their_order(web: Web, limits: Limits) -> None:
    for at in range(5):
        web.paths[f"/{at}.png"] = png(at + 1, 1)
    found = fetch([web.url(f"/{at}.png") for at in range(5)], None, limits)
    assert [each.name for each in found] == [f"{at}.png" for at in range(5)]
    assert [each.data for each in found] == [png(at + 1, 1) for at in range(5)]
    assert found[0].data_url.startswith("data:image/png;base64,iVBOR")


def test_they_are_fetched_at_once_within_the_bound(web: Web, limits: Limits) -> None:
    """Each answers only when as many as may be are asked together; a fourth must not be."""
    together, inside, most, lock = threading.Barrier(3), [0], [0], threading.Lock()

    def meet(handler: Any) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        together.wait(20)
        with lock:
            inside[0] -= 1
        body = png()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    web.paths = {f"/{at}": meet for at in range(6)}
    assert len(fetch([web.url(f"/{at}") for at in range(6)], None, replace(limits, at_once=3))) == 6
    assert most[0] == 3


def test_a_host_must_be_listed(web: Web, limits: Limits) -> None:
    web.paths["/a.png"] = png()
    told = refused([web.url("/a.png")], replace(limits, domains=("example.com",)))
    assert "media[0] is on a host that is not allowed" in told
    assert "PILOTLIGHT_MEDIA_DOMAINS" in told
    assert not web.asked


def test_plain_http_must_be_allowed(web: Web, limits: Limits) -> None:
    assert "must be https://" in refused([web.url("/a.png")], replace(limits, allow_http=False))
    assert not web.asked


def test_this_machine_is_refused_by_number_and_by_name_without_a_word_on_the_address(
    web: Web, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    closed = replace(limits, networks=())
    for host in ("127.0.0.1", "localhost", "0.0.0.0", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pilotlight.media"):
            assert refused([web.url("/a.png", host)], closed) == f"media[0] {UNREACHED}"
        assert "is private, local or reserved" in caplog.text or "cannot be resolved" in caplog.text
    assert not web.asked


def test_a_name_is_resolved_once_so_that_it_cannot_change_its_mind(web: Web, limits: Limits) -> None:
    """The first answer is what was checked and what is connected to; the second would be another machine."""
    web.paths["/a.png"] = png()
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    found = fetch([web.url("/a.png", "media.test")], None, limits, resolver=lambda host, port: next(answers))
    assert found[0].data == png()
    assert web.hosts == [f"media.test:{web.port}"]
    assert next(answers) == ["169.254.169.254"]


def test_a_name_with_one_bad_address_is_refused_though_another_is_good(web: Web, limits: Limits) -> None:
    def mixed(host: str, port: int) -> list[str]:
        return ["127.0.0.1", "169.254.169.254"]

    assert refused([web.url("/a.png", "media.test")], limits, resolver=mixed) == f"media[0] {UNREACHED}"
    assert not web.asked


def redirect(to: str) -> Any:
    def answer(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def test_redirects_are_not_followed(web: Web, limits: Limits) -> None:
    web.paths = {"/a": redirect("/b.png"), "/b.png": png()}
    assert refused([web.url("/a")], limits) == f"media[0] {UNREACHED}"
    assert web.asked == ["/a"]


def test_where_redirects_are_allowed_each_step_is_checked_anew(web: Web, limits: Limits) -> None:
    allowed = replace(limits, redirects=2)
    web.paths = {"/a": redirect("/b.png"), "/b.png": png(), "/loop": redirect("/loop")}
    assert fetch([web.url("/a")], None, allowed)[0].data == png()
    for target in ("http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://[::ffff:10.0.0.1]/"):
        web.paths["/out"] = redirect(target)
        assert refused([web.url("/out")], allowed) == f"media[0] {UNREACHED}"
    web.paths["/elsewhere"] = redirect(web.url("/b.png", "localhost"))
    told = refused([web.url("/elsewhere")], replace(allowed, domains=("127.0.0.1",)))
    assert "is on a host that is not allowed" in told
    assert refused([web.url("/loop")], allowed) == f"media[0] {UNREACHED}"


def test_an_announced_size_is_refused_before_it_is_read(web: Web, limits: Limits) -> None:
    web.paths["/a.png"] = png() + b"\0" * 5000
    assert "the limit is 1000" in refused([web.url("/a.png")], replace(limits, bytes=1000))


def endless(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"\x89PNG\r\n\x1a\n" + b"\0" * 65536)


def test_an_endless_answer_ends_at_the_size_that_is_taken(web: Web, limits: Limits) -> None:
    web.paths["/a.png"] = endless
    told = refused([web.url("/a.png")], replace(limits, bytes=300_000))
    assert told == "media[0] has more than 300000 bytes, the limit"


def test_all_of_a_request_together_have_a_bound(web: Web, limits: Limits) -> None:
    web.paths = {f"/{at}.png": png() + b"\0" * 5000 for at in range(4)}
    told = refused([web.url(f"/{at}.png") for at in range(4)], replace(limits, total_bytes=12_000))
    assert "all media of a request" in told


def test_there_is_a_bound_on_how_many(limits: Limits) -> None:
    assert "media has 33 entries, must be at most 32" in refused(["a"] * 33, limits)


@pytest.mark.parametrize("vice", ["head", "body"])
def test_a_server_that_sends_a_byte_now_and_then_does_not_hold_us(web: Web, limits: Limits, vice: str) -> None:
    ended = threading.Event()

    def drip(handler: Any) -> None:
        if vice == "body":
            handler.send_response(200)
            handler.end_headers()
        try:
            while not ended.wait(0.05):
                handler.wfile.write(b"x")
                handler.wfile.flush()
        except OSError:
            ended.set()

    web.paths["/a.png"] = drip
    began = time.monotonic()
    told = refused([web.url("/a.png")], replace(limits, seconds=1.0))
    assert "exceeds the limit of 1 s" in told
    assert time.monotonic() - began < 30
    ended.set()


def test_an_answer_that_ends_early_is_no_medium(web: Web, limits: Limits) -> None:
    def short(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.wfile.write(png())

    web.paths["/a.png"] = short
    assert refused([web.url("/a.png")], limits) == f"media[0] {UNREACHED}"


def test_what_a_server_says_and_whether_it_is_there_look_alike(web: Web, limits: Limits) -> None:
    def resolver(host: str, port: int) -> list[str]:
        if host == "nohost.test":
            raise OSError("no such name")
        return [host]

    urls = (web.url("/none.png"), "http://127.0.0.1:1/a.png", "http://nohost.test/a.png", "http://10.0.0.1/a.png")
    assert {refused([url], limits, resolver=resolver) for url in urls} == {f"media[0] {UNREACHED}"}


def test_the_first_that_fails_is_named_by_its_place(web: Web, limits: Limits) -> None:
    web.paths["/a.png"] = png()
    assert refused([web.url("/a.png"), web.url("/none.png")], limits).startswith("media[1] ")


def test_bytes_that_are_no_medium_are_refused_whatever_they_are_called(web: Web, limits: Limits) -> None:
    web.paths["/a.png"] = b"#EXTM3U\nfile:///etc/passwd\n"
    assert "is neither an image (PNG" in refused([web.url("/a.png")], limits)


def test_tls_is_for_the_name_that_was_asked_for(
    secure_web: tuple[Web, Path], limits: Limits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server, certificate = secure_web
    server.paths["/a.png"] = png()
    strict = replace(limits, allow_http=False)
    assert refused([server.url("/a.png", "localhost", "https")], strict) == f"media[0] {UNREACHED}"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    here = {"resolver": lambda host, port: ["127.0.0.1"]}
    assert fetch([server.url("/a.png", "localhost", "https")], None, strict, **here)[0].data == png()  # type: ignore[arg-type]
    assert refused([server.url("/a.png", "other.test", "https")], strict, **here) == f"media[0] {UNREACHED}"
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
