"""Cluster capabilities from `--capabilities FILE` and the flags that override single fields.

The file has the fields of plan's Capabilities in camel case (`httpAddOn`). A missing field keeps its default: an
ordinary cluster with everything installed.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platformctl.manifest_files import check_exist

if TYPE_CHECKING:
    from pilotlight.plan.model import Capabilities
    from pilotlight.spec.types import Record

MODES: Final = ("serverless", "raw")
LEVELS: Final = ("restricted", "baseline", "privileged")


def capabilities(
    file: str | None, default_mode: str | None, pod_security: str | None, reported: Mapping[str, Any] | None = None
) -> "Capabilities":
    """Merge the capabilities `reported` by the target, the file and the flags; later ones win."""
    from pilotlight.plan.model import Capabilities

    written = _read(file) if file else {}
    flags = {"default_mode": default_mode, "pod_security": pod_security}
    flags_set = {name: value for name, value in flags.items() if value}
    return replace(Capabilities(), **{**(reported or {}), **written, **flags_set})


def _read(file: str) -> dict[str, Any]:
    """Return the file's values by field name. Raises InvalidDocument with all its problems."""
    from pilotlight.spec.nodes import parse
    from pilotlight.spec.problems import InvalidDocument, Problems, SourceLocation
    from pilotlight.spec.types import read

    check_exist([file])
    problems = Problems()
    nodes = parse(Path(file).read_text(encoding="utf-8", errors="replace"), file, problems)
    if len(nodes) > 1:
        problems.error("PL112", nodes[1].location, "", "is a second document; capabilities are one")
    fields_read = read(nodes[0], record(), problems) if nodes else {}
    if not nodes and not problems.errors:
        problems.error("PL112", SourceLocation(file), "", "holds no document")
    if problems.errors:
        raise InvalidDocument(problems.errors)
    names = {spelled: name for name, spelled in _field_names().items()}
    values = {names[name]: value for name, value in fields_read.items()}
    return {**values, "features": frozenset(values["features"])} if "features" in values else values


def record() -> "Record":
    """Return the type of the file, derived from the fields of Capabilities."""
    from pilotlight.plan.model import Capabilities
    from pilotlight.spec.types import Boolean, Field, Integer, ListOf, MapOf, OneOf, Record, String, Type

    plain = Capabilities()
    special: dict[str, Type] = {
        "default_mode": OneOf(MODES), "pod_security": OneOf(LEVELS), "features": ListOf(String()),
        "route_parent": MapOf(String()), "gpus": Integer(0), "load_rate_bytes_s": Integer(1),
    }  # fmt: skip
    types: dict[str, Type] = {
        name: special.get(name) or (Boolean() if isinstance(getattr(plain, name), bool) else String())
        for name in _field_names()
    }
    return Record("capabilities", {spelled: Field(types[name]) for name, spelled in _field_names().items()})


def _field_names() -> dict[str, str]:
    """Map field names of Capabilities to their names in the file."""
    from dataclasses import fields

    from pilotlight.plan.model import Capabilities

    return {field.name: re.sub(r"_(.)", lambda match: match[1].upper(), field.name) for field in fields(Capabilities)}
