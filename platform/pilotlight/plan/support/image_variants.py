"""Variants of our image (Containerfile) as data, and which of them loads a model."""

from functools import cache
from pathlib import Path

from msgspec import Struct, yaml

from pilotlight.wire.model_formats import canonical_name


class ImageVariant(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of image_variants.yaml."""

    name: str
    packages: tuple[str, ...]
    formats: tuple[str, ...]
    gpu: bool | None = None


@cache
def table() -> tuple[ImageVariant, ...]:
    return yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=tuple[ImageVariant, ...])


def variants_for(model_format: str) -> list[ImageVariant]:
    """Return the variants that load a format, given by name or alias; all of them if it is empty."""
    name = canonical_name(model_format)
    return [variant for variant in table() if not name or name in variant.formats]


def select_variant(model_format: str, gpus: int, named: str = "") -> ImageVariant | None:
    """Return the named variant, else the first that suits the devices; None: it, or each of them, lacks the format."""
    fitting = variants_for(model_format)
    return next((each for each in fitting if each.name == named or (not named and each.gpu in (None, gpus > 0))), None)
