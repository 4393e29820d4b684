"""Annotations under `pilotlight.dev/`, and the canary policy as `spec.canary`; `load` runs both on every document.

An unknown annotation is an error, although Kubernetes would ignore it: a misspelt `pilotlight.dev/auth-tokens` would
leave a service open to requests without a token.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s import names
from pilotlight.k8s.quantities import parse_quantity, unsigned_duration
from pilotlight.spec.field_types import child_path
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.yaml_nodes import Node, parse
from pilotlight.wire.messages import suggestion

PREFIX: Final = f"{names.DOMAIN}/"
OF_DOCUMENT: Final = "metadata.annotations"
PATH: Final = "spec.canary"
CHOICES: Final = {
    names.ANNOTATION_PARK: ("true", "false"), names.ANNOTATION_AUDIT: ("true", "false"),
    names.ANNOTATION_EXPOSE: ("LoadBalancer",),
    names.ANNOTATION_ISOLATION: names.ISOLATIONS, names.ANNOTATION_MEMORY_CHECK: ("on", "off"),
    names.ANNOTATION_DISAGGREGATION: names.DISAGGREGATIONS, names.ANNOTATION_IMAGE_VARIANT: names.IMAGE_VARIANTS,
    names.ANNOTATION_GPU_PINNED: ("true", "false"),
}  # fmt: skip
# Whether a text is a value, and what it must be.
_FORMS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    names.ANNOTATION_GPU_MEMORY: (
        lambda text: text == "auto" or (parse_quantity(text) or 0) >= 1, 'a quantity such as "8Gi", or "auto"'
    ),
    names.ANNOTATION_GPU_RESIDENCE: (lambda text: unsigned_duration(text) is not None, 'a duration such as "30s"'),
    names.ANNOTATION_MODEL_NAMES: (
        re.compile(r"\s*(?:[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}\s*(?:,\s*|$))*").fullmatch,
        'names of models separated by commas, such as "llama, gpt-4o"',
    ),
}  # fmt: skip


def check_annotations(document: Node, problems: Problems) -> None:
    """Report annotations of our domain that have no effect (PL115), and invalid values (PL116, PL117, PL118)."""
    service = document.text("kind").endswith(("InferenceService", "InferenceGraph"))
    on_document = names.SERVICE_ANNOTATIONS if service else names.CATALOGUE_ANNOTATIONS
    for path, node in _annotations(document, ""):
        known = on_document if path == OF_DOCUMENT else names.COMPONENT_ANNOTATIONS
        if service and path == OF_DOCUMENT:
            _check_access(path, dict(_entries(node)), problems)
        for name, value in _entries(node):
            if name.startswith(PREFIX) and name not in known:
                elsewhere = path != OF_DOCUMENT and name in on_document
                reason = f"has no effect here; move it to {OF_DOCUMENT}" if elsewhere else _unknown(name, known)
                problems.error("PL115", value.key_location, child_path(path, name), reason)
            elif name == names.ANNOTATION_CANARY and isinstance(value.value, str):
                from pilotlight.spec.canary_policy import parse_block, parse_policy  # few documents need it

                try:
                    parse_policy(parse_block(value.value))
                except UsageError as error:
                    problems.error("PL116", value.location, child_path(path, name), str(error))
            elif name in CHOICES and value.value not in CHOICES[name]:
                message = f"= {value.value}, must be " + " or ".join(f'"{choice}"' for choice in CHOICES[name])
                problems.error("PL117", value.location, child_path(path, name), message)
            elif name in _FORMS and not _FORMS[name][0](str(value.value)):
                message = f"= {value.value}, must be {_FORMS[name][1]}"
                problems.error("PL117", value.location, child_path(path, name), message)


def _check_access(path: str, annotations: dict[str, Node], problems: Problems) -> None:
    written = {name: str(annotations[name].value) for name in names.ACCESS_ANNOTATIONS if name in annotations}
    if not written:
        return
    from pilotlight.k8s.access_annotations import check  # few documents need it

    try:
        check(written, verifies=False)
    except PlatformError as error:
        _, name, message = str(error).split(" ", 2)  # annotation NAME …
        variable = "; --env substitutes ${…}" if "${" in written.get(name, "") else ""
        hint = f": {error.hint}{variable}" if error.hint else variable
        problems.error("PL118", annotations[name].location, child_path(path, name), f"{message}{hint}")


def _unknown(name: str, known: tuple[str, ...]) -> str:
    short = tuple(each.removeprefix(PREFIX) for each in known)
    near = suggestion(name.removeprefix(PREFIX), short).replace("mean ", f"mean {PREFIX}")
    return f"is not a Pilotlight annotation{near or f'; known: {PREFIX}' + ', '.join(short)}"


def _annotations(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield path and node of every map called `annotations`, at any depth."""
    if isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _annotations(child, f"{path}[{index}]")
    for name, child in _entries(node):
        if name == "annotations":
            yield child_path(path, name), child
        else:
            yield from _annotations(child, child_path(path, name))


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node.value, dict):
        yield from node.value.items()


def move_to_annotation(document: Node, problems: Problems) -> None:
    """Replace `spec.canary` by the annotation that later stages and targets read, in place.

    So the stored document stays valid for KServe and OME; a list there is KServe's own field. An invalid policy is a
    problem (PL116) and dropped.
    """
    spec = document.get("spec")
    block = spec.get("canary") if spec else None
    if spec is None or block is None or not isinstance(block.value, dict):
        return
    assert isinstance(spec.value, dict)
    del spec.value["canary"]
    from pilotlight.spec.canary_policy import parse_policy

    try:
        parse_policy(block.plain())
    except UsageError as error:
        key = block.get(str(error).partition(" ")[0]) or block  # most messages begin with the key
        problems.error("PL116", key.key_location, PATH, str(error))
        return
    annotations = _child_map(_child_map(document, "metadata", block.key_location), "annotations", block.key_location)
    if not isinstance(annotations.value, dict):
        return  # reported when the annotations are validated
    if names.ANNOTATION_CANARY in annotations.value:
        message = f"excludes the annotation {names.ANNOTATION_CANARY}, which sets the same; keep one"
        problems.error("PL111", block.key_location, PATH, message)
        return
    annotations.value[names.ANNOTATION_CANARY] = Node(block.location, json.dumps(block.plain()), block.key_location)


def move_to_spec(document: Node) -> None:
    """Replace the annotation by `spec.canary`, in place, so that `--set` can edit a stored document."""
    spec, metadata = document.get("spec"), document.get("metadata")
    annotations = metadata.get("annotations") if metadata else None
    written = annotations.get(names.ANNOTATION_CANARY) if annotations else None
    if spec is None or annotations is None or written is None or not isinstance(written.value, str):
        return
    blocks = parse(written.value, written.location.file, silent := Problems())
    valid = not silent.errors and len(blocks) == 1 and isinstance(blocks[0].value, dict)
    if not valid or not isinstance(spec.value, dict) or "canary" in spec.value:
        return  # reported when the annotation is validated
    assert isinstance(annotations.value, dict)
    del annotations.value[names.ANNOTATION_CANARY]
    blocks[0].key_location = written.key_location
    spec.value["canary"] = blocks[0]


def _child_map(node: Node, name: str, location: SourceLocation) -> Node:
    """Return the child map of that name, creating it where there is none."""
    if not isinstance(node.value, dict):
        return node
    if name not in node.value or node.value[name].value is None:
        node.value[name] = Node(location, {}, location)
    return node.value[name]
