"""Example request of a model, `model.example` of a document: inline, or the path of a JSON file, which is read in here.

The predictor answers it before a replica is ready, and probes of a canary repeat it. Later stages and stored documents
have it inline: neither a cluster nor a later rollback can read the files of this machine.
"""

from collections.abc import Callable, Iterator
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.spec.component_fields import resolve_uri
from pilotlight.spec.field_types import child_path
from pilotlight.spec.problems import Problems
from pilotlight.spec.yaml_nodes import Node, parse

EXAMPLE: Final = "example"
MODEL_FIELDS: Final = (EXAMPLE, "warmup")
# Keys of the requests that the predictor's warm-up takes: V2 and V1. OpenAI's are for probes of a canary only.
WARMUP_KEYS: Final = ("inputs", "instances")


def inline_examples(document: Node, problems: Problems, read_text: Callable[[str], str]) -> None:
    """Replace paths by the content of their files and check every example, in place; an invalid one is dropped.

    Paths are relative to the document, as those of storageUri. `read_text` may raise OSError or ValueError.
    """
    for path, model in _models(document):
        assert isinstance(model.value, dict)
        field = model.value.get(EXAMPLE)
        if field is None or field.value is None:
            continue
        example = _read(field, path, problems, read_text)
        if example is None:
            del model.value[EXAMPLE]
        else:
            model.value[EXAMPLE] = example


_SOURCES: Final = frozenset({"storageUri", "storage", "modelFormat", "protocolVersion"})


def _read(field: Node, path: str, problems: Problems, read_text: Callable[[str], str]) -> Node | None:
    from pilotlight.spec.canary_policy import parse_example  # few documents have one

    example, origin = field, path
    if isinstance(field.value, str) and not field.value.lstrip().startswith("{"):
        file = resolve_uri(
            field.value if field.value.startswith(("./", "../", "/")) else f"./{field.value}", field.location
        )
        origin = f"{file}:"
        try:
            text = read_text(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.error("PL112", field.location, path, f"{file} cannot be read: {reason}")
            return None
        example = Node(field.location, text, field.key_location)
    try:
        text = parse_example(origin, example.plain())
    except UsageError as error:
        problems.error("PL104", field.location, path, str(error).removeprefix(origin).lstrip())
        return None
    nodes = parse(text, field.location.file, Problems())
    return Node(field.location, nodes[0].value, field.key_location)


def _models(document: Node) -> Iterator[tuple[str, Node]]:
    """Yield path of the example and node of every model of a document of either group."""
    spec = document.get("spec")
    variants = spec.get("canary") if spec else None
    entries = enumerate(variants.value) if variants is not None and isinstance(variants.value, list) else ()
    holders = [("spec", spec), ("spec.predictor", spec.get("predictor") if spec else None)]
    holders += [(f"spec.canary[{index}].predictor", entry.get("predictor")) for index, entry in entries]
    for path, holder in holders:
        children = holder.value if holder is not None and isinstance(holder.value, dict) else {}
        for name, child in children.items():
            # A framework predictor (`sklearn: …`) is a model too; labels and the like are not.
            if (
                isinstance(child.value, dict)
                and EXAMPLE in child.value
                and (name == "model" or _SOURCES & {*child.value})
            ):
                yield child_path(child_path(path, name), EXAMPLE), child
