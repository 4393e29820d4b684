"""Videos: opened by PyAV as the one container that they are, decoded frame by frame within the caps.

The demuxer is named rather than guessed: a playlist that calls itself a video would make FFmpeg open what it lists.
"""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pilotlight.microservices.media.images import check_frames, check_size
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.media.sniffing import Media

if TYPE_CHECKING:
    import numpy as np

INSTALL: Final = "cannot be read here: videos need PyAV; the operator installs it: pip install 'pilotlight[media]'"

# FFmpeg counts what it allocates: both sides rounded up, with an edge around small pictures.
ROUNDED: Final = 2
EDGES: Final = 512 * 512


def check_video(media: Media, limits: Limits) -> None:
    """By what the container says; `frames` looks again at every frame that comes."""
    with _stream(media, limits) as (_, stream):
        check_frames(stream.frames, limits)


def frames(media: Media, limits: Limits, most: int = 16) -> "np.ndarray[Any, Any]":
    """[frames, height, width, 3] of bytes: all where there are at most `most`, else that many at equal distances."""
    import numpy as np

    found = list[Any]()
    step, ends = 1, time.monotonic() + limits.seconds
    for at, frame in enumerate(_decoded(media, limits)):
        if time.monotonic() > ends:
            raise Refusal(f"takes longer to decode than {limits.seconds:g} s")
        if at % step == 0:
            found.append(frame.to_ndarray(format="rgb24"))
        if len(found) == 2 * most:
            found, step = found[::2], step * 2
        if len(found) * frame.width * frame.height > limits.kept_pixels:
            raise Refusal(f"has more than {limits.kept_pixels} pixels in {len(found)} frames; ask for fewer frames")
    if not found:
        raise Refusal("has no picture in it")
    chosen = sorted({round(place) for place in np.linspace(0, len(found) - 1, min(most, len(found)))})
    return np.stack([found[place] for place in chosen])


def _decoded(media: Media, limits: Limits) -> Iterator[Any]:
    with _stream(media, limits) as (container, stream):
        for count, frame in enumerate(container.decode(stream), start=1):
            check_frames(count, limits)
            check_size(frame.width, frame.height, limits)
            yield frame


@contextmanager
def _stream(media: Media, limits: Limits) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream; FFmpeg itself is told the most pixels that it may allocate for."""
    try:
        import av
    except ImportError:
        raise Refusal(INSTALL) from None
    try:
        bounded = {"max_pixels": str(ROUNDED * limits.pixels + EDGES)}
        with av.open(
            io.BytesIO(media.data), format=media.format, metadata_errors="ignore", options=bounded
        ) as container:
            if not container.streams.video:
                raise Refusal("has no picture in it")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            stream.codec_context.options = bounded
            if not stream.codec_context.width:  # not even looked at, for its size or for what it is
                raise Refusal(
                    f"has pictures that cannot be read, or more than the {limits.pixels} pixels that are taken"
                )
            check_size(stream.codec_context.width, stream.codec_context.height, limits)
            yield container, stream
    except Refusal:
        raise
    except Exception as error:  # FFmpeg's own, and whatever PyAV trips over: a codec that is not known, odd metadata
        raise Refusal("is damaged: it cannot be decoded as a video", repr(error)) from error
