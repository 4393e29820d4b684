"""What the cluster has, as a user tells it: `--capabilities FILE` with the flags that override single fields of it.

A map of plan's own Capabilities, its names as Kubernetes spells them (`httpAddOn`). What is left out keeps its default:
an ordinary cluster with everything installed.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platformctl.documents import existing

if TYPE_CHECKING:
    from pilotlight.plan.model import Capabilities
    from pilotlight.spec.types import Record

MODES: Final = ("serverless", "raw")
LEVELS: Final = ("restricted", "baseline", "privileged")


def capabilities(
    file: str | None, default_mode: str | None, pod_security: str | None, offers: Mapping[str, Any] | None = None
) -> "Capabilities":
    """What the target `offers`, with what the file says on top, and the flags on top of that."""
    from pilotlight.plan.model import Capabilities

    written = _read(file) if file else {}
    flags = {"default_mode": default_mode, "pod_security": pod_security}
    given = {name: value for name, value in flags.items() if value}
    return replace(Capabilities(), **{**(offers or {}), **written, **given})


def _read(file: str) -> dict[str, Any]:
    """By the names of our fields. Raises InvalidDocument with everything that is wrong in the file."""
    from pilotlight.errors import InvalidDocument
    from pilotlight.spec.nodes import parse
    from pilotlight.spec.problems import Place, Problems
    from pilotlight.spec.types import read

    existing([file])
    problems = Problems()
    nodes = parse(Path(file).read_text(encoding="utf-8", errors="replace"), file, problems)
    if len(nodes) > 1:
        problems.error("PL112", nodes[1].place, "", "is a second document; capabilities are one")
    found = read(nodes[0], record(), problems) if nodes else {}
    if not nodes and not problems.errors:
        problems.error("PL112", Place(file), "", "holds no document")
    if problems.errors:
        raise InvalidDocument(problems.errors)
    names = {spelled: name for name, spelled in _spelled().items()}
    made = {names[name]: value for name, value in found.items()}
    return {**made, "features": frozenset(made["features"])} if "features" in made else made


def record() -> "Record":
    """The file's type, made of the fields of Capabilities."""
    from pilotlight.plan.model import Capabilities
    from pilotlight.spec.types import Field, ListOf, MapOf, OneOf, Record, Text, Truth, Type, Whole

    plain = Capabilities()
    special: dict[str, Type] = {
        "default_mode": OneOf(MODES), "pod_security": OneOf(LEVELS), "features": ListOf(Text()),
        "route_parent": MapOf(Text()), "gpus": Whole(0), "load_rate_bytes_s": Whole(1),
    }  # fmt: skip
    types: dict[str, Type] = {
        name: special.get(name) or (Truth() if isinstance(getattr(plain, name), bool) else Text())
        for name in _spelled()
    }
    return Record("capabilities", {spelled: Field(types[name]) for name, spelled in _spelled().items()})


def _spelled() -> dict[str, str]:
    """Our names and how the file spells them."""
    from dataclasses import fields

    from pilotlight.plan.model import Capabilities

    return {field.name: _camel(field.name) for field in fields(Capabilities)}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
