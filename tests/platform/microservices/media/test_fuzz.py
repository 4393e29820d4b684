"""Whatever is put to the parsers: a refusal in words, or something that cannot be read in two ways."""

from urllib.parse import urlsplit

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.platform.microservices.media.conftest import gif, png

from pilotlight.microservices.media import Limits
from pilotlight.microservices.media.images import check_image, gif_frames, identify, webp_size
from pilotlight.microservices.media.limits import MediaError
from pilotlight.microservices.media.references import StoredObject, WebAddress, parse

ODD = st.text(alphabet=st.sampled_from("ab.:/@\\?#[]%0x7f1é \t\n-"), max_size=40)
GIF, PNG = gif(3), png()
RELAXED = settings(deadline=None)  # a busy machine may take any time


@RELAXED
@given(ODD, st.sampled_from(["http://", "https://", "HTTPS://", "s3://", "az://", "file://", ""]))
@example("good.com#@evil.com/", "https://")
@example("good.com?@evil.com/", "https://")
@example("[::1]@evil.com", "http://")
def test_an_address_that_is_taken_means_one_host_alone(rest: str, scheme: str) -> None:
    try:
        found = parse(scheme + rest)
    except MediaError:
        return
    if isinstance(found, WebAddress):
        again = urlsplit(f"{'https' if found.secure else 'http'}://{found.authority}{found.target}")
        assert again.hostname == found.host
        assert again.username is None
        assert found.target.startswith("/")
        assert found.target.isascii()
        assert not set(found.target + found.host) & set(" \t\r\n\\")
    if isinstance(found, StoredObject):
        assert ".." not in found.key.split("/")


@RELAXED
@given(st.integers(0, len(GIF)), st.integers(0, 255), st.integers(0, len(GIF)))
def test_a_gif_with_a_byte_changed_is_read_or_refused(at: int, value: int, end: int) -> None:
    data = bytearray(GIF)
    data[min(at, len(data) - 1)] = value
    list(gif_frames(bytes(data[:end])))
    _judged(bytes(data[:end]))


@RELAXED
@given(st.integers(0, len(PNG) - 1), st.integers(0, 255))
def test_a_png_with_a_byte_changed_is_read_or_refused(at: int, value: int) -> None:
    data = bytearray(PNG)
    data[at] = value
    _judged(bytes(data))


@RELAXED
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    webp_size(b"RIFF\0\0\0\0WEBP" + data)
    for head in (b"", b"GIF89a", b"BM", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP"):
        _judged(head + data)


def _judged(data: bytes) -> None:
    try:
        media = identify("a", data)
        if media.kind == "image":
            check_image(media, Limits(pixels=10_000, frames=5))
    except MediaError:
        pass
