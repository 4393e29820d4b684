"""Conversion of images to a model's input tensor, by its metadata. Pure, but for PIL, which resizes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pilotlight.contract import NUMPY_TYPES
from pilotlight.errors import UsageError
from pilotlight.microservices.registry.model_kinds import Preparation
from pilotlight.v2_tensors import InputSpec

if TYPE_CHECKING:
    import numpy as np


class Layout(Struct, frozen=True):
    """Layout of an image tensor; a width or height of 0 is the image's own."""

    batched: bool
    channels_first: bool
    channels: int
    height: int
    width: int


def layout(of: InputSpec, prepare: Preparation) -> Layout:
    """Derive the layout: [batch,] channels, height, width or [batch,] height, width, channels."""
    inner = of.shape[-3:]
    first = len(inner) == 3 and inner[0] in {1, 3}
    if len(of.shape) not in {3, 4} or not (first or inner[2] in {1, 3}) or of.datatype not in NUMPY_TYPES:
        raise UsageError(
            f"the model's input {of.name} is {of.datatype} of shape {list(of.shape)}, which is not an image; call it"
            " with `inputs` (kind: tensors in parameters.yaml beside the model)"
        )
    channels, high, wide = inner if first else (inner[2], inner[0], inner[1])
    width, height = prepare.size or (0, 0)
    return Layout(len(of.shape) == 4, first, channels, high if high > 0 else height, wide if wide > 0 else width)


def tensor(images: "Sequence[np.ndarray[Any, Any]]", of: InputSpec, prepare: Preparation) -> "np.ndarray[Any, Any]":
    """Return all images in one tensor; with a dynamic size they must be of one size."""
    import numpy as np

    at = layout(of, prepare)
    arrays = [_prepare(image, at, of.datatype, prepare) for image in images]
    if len({each.shape for each in arrays}) > 1:
        raise UsageError("images of different sizes cannot be sent together to this model; use batch_size 1")
    return np.stack(arrays) if at.batched else arrays[0]


def _prepare(image: "np.ndarray[Any, Any]", at: Layout, datatype: str, prepare: Preparation) -> "np.ndarray[Any, Any]":
    import numpy as np

    height, width = at.height or image.shape[0], at.width or image.shape[1]
    sized = image
    if image.shape[:2] != (height, width):  # without preserving the aspect ratio, as training usually does
        from PIL import Image

        sized = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    kind = np.dtype(NUMPY_TYPES[datatype])
    if kind.kind == "f":
        sized = (sized / prepare.scale - np.array(prepare.mean)) / np.array(prepare.std)
    if at.channels == 1:
        sized = (sized @ np.array([0.299, 0.587, 0.114]))[..., None]
    return np.ascontiguousarray(sized.transpose(2, 0, 1) if at.channels_first else sized, dtype=kind)
