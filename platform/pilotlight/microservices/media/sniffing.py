"""What fetched bytes are, by how they begin: names and headers may say what they like. Pure."""

import base64
from typing import Final, Literal

from msgspec import Struct

from pilotlight.microservices.media.refusals import Refusal

IMAGES: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
VIDEOS: Final = {"mp4": "video/mp4", "matroska": "video/webm", "avi": "video/x-msvideo"}  # by the name of the demuxer


class Media(Struct, frozen=True):
    """One image or video as it was stored; `format` is PIL's name of an image's, FFmpeg's of a video's.

    Or the `link` by which a container fetches it.
    """

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
        """What stands in a chat."""
        if self.link:
            return self.link
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"


def recognised(name: str, data: bytes) -> Media:
    if found := _image(data):
        return Media(name, "image", found, data)
    if found := _video(data):
        return Media(name, "video", found, data)
    raise Refusal(f"is no image ({', '.join(IMAGES)}) and no video (MP4, MOV, WebM, MKV, AVI)")


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
