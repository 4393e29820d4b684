"""Last touches that both projects give a merged container: image tags, accelerator overrides, parallelism. Pure.

plan() applies them once the accelerator and the number of nodes are known.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.spec.merge import strategic
from pilotlight.spec.model import Runtime, SupportedFormat

Json = Any
Object = dict[str, Json]
PARALLELISM: Final = "PARALLELISM_SIZE"
_TAG: Final = re.compile(r":[\w.\-]+$")
# KServe publishes these with `-gpu` in the tag; vLLM's build without a GPU is a repository of its own.
_GPU_TAGGED: Final = ("tensorflow-serving", "torchserve", "huggingfaceserver")
_PARALLEL_FLAGS: Final = {
    "tensorParallelSize": ("--tp-size", "--tp", "--tensor-parallel-size"),
    "pipelineParallelSize": ("--pp-size", "--pp", "--pipeline-parallel-size"),
    "dataParallelSize": ("--dp-size", "--dp", "--data-parallel-size"),
}


def image_for(image: str, runtime: Runtime, runtime_version: str, gpus: int) -> str:
    """KServe's image: `runtimeVersion` is the tag; else the GPU or CPU build that the server type has. Digests stay."""
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
    """OME's PARALLELISM_SIZE: devices over all pods of a group. Eight on each of two nodes make 16."""
    if not gpus:
        return dict(container)
    return strategic(container, {"env": [{"name": PARALLELISM, "value": str(gpus * nodes)}]})


def with_accelerator_config(container: Mapping[str, Json], line: SupportedFormat | None, cls: str) -> Object:
    """What the runtime's line says for the chosen class: parallelism, arguments by their flag, variables by name."""
    config = (line.accelerators.get(cls) if line is not None else None) or {}
    tuned = dict(container)
    sizes = config.get("tensorParallelismOverride") or {}
    for field, flags in _PARALLEL_FLAGS.items():
        if sizes.get(field):
            tuned = {**tuned, **_replaced(tuned, flags, str(sizes[field]))}
    if config.get("runtimeArgsOverride"):
        tuned["args"] = merge_args(tuned.get("args", ()), config["runtimeArgsOverride"])
    variables = [{"name": name, "value": value} for name, value in (config.get("environmentOverride") or {}).items()]
    return strategic(tuned, {"env": variables}) if variables else tuned


def _replaced(container: Mapping[str, Json], flags: Sequence[str], value: str) -> Object:
    """A flag's value in command and args, written as one word or as two."""
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
    """Arguments by their flag: `over` replaces in place what it names again and adds the rest."""
    merged = {group[0].partition("=")[0]: group for group in _groups(base)}
    merged |= {group[0].partition("=")[0]: group for group in _groups(over)}
    return [word for group in merged.values() for word in group]


def _groups(words: Sequence[str]) -> list[list[str]]:
    """A flag with the value that follows it; anything else alone."""
    groups: list[list[str]] = []
    for word in words:
        last = groups[-1] if groups else [""]
        takes_value = len(last) == 1 and last[0].startswith("-") and "=" not in last[0]
        if takes_value and not word.startswith("-"):
            last.append(word)
        else:
            groups.append([word])
    return groups
