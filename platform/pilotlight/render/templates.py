"""Templates to documents: the only place that knows Jinja. Called by objects.py with the values of one service.

Templates write `{{ value | tojson }}` wherever a value goes. Here that filter leaves a numbered mark in the text and
keeps the value aside; the text, which then holds nothing of the user's, is parsed as YAML, and the marks are replaced
by the values. So no string can change a document's structure, not even where JSON is not quite YAML (`1e5`, lone
surrogates, keys of more than 1,024 characters), and a shape that was parsed once is never parsed again.
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
    from jinja2 import Environment, Template
    from jinja2.runtime import Context

Json = Any
FOLDERS: Final = ("knative", "keda")
_KEPT: Final = "_kept"
_MARK: Final = re.compile(r"⟦(\d+)⟧")


def folder(name: str) -> Path:
    """Where the templates of one folder are: beside the package in an installed wheel, else in the repository."""
    package = Path(pilotlight.__file__).parent
    installed = package / "templates" / name
    return installed if installed.is_dir() else package.parents[1] / name


def document(template: str, values: Mapping[str, Json]) -> dict[str, Json]:
    """What `knative/service.yaml.j2` says for these values."""
    kept: list[Json] = []
    text = _template(template).render({**values, _KEPT: kept})
    skeleton, marks = _parsed(template, text)
    if marks != len(kept):
        raise InternalError(f"{template} inserts a value where YAML expects none: write it as a whole key or value")
    filled = _filled(skeleton, kept)
    assert isinstance(filled, dict)
    return filled


def plain(value: Json) -> Json:
    """A copy made of dicts, lists and scalars alone: what JSON can say."""
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise InternalError(f"{value!r} ({type(value).__name__}) has no place in a manifest")


@cache
def environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, PrefixLoader, StrictUndefined, pass_context

    @pass_context
    def keep(context: "Context", value: Json) -> str:
        kept: list[Json] = context[_KEPT]
        kept.append(value)
        return f'"⟦{len(kept) - 1}⟧"'

    made = Environment(
        loader=PrefixLoader({name: FileSystemLoader(folder(name)) for name in FOLDERS}),
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True,  # noqa: S701 - YAML, no HTML
    )  # fmt: skip
    made.filters["tojson"] = keep
    return made


@cache
def _template(name: str) -> "Template":
    return environment().get_template(name)


@lru_cache(maxsize=1024)
def _parsed(template: str, text: str) -> tuple[Json, int]:
    """The document with marks in place of values, and how many marks it holds."""
    import yaml

    try:
        skeleton = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe either way
    except yaml.YAMLError as error:
        raise InternalError(f"{template} is not YAML once its values are left out: {error}") from error
    return skeleton, _marks(skeleton)


def _marks(node: Json) -> int:
    if isinstance(node, dict):
        return sum(_marks(key) + _marks(value) for key, value in node.items())
    if isinstance(node, list):
        return sum(map(_marks, node))
    return int(isinstance(node, str) and _MARK.fullmatch(node) is not None)


def _filled(node: Json, kept: Sequence[Json]) -> Json:
    """A copy of the document with the values where their marks were; the cached one stays as it is."""
    if isinstance(node, dict):
        return {_filled(key, kept): _filled(value, kept) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(item, kept) for item in node]
    if isinstance(node, str) and (mark := _MARK.fullmatch(node)):
        return plain(kept[int(mark[1])])
    return node
