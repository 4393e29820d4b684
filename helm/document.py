"""Writes what follows from a chart's values.yaml: values.schema.json and the table in its README; and its files.

A key's description is the comment above it; a line `# @schema {…}` there adds to its schema. The shape of a planned
workload comes from the code that writes it, CustomResourceDefinitions from the types that read documents. `make charts`
runs this; a test compares what is committed with the result.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from schemas import crds

from pilotlight.k8s.manifest import Manifest, to_yaml
from pilotlight.plan.types import Plan, Scaling, Workload
from pilotlight.render import values_of

Json = Any
HERE: Final = Path(__file__).parent
CHARTS: Final = ("inference-service", "inference-platform")
START: Final = "<!-- values: made from values.yaml by helm/document.py -->\n"
END: Final = "<!-- end of values -->\n"
MARK: Final = "@schema "


class Value(NamedTuple):
    """One key of values.yaml; `default` is as it is written there."""

    path: tuple[str, ...]
    default: Json
    text: str
    schema: dict[str, Json]


def values(chart: Path) -> list[Value]:
    """Every key in the order of the file; a mapping's own keys follow it."""
    source = (chart / "values.yaml").read_text()
    root = yaml.compose(source, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, source.splitlines(), ()))


def _values(node: yaml.MappingNode, lines: list[str], parents: tuple[str, ...]) -> Iterator[Value]:
    for key, value in node.value:
        path = (*parents, key.value)
        text, schema = _comment(lines, key.start_mark.line)
        yield Value(path, yaml.SafeLoader("").construct_object(value, deep=True), text, schema)
        if isinstance(value, yaml.MappingNode) and not schema.get("additionalProperties"):
            yield from _values(value, lines, path)


def _comment(lines: list[str], at: int) -> tuple[str, dict[str, Json]]:
    """The comment right above a line, parted into prose and schema."""
    first = at
    while first and lines[first - 1].strip().startswith("#"):
        first -= 1
    said = [line.strip().removeprefix("#").strip() for line in lines[first:at]]
    schema = {}
    for line in said:
        if line.startswith(MARK):
            schema |= json.loads(line.removeprefix(MARK))
    return " ".join(line for line in said if not line.startswith(MARK)), schema


def schema_of(chart: Path) -> dict[str, Json]:
    """Unknown keys are mistakes, except in mappings that are empty by default: those are the user's own."""
    root: dict[str, Json] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": chart.name}
    root |= {"type": "object", "additionalProperties": False, "properties": {}}
    if chart.name == "inference-service":
        root["$defs"] = {"workload": workload_schema()}
    # Helm adds `global` to the values of every chart.
    root["properties"]["global"] = {"type": "object"}
    places: dict[tuple[str, ...], dict[str, Json]] = {(): root}
    for value in values(chart):
        made = {**_type_of(value.default), **value.schema}
        if value.text:
            made["description"] = value.text
        places[value.path] = places[value.path[:-1]]["properties"][value.path[-1]] = made
    return root


def _type_of(default: Json) -> dict[str, Json]:
    if isinstance(default, dict):
        return {"type": "object", "additionalProperties": False, "properties": {}} if default else {"type": "object"}
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", type(None): "null"}
    return {"type": names[type(default)]}


def workload_schema() -> dict[str, Json]:
    """What render writes for a workload: its keys, each with the kind of value that it has."""
    work = Workload("engine", "a", "", "raw", {}, Scaling("none", 1, 1))
    (written,) = values_of(Plan("a", "a", "raw", (work,), "a"))["workloads"]
    shape: dict[str, Json] = {"type": "object", "required": ["name", "mode", "template", "scaling"]}
    open_types = {"type": ["object", "integer", "null"]}
    shape["properties"] = {key: open_types if value is None else _loosely(value) for key, value in written.items()}
    return {**shape, "additionalProperties": False}


def _loosely(value: Json) -> dict[str, Json]:
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    kind = names[type(value)]
    return {"type": [kind, "null"] if kind == "integer" else kind}


def table_of(chart: Path) -> str:
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for value in values(chart):
        if value.text:
            default = json.dumps(value.default, ensure_ascii=False)
            rows.append(f"| `{'.'.join(value.path)}` | `{default}` | {value.text} |")
    return "\n".join(rows) + "\n"


def readme_of(chart: Path) -> str:
    """The README with its table made anew."""
    before, _, rest = (chart / "README.md").read_text().partition(START)
    return f"{before}{START}{table_of(chart)}{END}{rest.partition(END)[2]}"


def documents(chart: Path) -> dict[Path, str]:
    """Everything that is generated of a chart, by where it is kept."""
    schema = json.dumps(schema_of(chart), indent=2, ensure_ascii=False) + "\n"
    made = {chart / "values.schema.json": schema, chart / "README.md": readme_of(chart)}
    return made | (_of_platform(chart / "files") if chart.name == "inference-platform" else {})


def _of_platform(folder: Path) -> dict[Path, str]:
    """A chart reads only its own files, so what both tests run is kept twice."""
    asking = (HERE / "inference-service" / "files" / "ready.py").read_text()
    return {folder / "ready.py": asking, **definitions(folder / "crds")}


def definitions(folder: Path) -> dict[Path, str]:
    """Out of the templates' reach: a schema is full of words that helm must not read."""
    made = [Manifest(crds.definition(kind)) for kind in crds.KINDS]
    return {folder / f"{manifest.name}.yaml": to_yaml([manifest]).removeprefix("---\n") for manifest in made}


def main() -> None:
    for name in sys.argv[1:] or CHARTS:
        for path, text in documents(HERE / name).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
