"""`${VARIABLE}` in a document's values, only where the caller asks for it.

Applied to scalars after YAML has been parsed, so that no variable's content can change a document's structure.
"""

import re
from collections.abc import Mapping
from typing import Final

from pilotlight.spec.problems import Place, Problems

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def interpolate(text: str, environ: Mapping[str, str], place: Place, problems: Problems) -> str:
    """`${NAME}` and `${NAME:-default}`; `$${` stays as `${`. A variable that is not set is a problem."""

    def replacement(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name is None:
            return "${"
        if name in environ:
            return environ[name]
        if default is None:
            problems.error("PL107", place, "", f"${{{name}}}: {name} is not set; set it, or write ${{{name}:-default}}")
        return default or ""

    return _VARIABLE.sub(replacement, text)
