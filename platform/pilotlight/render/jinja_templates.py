"""Jinja templates filled into documents, with no user data in the text that is parsed as YAML.

`{{ value | tojson }}` leaves a numbered mark in the text and stores the value; the marks of the parsed document are
replaced afterwards. So no string can change its structure, and the parsed text can be cached.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pilotlight
from pilotlight.errors import InternalError

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

Json = Any
FOLDERS: Final = ("knative", "keda")
_VALUES: Final = "_values"
_MARK: Final = re.compile(r"⟦(\d+)⟧")


def folder(name: str) -> Path:
    """Return a template folder: inside the package in an installed wheel, else in the repository."""
    package = Path(pilotlight.__file__).parent
    installed = package / "templates" / name
    return installed if installed.is_dir() else package.parents[1] / name


def document(template: str, values: Mapping[str, Json]) -> dict[str, Json]:
    """Fill a template such as `knative/service.yaml.j2`."""
    inserted: list[Json] = []
    text = environment().get_template(template).render({**values, _VALUES: inserted})
    skeleton, marks = _parsed(template, text)
    if marks != len(inserted):
        raise InternalError(f"{template} inserts a value inside a scalar: write it as a whole key or value")
    filled = _filled(skeleton, inserted)
    assert isinstance(filled, dict)
    return filled


def plain(value: Json) -> Json:
    """Return a copy of dicts, lists and scalars only. Raise InternalError for what JSON cannot represent."""
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise InternalError(f"{value!r} ({type(value).__name__}) is not allowed in a manifest")


@cache
def environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, PrefixLoader, StrictUndefined, pass_context

    @pass_context
    def insert(context: "Context", value: Json) -> str:
        inserted: list[Json] = context[_VALUES]
        inserted.append(value)
        return f'"⟦{len(inserted) - 1}⟧"'

    jinja = Environment(
        loader=PrefixLoader({name: FileSystemLoader(folder(name)) for name in FOLDERS}),
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True,  # noqa: S701 - YAML, no HTML
    )  # fmt: skip
    jinja.filters["tojson"] = insert
    return jinja


@lru_cache(maxsize=1024)
def _parsed(template: str, text: str) -> tuple[Json, int]:
    """Return the document with marks in place of values, and the number of marks."""
    import yaml

    try:
        skeleton = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe either way
    except yaml.YAMLError as error:
        raise InternalError(f"{template} is not YAML once its values are left out: {error}") from error
    return skeleton, _count_marks(skeleton)


def _count_marks(node: Json) -> int:
    if isinstance(node, dict):
        return sum(_count_marks(key) + _count_marks(value) for key, value in node.items())
    if isinstance(node, list):
        return sum(map(_count_marks, node))
    return int(isinstance(node, str) and _MARK.fullmatch(node) is not None)


def _filled(node: Json, inserted: Sequence[Json]) -> Json:
    """Return a copy of the cached document with the values at their marks."""
    if isinstance(node, dict):
        return {_filled(key, inserted): _filled(value, inserted) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(item, inserted) for item in node]
    if isinstance(node, str) and (mark := _MARK.fullmatch(node)):
        return plain(inserted[int(mark[1])])
    return node
