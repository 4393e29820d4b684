"""Images: what they would cost is read from their headers and refused before memory is taken, then decoded by PIL."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pilotlight.microservices.media.headers import gif_frames, webp_size
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.media.sniffing import Media

if TYPE_CHECKING:
    import numpy as np

INSTALL: Final = "cannot be read here: images need pillow; the operator installs it: pip install 'pilotlight[media]'"


def check_image(media: Media, limits: Limits) -> None:
    """Raises where it is too large, has too many frames, or is no image after all. No pixel is decoded."""
    if media.format == "WEBP":
        width, height = webp_size(media.data)
        check_size(width, height, limits)
    if media.format == "GIF":
        reaches = list(islice(gif_frames(media.data), limits.frames + 1))
        check_frames(len(reaches), limits)
        for width, height in reaches:
            check_size(width, height, limits)
    with _read(media) as image:
        check_size(image.width, image.height, limits)
        check_frames(getattr(image, "n_frames", 1), limits)


def check_size(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise Refusal(f"has {width} x {height} pixels, more than the {limits.pixels} that are taken")


def check_frames(count: int, limits: Limits) -> None:
    if count > limits.frames:
        raise Refusal(f"has more than the {limits.frames} frames that are taken")


def pixels(media: Media, limits: Limits) -> "np.ndarray[Any, Any]":
    """[height, width, 3] of bytes, red first, the right way up; of an animation the first frame."""
    import numpy as np
    from PIL import ImageOps

    check_image(media, limits)
    with _read(media) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@contextmanager
def _read(media: Media) -> Iterator[Any]:
    """PIL's image with only its header read; it bounds sizes by itself too, at a number of its own.

    A damaged file makes it raise anything: an index, a struct, a zlib error, according to where the damage is.
    """
    try:
        from PIL import Image
    except ImportError:
        raise Refusal(INSTALL) from None
    try:
        with Image.open(io.BytesIO(media.data), formats=(media.format,)) as image:
            yield image
    except Refusal:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Refusal("has more pixels than are taken", str(error)) from error
    except Exception as error:
        raise Refusal(f"is damaged: it cannot be read as {media.format}", repr(error)) from error
