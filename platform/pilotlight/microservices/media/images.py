"""Images: type detection by magic bytes, size limits checked on the headers, before memory is allocated, and decoding.

Names and Content-Type are not trusted. WebP and GIF have header parsers here, since their decoders allocate first.
"""

import base64
import io
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from pilotlight.microservices.media.limits import Limits, MediaError

if TYPE_CHECKING:
    import numpy as np

IMAGES: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
VIDEOS: Final = {"mp4": "video/mp4", "matroska": "video/webm", "avi": "video/x-msvideo"}  # by demuxer
# By format: the first bytes, and others at an offset.
MAGIC: Final[Mapping[str, tuple[bytes | tuple[bytes, ...], int, bytes]]] = {
    "PNG": (b"\x89PNG\r\n\x1a\n", 0, b""), "JPEG": (b"\xff\xd8\xff", 0, b""), "GIF": ((b"GIF87a", b"GIF89a"), 0, b""),
    "WEBP": (b"RIFF", 8, b"WEBP"), "BMP": (b"BM", 0, b""), "mp4": (b"", 4, b"ftyp"),
    "matroska": (b"\x1aE\xdf\xa3", 0, b""), "avi": (b"RIFF", 8, b"AVI "),
}  # fmt: skip
INSTALL: Final = "cannot be read: images need pillow, which the operator installs with the media extra"


class Media(Struct, frozen=True):
    """One image or video, or the `link` by which a container fetches it. `format`: PIL's or FFmpeg's name."""

    name: str
    kind: Literal["image", "video"]
    format: str = ""
    data: bytes = b""
    link: str = ""

    @property
    def mime(self) -> str:
        return VIDEOS[self.format] if self.kind == "video" else f"image/{self.format.lower()}"

    @property
    def data_url(self) -> str:
        """URL for a chat message: the link, or the data."""
        return self.link or f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"


def webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the canvas; 0, 0 for a truncated or invalid file."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF


def gif_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the extent of each frame, which may exceed the screen and which decoders then allocate."""
    width, height, flags = struct.unpack("<HHB", data[6:11].ljust(5, b"\0"))
    at = 13 + _colours(flags)
    while at < len(data) and data[at] in (0x21, 0x2C):  # an extension or a frame
        if data[at] == 0x21:
            at = _after_blocks(data, at + 2)
            continue
        left, top, wide, high, local = struct.unpack("<HHHHB", data[at + 1 : at + 10].ljust(9, b"\0"))
        yield max(width, left + wide), max(height, top + high)
        at = _after_blocks(data, at + 11 + _colours(local))


def _colours(flags: int) -> int:
    """Return the size of the colour table in bytes, from the flags."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += data[at] + 1
    return at + 1


def identify(name: str, data: bytes) -> Media:
    """Detect the type of an image or video. Raise MediaError for another file."""
    for format_, (start, offset, mark) in MAGIC.items():
        if data.startswith(start) and data.startswith(mark, offset) and (format_ != "BMP" or len(data) > 26):
            return Media(name, "video" if format_ in VIDEOS else "image", format_, data)
    raise MediaError(f"is neither an image ({', '.join(IMAGES)}) nor a video (MP4, MOV, WebM, MKV, AVI)")


def check_image(media: Media, limits: Limits) -> None:
    """Raise if it is too large, has too many frames, or is not an image. No pixel is decoded."""
    if media.format == "WEBP":
        check_size(*webp_size(media.data), limits)
    if media.format == "GIF":
        extents = list(islice(gif_frames(media.data), limits.frames + 1))
        check_frames(len(extents), limits)
        for width, height in extents:
            check_size(width, height, limits)
    with _read(media) as image:
        check_size(image.width, image.height, limits)
        check_frames(getattr(image, "n_frames", 1), limits)


def check_size(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise MediaError(f"has {width} x {height} pixels, the limit is {limits.pixels}")


def check_frames(count: int, limits: Limits) -> None:
    if count > limits.frames:
        raise MediaError(f"has more than {limits.frames} frames, the limit")


def pixels(media: Media, limits: Limits) -> "np.ndarray[Any, Any]":
    """Return RGB bytes [height, width, 3], rotated by EXIF; of an animation the first frame."""
    import numpy as np
    from PIL import ImageOps

    check_image(media, limits)
    with _read(media) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@contextmanager
def _read(media: Media) -> Iterator[Any]:
    """Yield PIL's image with only its header read; PIL has a size limit of its own too.

    A damaged file makes PIL raise any exception: IndexError, struct.error, zlib.error.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MediaError(INSTALL) from None
    try:
        with Image.open(io.BytesIO(media.data), formats=(media.format,)) as image:
            yield image
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaError("has more pixels than allowed", str(error)) from error
    except Exception as error:
        raise MediaError(f"is damaged: it cannot be read as {media.format}", repr(error)) from error
