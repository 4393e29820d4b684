"""Files that hold arrays, as tensors: .npy by numpy, pictures by Pillow. Both are imported when a file needs them."""

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


def saved(of: asking.Input, path: Path) -> asking.Tensor:
    """An array of `numpy.save`, in the type that the model takes."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise UsageError(f"{path} is no array that numpy.save wrote: {error}") from None
    kind = array.dtype.kind
    if kind == "U" and of.datatype == "BYTES":
        return asking.Tensor(of, asking.fit(of, array.shape, array.size), data=array.ravel().tolist())
    if kind not in NUMBERS:
        raise UsageError(f"{path} holds {OTHERS.get(kind, array.dtype)}, input {of.name} takes {of.datatype}")
    return _tensor(of, array)


def _tensor(of: asking.Input, array: "np.ndarray[Any, Any]") -> asking.Tensor:
    if of.datatype not in TYPES:
        raise UsageError(f"input {of.name} takes {of.datatype}, which an array of numbers cannot be")
    raw = array.astype(TYPES[of.datatype]).tobytes()
    return asking.Tensor(of, asking.fit(of, array.shape, array.size), raw=raw)


def picture(of: asking.Input, path: Path) -> asking.Tensor:
    """In the size, order and type of the input; a model that takes bytes gets the file as it is."""
    if of.datatype == "BYTES":
        return asking.content(of, path.read_bytes())
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        hint = "install pillow, or give the array: --file picture.npy"
        raise UsageError(f"input {of.name} takes {of.datatype}: decoding a picture needs Pillow", hint) from None
    import numpy as np

    order, channels, size = layout(of)
    try:
        with Image.open(path) as image:
            made = image.convert(CHANNELS[channels])
    except UnidentifiedImageError:
        raise UsageError(f"{path} is no picture that Pillow reads") from None
    if size:
        made = made.resize(size)
    array = np.asarray(made).reshape(made.height, made.width, channels)
    if of.datatype.startswith(("FP", "BF")):
        array = array / 255.0  # as most preprocessing begins; models that want more do it themselves
    return _tensor(of, array.transpose(2, 0, 1) if order == "CHW" else array)


def layout(of: asking.Input) -> tuple[str, int, tuple[int, int] | None]:
    """(HWC or CHW, channels, (width, height) where both are fixed), from the last three sizes."""
    if len(of.shape) < 3:
        raise UsageError(f"input {of.name} has the shape {list(of.shape)}, which is no picture's")
    first, second, third = of.shape[-3:]
    if third in CHANNELS and first not in (1, 3):
        order, channels, height, width = "HWC", third, first, second
    else:
        order, channels, height, width = "CHW", first if first in CHANNELS else 3, second, third
    return order, channels, (width, height) if width > 0 and height > 0 else None
