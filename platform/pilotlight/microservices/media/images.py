"""Images: size limits are checked on the headers, before memory is allocated; then PIL decodes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pilotlight.microservices.media.headers import gif_frames, webp_size
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.refusals import MediaError
from pilotlight.microservices.media.sniffing import Media

if TYPE_CHECKING:
    import numpy as np

INSTALL: Final = "cannot be read here: images need pillow; the operator installs it: pip install 'pilotlight[media]'"


def check_image(media: Media, limits: Limits) -> None:
    """Raise if it is too large, has too many frames, or is not an image. No pixel is decoded."""
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
        raise MediaError(f"has {width} x {height} pixels, more than the {limits.pixels} that are taken")


def check_frames(count: int, limits: Limits) -> None:
    if count > limits.frames:
        raise MediaError(f"has more than the {limits.frames} frames that are taken")


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
        raise MediaError("has more pixels than are taken", str(error)) from error
    except Exception as error:
        raise MediaError(f"is damaged: it cannot be read as {media.format}", repr(error)) from error
