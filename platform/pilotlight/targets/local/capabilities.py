"""What the targets of the embedded platform offer a plan, by the field names of the plan's Capabilities."""

from collections.abc import Mapping
from typing import Any

from pilotlight.contract import LOCAL_CAPABILITIES

Json = Any


def capabilities_of(target: str, options: Mapping[str, str]) -> Mapping[str, Json]:
    """Return the capabilities of local, docker or slurm; `options` are those of the target."""
    if target == LOCAL_CAPABILITIES["target"]:
        return LOCAL_CAPABILITIES
    values: dict[str, Json] = {"target": target, "target_options": dict(options), "access_at_gateway": True}
    # As installed: no image is pulled, so none has a version.
    installed = target == "slurm" and options.get("container", "none") == "none"
    return {**values, "image": LOCAL_CAPABILITIES["image"]} if installed else values
