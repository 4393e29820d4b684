"""Adjustments of a merged container to accelerator and nodes: image tags, overrides, parallelism. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.spec.merge import strategic_merge
from pilotlight.spec.model import Runtime, SupportedFormat

Json = Any
Object = dict[str, Json]
PARALLELISM: Final = "PARALLELISM_SIZE"
_TAG: Final = re.compile(r":[\w.\-]+$")
# KServe publishes these with `-gpu` in the tag; vLLM's CPU build is a repository of its own.
_GPU_TAGGED: Final = ("tensorflow-serving", "torchserve", "huggingfaceserver")
_PARALLEL_FLAGS: Final = {
    "tensorParallelSize": ("--tp-size", "--tp", "--tensor-parallel-size"),
    "pipelineParallelSize": ("--pp-size", "--pp", "--pipeline-parallel-size"),
    "dataParallelSize": ("--dp-size", "--dp", "--data-parallel-size"),
}


def image_for(image: str, runtime: Runtime, runtime_version: str, gpus: int) -> str:
    """Return KServe's image: with tag `runtimeVersion`, else the GPU or CPU build of the server type. Digests stay."""
    if "@sha256:" in image or runtime.group != "kserve":
        return image
    if runtime_version:
        return _TAG.sub("", image) + f":{runtime_version}"
    if gpus and runtime.server_type in _GPU_TAGGED and _TAG.search(image) and not image.endswith("-gpu"):
        return f"{image}-gpu"
    tag = _TAG.search(image)
    if not gpus and runtime.server_type == "vllmserver" and tag and not image[: tag.start()].endswith("-cpu"):
        return f"{image[: tag.start()]}-cpu{tag[0]}"
    return image


def with_parallelism(container: Mapping[str, Json], gpus: int, nodes: int) -> Object:
    """Set OME's PARALLELISM_SIZE: devices of all pods of a group. Eight on each of two nodes make 16."""
    if not gpus:
        return dict(container)
    return strategic_merge(container, {"env": [{"name": PARALLELISM, "value": str(gpus * nodes)}]})


def with_accelerator_config(container: Mapping[str, Json], entry: SupportedFormat | None, cls: str) -> Object:
    """Apply the overrides of a format for an accelerator class: parallelism, arguments by flag, variables by name."""
    config = (entry.accelerators.get(cls) if entry is not None else None) or {}
    tuned = dict(container)
    sizes = config.get("tensorParallelismOverride") or {}
    for field, flags in _PARALLEL_FLAGS.items():
        if sizes.get(field):
            tuned = {**tuned, **_with_flag(tuned, flags, str(sizes[field]))}
    if config.get("runtimeArgsOverride"):
        tuned["args"] = merge_args(tuned.get("args", ()), config["runtimeArgsOverride"])
    variables = [{"name": name, "value": value} for name, value in (config.get("environmentOverride") or {}).items()]
    return strategic_merge(tuned, {"env": variables}) if variables else tuned


def _with_flag(container: Mapping[str, Json], flags: Sequence[str], value: str) -> Object:
    """Replace a flag's value in command and args, written as one word or as two."""
    changed = {}
    for part in ("command", "args"):
        words = list(container.get(part, ()))
        for at, word in enumerate(words):
            flag, joined, _ = word.partition("=")
            if flag in flags and joined:
                words[at] = f"{flag}={value}"
            elif flag in flags and at + 1 < len(words):
                words[at + 1] = value
        if words:
            changed[part] = words
    return changed


def merge_args(base: Sequence[str], over: Sequence[str]) -> list[str]:
    """Merge arguments by flag: `over` replaces in place what it repeats and appends the rest."""
    merged = {group[0].partition("=")[0]: group for group in _argument_groups(base)}
    merged |= {group[0].partition("=")[0]: group for group in _argument_groups(over)}
    return [word for group in merged.values() for word in group]


def _argument_groups(words: Sequence[str]) -> list[list[str]]:
    """Group each flag with the value that follows it; other words stand alone."""
    groups: list[list[str]] = []
    for word in words:
        last = groups[-1] if groups else [""]
        takes_value = len(last) == 1 and last[0].startswith("-") and "=" not in last[0]
        if takes_value and not word.startswith("-"):
            last.append(word)
        else:
            groups.append([word])
    return groups
