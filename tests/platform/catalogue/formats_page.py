"""Text of the section on formats in docs/reference/formats.md, made from the catalogue."""

from dataclasses import replace
from typing import Final, NamedTuple

from pilotlight.catalogue.catalogue import builtin
from pilotlight.catalogue.runtime_selection import select_runtime
from pilotlight.plan.component_runtime import runs_images, runtime_host
from pilotlight.plan.support.image_variants import select_variant
from pilotlight.plan.support.target_support import TARGETS
from pilotlight.plan.types import Capabilities
from pilotlight.spec.service import Component, ModelSpec, Service
from pilotlight.wire.model_formats import FORMATS

INTRODUCTION: Final = """# Formats

This section is generated from `wire/model_formats`, the [catalogue](#the-catalogue-runtimes-models-accelerators) and
the [targets](../how-to/targets.md); tests keep them equal, and plan a document for each cell.

`platformctl deploy ./model.onnx` looks at a file, a folder or a URI, says what it is and deploys it
([page](../concepts/platform.md#a-model-on-this-machine)). A document names the format in
`modelFormat.name`, or by one of its other names. Files of this machine are served on `local`, `docker` and `slurm`;
elsewhere the model lies in a [store](model-repository.md#where-models-come-from).

## Which files are which format

| `modelFormat.name` | what | also called | files | install |
|---|---|---|---|---|
"""
RUNTIMES: Final = """
## Which runtime serves it

**ours**: our own predictor is chosen. *ours*: it serves the format if `runtime: pilotlight` names it. own image: our
predictor, in an [image of yours](../how-to/kubernetes.md#images) with the library, since none of ours has it. Any
other name: that [runtime](#which-runtime) is chosen, with its image; (v2): for `protocolVersion: v2`. –: nothing serves
it there; `platformctl explain
--runtime` says why.

| format | """
NOTES: Final = """
A pickle runs code when it is loaded. Our predictor loads one only if its SHA-256 is pinned: `deploy ./wine.joblib
--trust-pickle`, or `INFERENCE_TRUST_PICKLE: FILE=SHA256` in the `env` of the model. Where other images run, a model
that may be a pickle and is not pinned goes to KServe's servers instead, which load any.
"""


class Row(NamedTuple):
    """A model of the second table: `label`, its format and URI, and whether its pickle is trusted."""

    label: str
    format: str
    uri: str
    trusted: bool = False


def rows() -> list[Row]:
    """Return a row for each format, and those that a pickle's trust or the ending of the URI changes."""
    names = dict.fromkeys(row.name for row in FORMATS)
    plain = [Row(name, name, "s3://models/it") for name in names]
    special = [Row(f"{name}, trusted", name, "s3://models/it", trusted=True) for name in ("sklearn", "mlflow")]
    files = [
        Row("sklearn, `.skops`", "sklearn", "s3://models/it.skops"),
        Row("pytorch, `.pt`", "pytorch", "s3://m/it.pt"),
    ]
    return sorted([*plain, *special, *files], key=lambda row: list(names).index(row.format))


def specs(row: Row) -> list[ModelSpec]:
    """Return what a document may say, the shortest first: no more than the format, the protocol V2, our runtime."""
    env = [{"name": "INFERENCE_TRUST_PICKLE", "value": f"it={'0' * 64}"}] if row.trusted else []
    plain = ModelSpec(row.format, storage_uri=row.uri, container={"env": env})
    return [plain, replace(plain, protocol="v2"), replace(plain, runtime="pilotlight")]


def cell(row: Row, target: str) -> tuple[str, ModelSpec | None]:
    """Return the name of the runtime that serves it, and what a document must say for it; empty: none does."""
    for spec in specs(row):
        component = Component("predictor", model=spec)
        service = Service("kserve", "it", "default", {"predictor": component})
        host = runtime_host(Capabilities(target=target), service)
        selection = select_runtime(service, component, builtin(), host)
        if selection.runtime is not None and not selection.problems:
            return selection.runtime.name, spec
    return "", None


def lacks_image(row: Row, target: str) -> bool:
    return runs_images(Capabilities(target=target)) and select_variant(row.format, 0) is None


def shown(row: Row, target: str) -> str:
    name, spec = cell(row, target)
    if name == "pilotlight" and lacks_image(row, target):
        return "own image"
    if name == "pilotlight":
        return "*ours*" if spec and spec.runtime else "**ours**"
    return f"`{name}`{' (v2)' if spec and spec.protocol else ''}" if name else "–"


def page() -> str:
    files: dict[str, tuple[str, list[str], list[str], str]] = {}
    for each in FORMATS:
        endings = [f"`{ending}`" for ending in (*each.suffixes, *each.signs)]
        install = f"`pilotlight[{each.extra}]`" if each.extra else ""
        old = files.get(each.name, (each.phrase, [], [], install))
        files[each.name] = (old[0], [*old[1], *map("`{}`".format, each.aliases)], [*old[2], *endings], old[3])
    lines = [
        f"| `{name}` | {phrase} | {', '.join(aliases)} | {', '.join(endings)} | {install} |\n"
        for name, (phrase, aliases, endings, install) in files.items()
    ]
    head = f"{' | '.join(TARGETS)} |\n|---|{'---|' * len(TARGETS)}\n"
    cells = {row.label: [shown(row, target) for target in TARGETS] for row in rows()}
    body = [f"| {label} | {' | '.join(texts)} |\n" for label, texts in cells.items() if set(texts) != {"–"}]
    return "".join([INTRODUCTION, *lines, RUNTIMES, head, *body, NOTES])
