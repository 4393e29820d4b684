"""Images: bombs are refused by their headers, what is decoded is the right way up."""

import io
import struct
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from tests.platform.microservices.media.conftest import gif, png, png_that_claims

from pilotlight.microservices.media import Limits
from pilotlight.microservices.media.images import check_image, gif_frames, identify, pixels, webp_size
from pilotlight.microservices.media.limits import MediaError

SMALL = Limits(pixels=10_000, frames=5)


def saved(kind: str, size: tuple[int, int] = (30, 20), **how: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (0, 128, 255)).save(buffer, kind, **how)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_every_format_becomes_an_array(kind: str) -> None:
    media = identify("a", saved(kind))
    assert (media.kind, media.format) == ("image", kind)
    assert media.mime == f"image/{kind.lower()}"
    found = pixels(media, SMALL)
    assert (found.shape, found.dtype) == ((20, 30, 3), np.uint8)
    assert np.abs(found.astype(int) - [0, 128, 255]).max() < 8


@pytest.mark.parametrize(
    "data",
    [
        png_that_claims(100_000, 100_000),
        png_that_claims(101, 100),
        saved("WEBP", (200, 200)),
        saved("WEBP", (200, 200), lossless=True),
        saved("JPEG", (200, 200)),
        saved("BMP", (200, 200)),
        saved("GIF", (200, 200)),
    ],
)
def test_too_many_pixels_are_refused_before_memory_is_taken(data: bytes) -> None:
    media = identify("a", data)
    tracemalloc.start()
    try:
        with pytest.raises(MediaError, match="pixels"):
            pixels(media, SMALL)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_gif_frame_that_reaches_beyond_its_screen_is_found() -> None:
    data = bytearray(gif(2))
    at = data.index(b"\x2c", data.index(b"\x2c") + 1)
    data[at + 1 : at + 9] = struct.pack("<HHHH", 60_000, 60_000, 2, 2)
    assert list(gif_frames(bytes(data)))[1] == (60_002, 60_002)
    with pytest.raises(MediaError, match="60002 x 60002 pixels"):
        check_image(identify("a", bytes(data)), SMALL)


def test_too_many_frames_are_refused() -> None:
    check_image(identify("a", gif(5)), SMALL)
    with pytest.raises(MediaError, match="more than 5 frames, the limit"):
        check_image(identify("a", gif(6)), SMALL)


def test_an_animated_png_with_too_many_frames_is_refused() -> None:
    pictures = [Image.new("RGB", (2, 2), (at, 0, 0)) for at in range(6)]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "PNG", save_all=True, append_images=pictures[1:])
    with pytest.raises(MediaError, match="frames"):
        check_image(identify("a", buffer.getvalue()), SMALL)


@pytest.mark.parametrize("cut", [10, 30, 60])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_damaged_image_is_refused_in_words(kind: str, cut: int) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (20, 30, 3), dtype="u1")
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, kind)
    with pytest.raises(MediaError, match=r"is damaged|is neither an image"):
        pixels(identify("a", buffer.getvalue()[:cut]), SMALL)


def test_a_picture_taken_sideways_is_turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert pixels(identify("a", saved("JPEG", exif=exif)), SMALL).shape == (30, 20, 3)


def test_headers_that_are_cut_off_do_not_end_in_an_exception() -> None:
    for length in range(30):
        webp_size(saved("WEBP")[:length])
        list(gif_frames(gif(2)[:length]))
    assert webp_size(saved("WEBP")) == (30, 20)
    assert webp_size(saved("WEBP", lossless=True)) == (30, 20)


def test_what_pil_itself_would_refuse_is_told_in_our_words() -> None:
    with pytest.raises(MediaError, match="pixels"):
        check_image(identify("a", png_that_claims(30_000, 30_000)), Limits(pixels=10**10))
    check_image(identify("a", png()), Limits())
