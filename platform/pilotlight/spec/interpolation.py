"""Substitution of `${VARIABLE}` in scalar values (`--env`).

Applied after YAML has been parsed, so that a variable's content cannot change the structure of a document.
"""

import re
from collections.abc import Mapping
from typing import Final

from pilotlight.spec.problems import Problems, SourceLocation

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def interpolate(text: str, environ: Mapping[str, str], location: SourceLocation, problems: Problems) -> str:
    """Replace `${NAME}` and `${NAME:-default}`; `$${` becomes `${`. An unset variable is a problem (PL107)."""

    def replacement(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name is None:
            return "${"
        if name in environ:
            return environ[name]
        if default is None:
            problems.error(
                "PL107", location, "", f"${{{name}}}: {name} is not set; set it, or write ${{{name}:-default}}"
            )
        return default or ""

    return _VARIABLE.sub(replacement, text)
