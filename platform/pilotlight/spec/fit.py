"""Compatibility of one entry of a runtime's supportedModelFormats with a model, by OME's rules. Pure.

OME compares property by property, and a property that only one of the two has is a mismatch. Entries of our own
runtimes may have `*`, which matches any value and none.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pilotlight.spec.model import BaseModel, SupportedFormat
from pilotlight.spec.sizes import parameter_count

ANY: Final = "*"
_VERSION: Final = re.compile(r"(v?)(0|[1-9]\d*)(?:\.(0|[1-9]\d*))?(?:\.(0|[1-9]\d*)([.+-].+)?)?")
_GUESSED: Final = ("modelFormat.name", "modelFramework.name")
_PIPELINE_PARTS: Final = ("scheduler", "textEncoder", "tokenizer", "transformer", "vae")


class Mismatch(NamedTuple):
    """One mismatch. `unspecified`: the model's document lacks the property; OME would read it from the weights."""

    field: str
    message: str
    unspecified: bool = False


def mismatches(entry: SupportedFormat, model: BaseModel) -> tuple[Mismatch, ...]:
    """Return all mismatches, none if the entry fits. A guessed property counts as unspecified."""
    return tuple(
        mismatch._replace(unspecified=True) if model.guessed and mismatch.field in _GUESSED else mismatch
        for mismatch in (
            _name("format", "modelFormat.name", entry.name, model.format),
            _version("format", "modelFormat.version", entry.version, model.format_version, entry.operator),
            _name("framework", "modelFramework.name", entry.framework, model.framework),
            _framework_version(entry, model),
            _name("architecture", "modelArchitecture", entry.architecture, model.architecture),
            _name("quantization", "quantization", entry.quantization, model.quantization),
            _pipeline(entry.pipeline, model.pipeline),
        )
        if mismatch
    )


def _name(what: str, field: str, offered: str, wanted: str) -> Mismatch | None:
    if ANY in (offered, wanted) or offered == wanted:
        return None
    if not wanted:
        return Mismatch(field, f"the model does not say its {what}, the runtime asks for {offered}", unspecified=True)
    if not offered:
        return Mismatch(field, f"the model has {what} {wanted}, the runtime names none")
    return Mismatch(field, f"the model has {what} {wanted}, the runtime serves {offered}")


def _framework_version(entry: SupportedFormat, model: BaseModel) -> Mismatch | None:
    if entry.framework in ("", ANY) or entry.framework != model.framework:
        return None
    offered, wanted = entry.framework_version, model.framework_version
    return _version("framework", "modelFramework.version", offered, wanted, entry.framework_operator)


def _version(what: str, field: str, offered: str, wanted: str, operator: str) -> Mismatch | None:
    if offered in (ANY, wanted):
        return None
    if not wanted:
        return Mismatch(
            field, f"the model does not say its {what} version, the runtime asks for {offered}", unspecified=True
        )
    if not offered:
        return Mismatch(field, f"the model has {what} version {wanted}, the runtime names none")
    if version_fits(offered, wanted, operator):
        return None
    return Mismatch(field, f"the model has {what} version {wanted}, the runtime serves {operator} {offered}")


def version_fits(offered: str, wanted: str, operator: str = "Equal") -> bool:
    """Compare as OME does, the runtime's version on the left: `GreaterThanOrEqual 4.50` serves a model of 4.43.

    Development builds and different precision (4.43 against 4.43.0) compare only as equal.
    """
    left, right = _VERSION.fullmatch(offered), _VERSION.fullmatch(wanted)
    if left is None or right is None:
        return False
    ordered = _numbers(left), _numbers(right)
    if operator == "Equal" or left[5] or right[5]:
        return ordered[0] == ordered[1] and (left[5] or "") == (right[5] or "")
    if left[1] != right[1] or _precision(left) != _precision(right):
        return False
    return ordered[0] > ordered[1] if operator == "GreaterThan" else ordered[0] >= ordered[1]


def _numbers(version: re.Match[str]) -> tuple[int, int, int]:
    return int(version[2]), int(version[3] or 0), int(version[4] or 0)


def _precision(version: re.Match[str]) -> int:
    return sum(part is not None for part in version.group(2, 3, 4))


def size_mismatch(size_range: tuple[str, str] | None, size: str) -> Mismatch | None:
    """Return the mismatch of a parameter count outside the range. A model without a size fits, as in OME."""
    count = parameter_count(size) if size else None
    if size_range is None or count is None:
        return None
    least, most = (parameter_count(bound) for bound in size_range)
    if (least is None or least <= count) and (most is None or count <= most):
        return None
    bounds = " to ".join(bound or "any" for bound in size_range)
    return Mismatch("modelParameterSize", f"the model has {size} parameters, the runtime serves {bounds}")


def size_distance(size_range: tuple[str, str] | None, size: str) -> float:
    """Return how far the bounds lie from the model: the narrowest range wins a tie. 0 if either is not given."""
    count = parameter_count(size) if size else None
    if size_range is None or count is None:
        return 0.0
    return sum(abs(bound - count) for bound in map(parameter_count, size_range) if bound is not None)


def _pipeline(offered: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mismatch | None:
    """Compare diffusion pipelines: the model must have every part that the entry names."""
    if not offered:
        return None
    if not wanted:
        return Mismatch(
            "diffusionPipeline", "the model names no diffusion pipeline, the runtime asks for one", unspecified=True
        )
    if offered.get("className") and offered["className"] != wanted.get("className"):
        message = f"the model's pipeline is {wanted.get('className')}, the runtime serves {offered['className']}"
        return Mismatch("diffusionPipeline.className", message)
    required = {**offered.get("additionalComponents", {}), **{p: offered[p] for p in _PIPELINE_PARTS if offered.get(p)}}
    present = {**wanted.get("additionalComponents", {}), **{p: wanted[p] for p in _PIPELINE_PARTS if wanted.get(p)}}
    for part, needed in sorted(required.items()):
        had = present.get(part, {})
        if any(value and had.get(key) != value for key, value in needed.items()):
            return Mismatch(f"diffusionPipeline.{part}", f"the model's {part} is not the one that the runtime asks for")
    return None
