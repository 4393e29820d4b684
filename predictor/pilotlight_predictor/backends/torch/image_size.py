"""Search for the side of the square images that a convolutional network takes, used by derived_signature.py. Pure.

A network that flattens its images fits one number of features, which grows with their side. The error of a run says
how many there were and how many the first linear layer takes, so that the side is found by bisection.
"""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Final, Literal

from pilotlight_predictor.core.tensors import Shape

Fit = Literal["fits", "small", "large", "unknown"]
_IMAGES: Final = (32, 224, 28)  # CIFAR, ImageNet, MNIST
_VOLUMES: Final = (32, 16)
LARGEST: Final = 1024
_PRODUCT: Final = re.compile(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)")
_VIEW: Final = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)")
_TOO_SMALL: Final = re.compile(r"Kernel size can't be greater than|[Oo]utput size is too small|non-positive stride")


def common_sizes(rank: int) -> tuple[int, ...]:
    """Return the sides to try first, for tensors with a dimension of rows and one of channels."""
    return _IMAGES if rank <= 4 else _VOLUMES


def compare_sizes(message: str, rows: int) -> Fit:
    """Return what an error of torch says about the size of a batch of `rows` images."""
    if match := _PRODUCT.search(message):
        got, wanted = int(match[1]), int(match[2])
    elif match := _VIEW.search(message):
        dims = [int(dim) for dim in match[1].split(",")]
        got, wanted = int(match[2]), prod(dim for dim in dims if dim > 0) * (rows if -1 in dims else 1)
    else:
        return "small" if _TOO_SMALL.search(message) else "unknown"
    return "unknown" if got == wanted else "large" if got > wanted else "small"


def rows_fit(output: Shape, rows: int) -> Fit:
    """Return whether a run has kept its rows: `view(-1, 400)` makes several of one image that is too large."""
    got = output[0] if output else rows
    if got > rows and got % rows == 0:
        return "large"
    return "small" if 0 < got < rows and rows % got == 0 else "fits"


def find_size(fits: Mapping[int, Fit], run: Callable[[int], Fit], expired: Callable[[], bool]) -> None:
    """Run sizes until the smallest that fits is known, or none can; `fits` are the sizes that were run before."""
    if "unknown" in fits.values() and not {"small", "large"} & set(fits.values()):
        return
    low = max((size for size, fit in fits.items() if fit == "small"), default=0)
    high = min((size for size, fit in fits.items() if fit == "large"), default=LARGEST + 1)
    while high - low > 1 and not expired():
        middle = min((low + high) // 2, max(2 * low, 16))  # from below: large images are slow
        fit = run(middle)
        if fit == "unknown":
            return
        low, high = (middle, high) if fit == "small" else (low, middle)
