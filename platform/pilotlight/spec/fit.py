"""Does one line of a runtime's supportedModelFormats fit a model? Every difference as one sentence, in OME's terms.

OME compares property by property and takes a property that only one side names for a difference. A line of ours may
say `*`: it takes any value, and none. Used by select.py, once per line; pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pilotlight.spec.model import BaseModel, SupportedFormat
from pilotlight.spec.sizes import parameters

ANY: Final = "*"
_VERSION: Final = re.compile(r"(v?)(0|[1-9]\d*)(?:\.(0|[1-9]\d*))?(?:\.(0|[1-9]\d*)([.+-].+)?)?")
_GUESSED: Final = ("modelFormat.name", "modelFramework.name")
_PIPELINE_PARTS: Final = ("scheduler", "textEncoder", "tokenizer", "transformer", "vae")


class Mismatch(NamedTuple):
    """`unsaid`: the model's document is silent where the runtime asks; on a cluster OME reads it from the weights."""

    field: str
    message: str
    unsaid: bool = False


def mismatches(line: SupportedFormat, model: BaseModel) -> tuple[Mismatch, ...]:
    """Everything that keeps this line from serving this model; empty: it fits. What was guessed was not said."""
    return tuple(
        found._replace(unsaid=True) if model.guessed and found.field in _GUESSED else found
        for found in (
            _name("format", "modelFormat.name", line.name, model.format),
            _version("format", "modelFormat.version", line.version, model.format_version, line.operator),
            _name("framework", "modelFramework.name", line.framework, model.framework),
            _framework_version(line, model),
            _name("architecture", "modelArchitecture", line.architecture, model.architecture),
            _name("quantization", "quantization", line.quantization, model.quantization),
            _pipeline(line.pipeline, model.pipeline),
        )
        if found
    )


def _name(what: str, field: str, offered: str, wanted: str) -> Mismatch | None:
    if ANY in (offered, wanted) or offered == wanted:
        return None
    if not wanted:
        return Mismatch(field, f"the model does not say its {what}, the runtime asks for {offered}", unsaid=True)
    if not offered:
        return Mismatch(field, f"the model has {what} {wanted}, the runtime names none")
    return Mismatch(field, f"the model has {what} {wanted}, the runtime serves {offered}")


def _framework_version(line: SupportedFormat, model: BaseModel) -> Mismatch | None:
    if line.framework in ("", ANY) or line.framework != model.framework:
        return None
    offered, wanted = line.framework_version, model.framework_version
    return _version("framework", "modelFramework.version", offered, wanted, line.framework_operator)


def _version(what: str, field: str, offered: str, wanted: str, operator: str) -> Mismatch | None:
    if offered in (ANY, wanted):
        return None
    if not wanted:
        return Mismatch(
            field, f"the model does not say its {what} version, the runtime asks for {offered}", unsaid=True
        )
    if not offered:
        return Mismatch(field, f"the model has {what} version {wanted}, the runtime names none")
    if version_fits(offered, wanted, operator):
        return None
    return Mismatch(field, f"the model has {what} version {wanted}, the runtime serves {operator} {offered}")


def version_fits(offered: str, wanted: str, operator: str = "Equal") -> bool:
    """OME's comparison, the runtime's version on the left: `GreaterThanOrEqual 4.50` serves a model of 4.43.

    Development builds and differing precision (4.43 against 4.43.0) compare only as equal.
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
    """Outside the runtime's range of parameter counts. A model without a size fits every range, as in OME."""
    count = parameters(size) if size else None
    if size_range is None or count is None:
        return None
    least, most = (parameters(bound) for bound in size_range)
    if (least is None or least <= count) and (most is None or count <= most):
        return None
    bounds = " to ".join(bound or "any" for bound in size_range)
    return Mismatch("modelParameterSize", f"the model has {size} parameters, the runtime serves {bounds}")


def size_distance(size_range: tuple[str, str] | None, size: str) -> float:
    """How wide the range lies around the model: the narrowest wins a tie. 0 where one of them does not say."""
    count = parameters(size) if size else None
    if size_range is None or count is None:
        return 0.0
    return sum(abs(bound - count) for bound in map(parameters, size_range) if bound is not None)


def _pipeline(offered: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mismatch | None:
    """A diffusion pipeline fits when it has every part that the line names."""
    if not offered:
        return None
    if not wanted:
        return Mismatch(
            "diffusionPipeline", "the model names no diffusion pipeline, the runtime asks for one", unsaid=True
        )
    if offered.get("className") and offered["className"] != wanted.get("className"):
        message = f"the model's pipeline is {wanted.get('className')}, the runtime serves {offered['className']}"
        return Mismatch("diffusionPipeline.className", message)
    ours = {**offered.get("additionalComponents", {}), **{p: offered[p] for p in _PIPELINE_PARTS if offered.get(p)}}
    theirs = {**wanted.get("additionalComponents", {}), **{p: wanted[p] for p in _PIPELINE_PARTS if wanted.get(p)}}
    for part, needed in sorted(ours.items()):
        had = theirs.get(part, {})
        if any(value and had.get(key) != value for key, value in needed.items()):
            return Mismatch(f"diffusionPipeline.{part}", f"the model's {part} is not the one that the runtime asks for")
    return None
