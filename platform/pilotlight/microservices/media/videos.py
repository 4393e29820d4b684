"""Videos, decoded by PyAV frame by frame within the limits.

The demuxer is set explicitly: a playlist with a video's name would make FFmpeg open the files it lists.
"""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pilotlight.microservices.media.images import Media, check_frames, check_size
from pilotlight.microservices.media.limits import Limits, MediaError

if TYPE_CHECKING:
    import numpy as np

INSTALL: Final = "cannot be read: videos need PyAV, which the operator installs with the media extra"

# FFmpeg's limit is on allocated pixels: both dimensions rounded up, with padding around small images.
ROUNDED: Final = 2
EDGES: Final = 512 * 512


def check_video(media: Media, limits: Limits) -> None:
    """Check the container's metadata; `frames` checks every decoded frame again."""
    with _stream(media, limits) as (_, stream):
        check_frames(stream.frames, limits)


def frames(media: Media, limits: Limits, most: int = 16) -> "np.ndarray[Any, Any]":
    """Return RGB bytes [frames, height, width, 3]: all frames up to `most`, else that many, evenly spaced."""
    import numpy as np

    sampled = list[Any]()
    step, ends = 1, time.monotonic() + limits.seconds
    with _stream(media, limits) as (container, stream):
        for at, frame in enumerate(container.decode(stream)):
            check_frames(at + 1, limits)
            check_size(frame.width, frame.height, limits)
            if time.monotonic() > ends:
                raise MediaError(f"takes longer to decode than {limits.seconds:g} s")
            if at % step == 0:
                sampled.append(frame.to_ndarray(format="rgb24"))
            if len(sampled) == 2 * most:
                sampled, step = sampled[::2], step * 2
            if len(sampled) * frame.width * frame.height > limits.decoded_pixels:
                most_pixels = f"more than {limits.decoded_pixels} pixels in {len(sampled)} frames"
                raise MediaError(f"has {most_pixels}; request fewer frames")
    if not sampled:
        raise MediaError("has no frames")
    chosen = sorted({round(place) for place in np.linspace(0, len(sampled) - 1, min(most, len(sampled)))})
    return np.stack([sampled[place] for place in chosen])


@contextmanager
def _stream(media: Media, limits: Limits) -> Iterator[tuple[Any, Any]]:
    """Yield the container and its first video stream, with FFmpeg's own pixel limit set."""
    try:
        import av
    except ImportError:
        raise MediaError(INSTALL) from None
    try:
        bounded = {"max_pixels": str(ROUNDED * limits.pixels + EDGES)}
        with av.open(
            io.BytesIO(media.data), format=media.format, metadata_errors="ignore", options=bounded
        ) as container:
            if not container.streams.video:
                raise MediaError("has no frames")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            stream.codec_context.options = bounded
            if not stream.codec_context.width:  # FFmpeg rejected it, for its size or codec
                raise MediaError(f"has frames that cannot be read, or more than {limits.pixels} pixels")
            check_size(stream.codec_context.width, stream.codec_context.height, limits)
            yield container, stream
    except MediaError:
        raise
    except Exception as error:  # FFmpeg's errors, and PyAV's on unknown codecs or invalid metadata
        raise MediaError("is damaged: it cannot be decoded as a video", repr(error)) from error
