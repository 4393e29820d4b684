"""File type detection by magic bytes; names and headers are not trusted. Pure."""

import base64
from typing import Final, Literal

from msgspec import Struct

from pilotlight.microservices.media.refusals import MediaError

IMAGES: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
VIDEOS: Final = {"mp4": "video/mp4", "matroska": "video/webm", "avi": "video/x-msvideo"}  # by demuxer


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
        if self.link:
            return self.link
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"


def identify(name: str, data: bytes) -> Media:
    if format_ := _image(data):
        return Media(name, "image", format_, data)
    if format_ := _video(data):
        return Media(name, "video", format_, data)
    raise MediaError(f"is no image ({', '.join(IMAGES)}) and no video (MP4, MOV, WebM, MKV, AVI)")


def _image(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    return "BMP" if data.startswith(b"BM") and len(data) > 26 else ""


def _video(data: bytes) -> str:
    if data[4:8] == b"ftyp":
        return "mp4"
    if data.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else ""
