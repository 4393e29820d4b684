"""First step of read_text: the bytes of a picture → its pixels, and the scaled tensor that the detector wants."""

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from pilotlight_predictor.errors import BadRequest  # what a model raises when the client is at fault: status 400

LARGEST = 50_000_000  # pixels; a small file may unpack to any size
LONGEST_SIDE = 960
STEP = 32  # the detector halves the sides five times

Array = np.ndarray[Any, np.dtype[Any]]


def predict(image: Array) -> dict[str, Array]:
    """image: BYTES [1] → pixels: UINT8 [height, width, 3] as RGB, x: FP32 [1, 3, height', width']."""
    picture = read(image.ravel()[0])
    scaled = picture.resize(detector_size(*picture.size), Image.Resampling.BILINEAR)
    return {"pixels": np.asarray(picture), "x": normalised(scaled)[None]}


def read(content: bytes) -> Image.Image:
    if not content:  # what a warm-up sends: a blank picture lets every later step warm up too
        return Image.new("RGB", (STEP, STEP), "white")
    try:
        picture = Image.open(BytesIO(content))
        if picture.width * picture.height > LARGEST:
            raise BadRequest(f"image has {picture.width} × {picture.height} pixels, must have at most {LARGEST}")
        return picture.convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise BadRequest("image must hold the bytes of a picture, such as a PNG or JPEG file") from error


def detector_size(width: int, height: int) -> tuple[int, int]:
    ratio = min(1.0, LONGEST_SIDE / max(width, height))
    return in_steps(width * ratio), in_steps(height * ratio)


def in_steps(side: float) -> int:
    return max(STEP, round(side / STEP) * STEP)


def normalised(picture: Image.Image) -> Array:
    """[3, height, width] in BGR order, as the networks were trained, from -1 to 1."""
    bgr = np.asarray(picture, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray(bgr) / 127.5 - 1.0
