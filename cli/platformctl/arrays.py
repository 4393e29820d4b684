"""Tensors from .npy files (numpy) and images (Pillow), both imported on use."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import UsageError
from platformctl import asking

if TYPE_CHECKING:
    import numpy as np

CHANNELS: Final = {1: "L", 3: "RGB", 4: "RGBA"}
TYPES: Final = {
    "BOOL": "?", "UINT8": "u1", "INT8": "i1", "UINT16": "<u2", "INT16": "<i2", "UINT32": "<u4", "INT32": "<i4",
    "UINT64": "<u8", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip

# numpy's letters for kinds of elements
NUMBERS: Final = "biuf"
OTHERS: Final = {"U": "text", "S": "bytes", "c": "complex numbers", "M": "times", "m": "times", "V": "records"}


def npy_tensor(spec: asking.InputSpec, path: Path) -> asking.Tensor:
    """Return an array of `numpy.save`, converted to the input's datatype."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise UsageError(f"{path} is no array that numpy.save wrote: {error}") from None
    kind = array.dtype.kind
    if kind == "U" and spec.datatype == "BYTES":
        return asking.Tensor(spec, asking.fit_shape(spec, array.shape, array.size), data=array.ravel().tolist())
    if kind not in NUMBERS:
        raise UsageError(f"{path} holds {OTHERS.get(kind, array.dtype)}, input {spec.name} takes {spec.datatype}")
    return _tensor(spec, array)


def _tensor(spec: asking.InputSpec, array: "np.ndarray[Any, Any]") -> asking.Tensor:
    if spec.datatype not in TYPES:
        raise UsageError(f"input {spec.name} takes {spec.datatype}, which an array of numbers cannot be")
    raw = array.astype(TYPES[spec.datatype]).tobytes()
    return asking.Tensor(spec, asking.fit_shape(spec, array.shape, array.size), raw=raw)


def image_tensor(spec: asking.InputSpec, path: Path) -> asking.Tensor:
    """Return an image in the size, layout and datatype of the input; a BYTES input gets the file as it is."""
    if spec.datatype == "BYTES":
        return asking.raw_tensor(spec, path.read_bytes())
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        hint = "install pillow, or give the array: --file picture.npy"
        raise UsageError(f"input {spec.name} takes {spec.datatype}: decoding a picture needs Pillow", hint) from None
    import numpy as np

    order, channels, size = image_layout(spec)
    try:
        with Image.open(path) as image:
            converted = image.convert(CHANNELS[channels])
    except UnidentifiedImageError:
        raise UsageError(f"{path} is no picture that Pillow reads") from None
    if size:
        converted = converted.resize(size)
    array = np.asarray(converted).reshape(converted.height, converted.width, channels)
    if spec.datatype.startswith(("FP", "BF")):
        array = array / 255.0  # the usual scaling; any other normalisation is the model's own
    return _tensor(spec, array.transpose(2, 0, 1) if order == "CHW" else array)


def image_layout(spec: asking.InputSpec) -> tuple[str, int, tuple[int, int] | None]:
    """Return (HWC or CHW, channels, (width, height) if both are fixed) from the last three dimensions."""
    if len(spec.shape) < 3:
        raise UsageError(f"input {spec.name} has the shape {list(spec.shape)}, which is no picture's")
    first, second, third = spec.shape[-3:]
    if third in CHANNELS and first not in (1, 3):
        order, channels, height, width = "HWC", third, first, second
    else:
        order, channels, height, width = "CHW", first if first in CHANNELS else 3, second, third
    return order, channels, (width, height) if width > 0 and height > 0 else None
