"""Text of the section on formats in docs/reference/formats.md, made from the catalogue."""

from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.catalogue.catalogue import builtin
from pilotlight.catalogue.runtime_selection import select_runtime
from pilotlight.plan.component_runtime import runs_images, runtime_host
from pilotlight.plan.support.image_variants import select_variant
from pilotlight.plan.support.target_support import TARGETS
from pilotlight.plan.types import Capabilities
from pilotlight.spec.service import Component, ModelSpec, Service
from pilotlight.wire.model_formats import FORMATS
from pilotlight_predictor.core.backend_table import find_backend

INTRODUCTION: Final = """# Formats

`platformctl deploy ./model.onnx` detects the format of a file, a folder or a URI
([details](../concepts/platform.md#a-model-on-this-machine)); a manifest gives it in `modelFormat.name`, by name or
alias. `local`, `docker` and `slurm` serve local files; elsewhere the model must be in a
[store](model-repository.md#where-models-come-from).

## Which files are which format

| `modelFormat.name` | content | aliases | files | extra |
|---|---|---|---|---|
"""
RUNTIMES: Final = """
## Which runtime serves it

**ours**: our predictor is selected. *ours*: our predictor, if the manifest sets `runtime: pilotlight`. own image: our
predictor, in [your own image](../how-to/kubernetes.md#images) with the library. Another name: that
[runtime](#which-runtime) with its image; (v2): for `protocolVersion: v2`. –: not supported there;
`platformctl explain --runtime` shows why.

| format | """
NOTES: Final = """
A pickle runs code when it is loaded. Our predictor loads one only if its SHA-256 is pinned: `deploy ./wine.joblib
--trust-pickle`, or `INFERENCE_TRUST_PICKLE: FILE=SHA256` in the `env` of the model ("trusted" above). On targets that
run other images, a possible pickle without a pin goes to KServe's servers, which load any.
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
    """Return what a manifest may say, the shortest first: no more than the format, the protocol V2, our runtime."""
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
        own = [row.name for row in FORMATS if row.backend == each.backend] == [each.name]
        backend = find_backend(each.backend) if own else None  # it has endings that many formats share, such as .json
        names = (*each.suffixes, *each.signs, *(Path(file).suffix for file in (backend.files if backend else ())))
        endings = [f"`{ending}`" for ending in dict.fromkeys(names)]
        extra = f"`{each.extra}`" if each.extra else ""
        old = files.get(each.name, (each.phrase, [], [], extra))
        files[each.name] = (old[0], [*old[1], *map("`{}`".format, each.aliases)], [*old[2], *endings], old[3])
    lines = [
        f"| `{name}` | {phrase} | {', '.join(aliases)} | {', '.join(endings)} | {extra} |\n"
        for name, (phrase, aliases, endings, extra) in files.items()
    ]
    head = f"{' | '.join(TARGETS)} |\n|---|{'---|' * len(TARGETS)}\n"
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows():
        alike.setdefault(tuple(shown(row, target) for target in TARGETS), []).append(row.label)
    body = [f"| {'; '.join(labels)} | {' | '.join(texts)} |\n" for texts, labels in alike.items() if {*texts} != {"–"}]
    return "".join([INTRODUCTION, *lines, RUNTIMES, head, *body, NOTES])
